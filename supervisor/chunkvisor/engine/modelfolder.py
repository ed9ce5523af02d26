"""What the files of a model folder say without loading it: dimension, dtype, shape, size of its weights.

No machine-learning library is imported. What the files do not say is None, not a guess.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunkvisor.config.model import ModelConfig
from chunkvisor_worker.contract.files import read_bounded

# Names of weight files, of the best kind first; a folder may have the same weights under several of them.
_WEIGHTS = (("model.safetensors", "model-*-of-*.safetensors"), ("*.safetensors",), ("pytorch_model*.bin",))
# A CUDA context with its libraries takes at least about as much.
_CONTEXT_BYTES = 256 << 20
# Keys of `model.kwargs` under which the weights in memory have little to do with those on disk.
_PLACING = ("backend", "device_map", "quantization_config")
# Keys that say in which dtype the weights are loaded, whatever `model.dtype` says.
_TYPING = ("dtype", "torch_dtype")
# Of floating point, as a header of safetensors names them.
_TENSOR_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Of a header of safetensors, as that library has it (its tensor.rs, MAX_HEADER_SIZE).
_HEADER_LIMIT_BYTES = 100_000_000
_SIZES_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}

# Model types whose feed-forward part has two layers.
PLAIN = frozenset({"bert", "camembert", "electra", "mpnet", "roberta", "xlm-roberta"})
# Model types with a gated one: three layers, and rotary positions.
GATED = frozenset({"gemma", "gemma2", "llama", "mistral", "qwen2", "qwen3"})


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What of a transformer decides the size of its activations."""

    hidden: int
    intermediate: int
    queries: int  # attention heads times their width
    keys: int  # key heads times their width; fewer than the queries if they are grouped
    gated: bool
    heads: int


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What was found."""

    dimension: int | None = None
    dtype: str | None = None  # as stored
    weights_bytes: int | None = None  # on disk
    shape: ModelShape | None = None
    quantized: bool = False
    model_type: str | None = None  # as config.json has it

    def loaded_bytes(self, dtype: str) -> int | None:
        """Size the weights in memory: as they are stored, unless the config's `dtype` is another, known one."""
        if self.weights_bytes is None or dtype == "auto" or self.dtype not in _SIZES_BYTES:
            return self.weights_bytes
        return self.weights_bytes * _SIZES_BYTES[dtype] // _SIZES_BYTES[self.dtype]

    def element_bytes(self, dtype: str) -> int:
        """Size one number as it flows through the model; 4 if not known."""
        return _SIZES_BYTES.get((self.dtype if dtype == "auto" else dtype) or "", 4)


def read_model_folder(folder: Path) -> ModelFolder:
    """Read the JSON files; what is missing or strange is None. Raises nothing."""
    found = _read(folder / "modules.json")
    modules = [_mapping(module) for module in found] if isinstance(found, list) else []
    first = folder / str(modules[0].get("path", "")) if modules else folder
    config = _mapping(_read(first / "config.json"))
    dtype = config.get("dtype", config.get("torch_dtype"))  # renamed in transformers 5
    kind = config.get("model_type")
    weights_bytes = None
    with contextlib.suppress(OSError):
        weights_bytes = sum(path.stat().st_size for path in _weight_files(folder.rglob, _WEIGHTS)) or None
    return ModelFolder(
        _dimension(folder, config, modules[1:]),
        dtype if isinstance(dtype, str) else _stored_dtype(first),
        weights_bytes,
        shape_of(_mapping(config.get("text_config")) or config),
        config.get("quantization_config") is not None,
        kind if isinstance(kind, str) else None,
    )


def gpu_need_bytes(model: ModelConfig, path: str | None) -> int:
    """Say what GPU memory a worker needs at least before its first batch: context and weights; 0 = not known.

    `path` is the folder of the model's files; None for a plug-in. Raises nothing.
    """
    if path is None or _has(model, _PLACING):
        return 0
    found = read_model_folder(Path(path))
    loaded = None if found.quantized else found.loaded_bytes(str(model.dtype))
    return _CONTEXT_BYTES + loaded if loaded else 0


