"""What the files of a model folder tell without loading it: dimension, dtype, shape, size of its weights.

It never imports a machine-learning library, and says None rather than guess.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunkvisor.commands.planning.activations import ModelShape, shape_of

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What was found."""

    dimension: int | None = None
    dtype: str | None = None
    """As stored."""
    weights_bytes: int | None = None
    shape: ModelShape | None = None


def read_model_folder(folder: Path) -> ModelFolder:
    """Read the JSON files; what is missing or strange is None. Raises nothing."""
    modules = _read(folder / "modules.json")
    first = folder / _path(modules[0]) if isinstance(modules, list) and modules else folder
    config = _mapping(_read(first / "config.json"))
    dtype = config.get("dtype", config.get("torch_dtype"))  # renamed in transformers 5
    return ModelFolder(
        _dimension(folder, config, modules if isinstance(modules, list) else []),
        dtype if isinstance(dtype, str) else None,
        _weights_bytes(folder),
        shape_of(_mapping(config.get("text_config")) or config),
    )


def _dimension(folder: Path, config: dict[str, Any], modules: list[Any]) -> int | None:
    text = _mapping(config.get("text_config")) or config
    dimension = next((text[key] for key in ("hidden_size", "d_model", "dim") if isinstance(text.get(key), int)), None)
    for module in modules[1:]:
        kind = str(_mapping(module).get("type", "")).rpartition(".")[2]
        settings = _mapping(_read(folder / _path(module) / "config.json"))
        if kind == "Pooling":
            width = settings.get("embedding_dimension", settings.get("word_embedding_dimension", dimension))
            dimension = width * _pooling_modes(settings) if isinstance(width, int) else None
        elif kind == "Dense":
            width = settings.get("out_features")
            dimension = width if isinstance(width, int) else None
        elif kind not in ("Normalize", "Dropout", "LayerNorm"):
            return None
    return dimension


def _pooling_modes(settings: dict[str, Any]) -> int:
    """How many there are: each gives a vector of its own, one behind the other."""
    modes = settings.get("pooling_mode")  # since sentence-transformers 6; before, a flag for each
    flags = [key for key, on in settings.items() if key.startswith("pooling_mode_") and on is True]
    return len(modes) if isinstance(modes, list) else 1 if modes else max(1, len(flags))


def _weights_bytes(folder: Path) -> int | None:
    for pattern in _WEIGHTS:
        if files := list(folder.rglob(pattern)):
            return sum(path.stat().st_size for path in files)
    return None


def _path(module: Any) -> str:
    return str(_mapping(module).get("path", ""))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