def computed_dtype(model: ModelConfig, path: str | None) -> str | None:
    """Say in which dtype a worker computes; None if the files do not say, and for a plug-in. Raises nothing."""
    if path is None or _has(model, (*_PLACING, *_TYPING)):
        return None
    found = read_model_folder(Path(path))
    stored = found.dtype if str(model.dtype) == "auto" else str(model.dtype)
    return None if found.quantized else stored


def _has(model: ModelConfig, keys: Iterable[str]) -> bool:
    kwargs = {**model.kwargs, **_mapping(model.kwargs.get("model_kwargs"))}
    return any(kwargs.get(key) is not None for key in keys)


def shape_of(config: Mapping[str, Any]) -> ModelShape | None:
    """Read the shape from a transformers config.json; None for a model type whose layers are not known here."""
    kind = config.get("model_type")
    hidden, intermediate, heads = (
        size if isinstance(size := config.get(key), int) and size > 0 else 0
        for key in ("hidden_size", "intermediate_size", "num_attention_heads")
    )
    if kind not in PLAIN | GATED or not (hidden and intermediate and heads):
        return None
    width, key_heads = config.get("head_dim"), config.get("num_key_value_heads")
    width = width if isinstance(width, int) else hidden // heads
    key_heads = key_heads if isinstance(key_heads, int) else heads
    return ModelShape(hidden, intermediate, heads * width, key_heads * width, kind in GATED, heads)


def _dimension(folder: Path, config: Mapping[str, Any], further: Iterable[Mapping[str, Any]]) -> int | None:
    """Find the width of a vector behind the transformer and the `further` modules."""
    text = _mapping(config.get("text_config")) or config
    dimension = next((text[key] for key in ("hidden_size", "d_model", "dim") if isinstance(text.get(key), int)), None)
    for module in further:
        kind = str(module.get("type", "")).rpartition(".")[2]
        settings = _mapping(_read(folder / str(module.get("path", "")) / "config.json"))
        if kind == "Pooling":
            width = settings.get("embedding_dimension", settings.get("word_embedding_dimension", dimension))
            dimension = width * _pooling_modes(settings) if isinstance(width, int) else None
        elif kind == "Dense":
            width = settings.get("out_features")
            dimension = width if isinstance(width, int) else None
        elif kind not in ("Normalize", "Dropout", "LayerNorm"):
            return None
    return dimension


def _pooling_modes(settings: Mapping[str, Any]) -> int:
    """Count them: each gives a vector, one behind the other."""
    modes = settings.get("pooling_mode")  # since sentence-transformers 6; before, a flag for each
    flags = [key for key, on in settings.items() if key.startswith("pooling_mode_") and on is True]
    return len(modes) if isinstance(modes, list) else 1 if modes else max(1, len(flags))


def _stored_dtype(folder: Path) -> str | None:
    """Find the dtype of all the weights, if they are in files of safetensors and have the same one."""
    found = set[str]()
    try:
        for path in _weight_files(folder.glob, _WEIGHTS[:2]):
            with open(path, "rb") as file:
                size_bytes = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(size_bytes) if size_bytes <= _HEADER_LIMIT_BYTES else b"")
            found |= {str(_mapping(tensor).get("dtype")) for name, tensor in header.items() if name != "__metadata__"}
    except (OSError, ValueError, AttributeError):
        return None
    floating = [_TENSOR_DTYPES[name] for name in found if name in _TENSOR_DTYPES]
    return floating[0] if len(floating) == 1 else None


def _weight_files(glob: Callable[[str], Iterable[Path]], kinds: Iterable[Iterable[str]]) -> list[Path]:
    """Find those of the best kind that is there."""
    found = ([path for pattern in patterns for path in glob(pattern)] for patterns in kinds)
    return next(filter(None, found), [])


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _read(path: Path) -> Any:
    try:
        return json.loads(read_bounded(path) or b"")
    except (OSError, ValueError):
        return None
