"""What the files of a model folder say without loading it, and whether that is the model that the config describes.

A finite vector of the wrong model is the worst result, because no check of vectors sees it: what the files show is
refused here, before a worker is started; what only loading shows is in `chunkvisor_worker.model`.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunkvisor.config.model import Config, EncodeConfig, ModelConfig
from chunkvisor.errors import config_error
from chunkvisor.units import listed
from chunkvisor_worker.contract.files import read_bounded

# Names of weight files, of the best kind first; a folder may have the same weights under several of them.
_WEIGHTS = (
    ("model.safetensors", "model-*-of-*.safetensors"),
    ("*.safetensors",),
    ("pytorch_model*.bin",),
)
# Keys of `model.kwargs` under which the weights in memory have little to do with those on disk, or with `model.dtype`.
_DECIDING = ("backend", "device_map", "quantization_config", "dtype", "torch_dtype")

_OURS = "SentenceTransformer"
# Files with an `auto_map`: transformers looks there for Python code that comes with a model.
_CODE = ("config.json", "tokenizer_config.json", "processor_config.json")
_NAMED_IN = "config_sentence_transformers.json"


def _read(path: Path) -> Any:
    try:
        return json.loads(read_bounded(path) or b"")
    except (OSError, ValueError):
        return None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _read_mapping(path: Path) -> dict[str, Any]:
    return _mapping(_read(path))


def _read_modules(folder: Path) -> list[dict[str, Any]] | None:
    found = _read(folder / "modules.json")
    return [_mapping(module) for module in found] if isinstance(found, list) else None


def _kind_of(module: dict[str, Any]) -> str:
    return str(module.get("type", "")).rpartition(".")[2]


# --- what they say


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What was found."""

    dimension: int | None = None
    dtype: str | None = None  # as stored; not known if the weights are quantized
    weights_bytes: int | None = None  # on disk
    model_type: str | None = None  # as config.json has it

    def computes_in(self, model: ModelConfig) -> str | None:
        """Name the dtype in which a worker computes; None if the files do not say."""
        kwargs = {**model.kwargs, **_mapping(model.kwargs.get("model_kwargs"))}
        if self.dtype is None or any(kwargs.get(key) is not None for key in _DECIDING):
            return None
        return self.dtype if str(model.dtype) == "auto" else str(model.dtype)


def read_model_folder(folder: Path) -> ModelFolder:
    """Read the JSON files; what is missing or strange is None. Raises nothing."""
    modules = _read_modules(folder) or []
    config = _read_mapping(
        (folder / str(modules[0].get("path", "")) if modules else folder) / "config.json"
    )
    text = _mapping(config.get("text_config")) or config
    # Renamed in transformers 5; those that say nothing were stored before it was written down.
    dtype = config.get("dtype", config.get("torch_dtype")) or "float32"
    kind = config.get("model_type")
    weights_bytes = None
    with contextlib.suppress(OSError):
        files = (
            [path for pattern in patterns for path in folder.rglob(pattern)]
            for patterns in _WEIGHTS
        )
        weights_bytes = sum(path.stat().st_size for path in next(filter(None, files), [])) or None
    return ModelFolder(
        _dimension(folder, text, modules[1:]),
        dtype
        if isinstance(dtype, str) and config and config.get("quantization_config") is None
        else None,
        weights_bytes,
        kind if isinstance(kind, str) else None,
    )


def _dimension(
    folder: Path, config: Mapping[str, Any], further: list[dict[str, Any]]
) -> int | None:
    """Find the width of a vector after the transformer and the `further` modules."""
    widths = (config.get(key) for key in ("hidden_size", "d_model", "dim"))
    dimension: Any = next((width for width in widths if isinstance(width, int)), None)
    for module in further:
        settings = _read_mapping(folder / str(module.get("path", "")) / "config.json")
        if _kind_of(module) == "Pooling":
            width = settings.get(
                "embedding_dimension", settings.get("word_embedding_dimension", dimension)
            )
            # Each mode gives a vector, one after the other: a list since sentence-transformers 6; before, flags.
            modes = settings.get("pooling_mode")
            flags = [
                key
                for key, on in settings.items()
                if key.startswith("pooling_mode_") and on is True
            ]
            count = len(modes) if isinstance(modes, list) else 1 if modes else max(1, len(flags))
            dimension = width * count if isinstance(width, int) else None
        elif _kind_of(module) == "Dense":
            dimension = settings.get("out_features")
        elif _kind_of(module) not in ("Normalize", "Dropout", "LayerNorm"):
            return None
    return dimension if isinstance(dimension, int) else None


# --- whether they fit the config


def check_model_files(config: Config, folder: str | None) -> list[tuple[str, str]]:
    """Check the files in the folder, and return warnings: (what, what to do) each.

    Nothing is found for a plug-in or a model that is not here yet. Raises Halt (78) for the first fault.
    """
    if folder is None or config.model.is_plugin:
        return []
    model, here, warnings = config.model, Path(folder), list[tuple[str, str]]()
    modules, saved = _read_modules(here), _read_mapping(here / _NAMED_IN)
    _refuse_wrong_kind(model, modules, saved)
    code = list(_code_of(here, modules or []))
    names = listed(list(dict.fromkeys(name for _, name in code)), 6)
    if code and model.trust_remote_code is None:
        raise config_error(
            f"{model.name} brings Python code ({names}), and model.trust_remote_code does not say whether to run it",
            why=f"{listed([place for place, _ in code], 4)} names it; without that code transformers takes its own "
            "class, and the vectors may be others than the author's",
            remedy="Read that code; then set model.trust_remote_code to true to run it, or to false to take the class "
            "of transformers on purpose.",
        )
    if code and model.trust_remote_code is False:
        what = f"the Python code of {model.name} ({names}) is left out, because model.trust_remote_code is false"
        warnings.append((what, "compare some vectors with the author's, by model.expect"))
    encodes = {name: config.effective_encode(name) for name in config.outputs}
    for module in modules or []:
        if _kind_of(module) == "Dense" and not model.trust_remote_code:
            _refuse_activation(model, here, str(module.get("path", "")))
        elif _kind_of(module) == "Router":
            _refuse_undecided_route(model, here, str(module.get("path", "")), encodes)
    prompts = {**_mapping(saved.get("prompts")), **_mapping(model.kwargs.get("prompts"))}
    names = ", ".join(repr(name) for name, text in prompts.items() if text)
    undecided = (None, None, None)
    without = [
        name for name, e in encodes.items() if (e.prompt, e.prompt_name, e.task) == undecided
    ]
    has_default = model.kwargs.get("default_prompt_name") or saved.get("default_prompt_name")
    if names and without and not has_default:
        what = f"{listed(without, 3)}: the model {model.name} has prompts ({names}), and none is put before the texts"
        mend = 'set encode.prompt_name to one of them, or encode.task; encode.prompt: "" says that none is wanted'
        warnings.append((what, mend))
    return warnings


def _code_of(folder: Path, modules: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield (file that names it, file of the code) of each piece of Python code that comes with the model."""
    first = str(modules[0].get("path", "")) if modules else ""
    for path in dict.fromkeys(
        f"{part}/{name}".lstrip("/") for part in ("", first) for name in _CODE
    ):
        for value in _mapping(_read_mapping(folder / path).get("auto_map")).values():
            for name in (
                value if isinstance(value, list) else [value]
            ):  # a list has two kinds of tokenizers
                if isinstance(name, str):
                    yield path, f"{name.rpartition('.')[0] or name}.py"
    for kind in (str(module.get("type", "")) for module in modules):
        if kind and not kind.startswith("sentence_transformers."):
            yield "modules.json", f"{kind.rpartition('.')[0] or kind}.py"


def _refuse_wrong_kind(
    model: ModelConfig, modules: list[dict[str, Any]] | None, saved: dict[str, Any]
) -> None:
    kind = saved.get("model_type", _OURS)
    if kind != _OURS:
        raise config_error(
            f"{model.name} is a model of the class {kind}, not {_OURS}",
            why=f'{_NAMED_IN} says "model_type": "{kind}"; its last layers would be left out',
            remedy=f"Choose an embedding model as model.name, or encode with {kind} in a plug-in encoder.",
        )
    if modules is None and model.pooling is None:
        raise config_error(
            f"{model.name} does not say how the vectors of its tokens become one: it has no modules.json",
            why="sentence-transformers would make up a pooling, which may not be that of the model's training",
            remedy="Set model.pooling to mean, cls, lasttoken or max, as the model's author says.",
        )
    if modules is not None and model.pooling is not None:
        what = f"model.pooling is {model.pooling}, but {model.name} has a modules.json, which says how it pools"
        raise config_error(what, remedy="Leave model.pooling out.")


def _refuse_activation(model: ModelConfig, folder: Path, path: str) -> None:
    name = _read_mapping(folder / path / "config.json").get("activation_function")
    if isinstance(name, str) and not name.startswith("torch."):
        raise config_error(
            f"{model.name} has a Dense layer with the activation {name}, which is not part of torch",
            why=f"{path}/config.json names it; without model.trust_remote_code sentence-transformers puts Tanh in its "
            "place",
            remedy="If you trust it, set model.trust_remote_code to true; or choose another model.",
        )


def _refuse_undecided_route(
    model: ModelConfig, folder: Path, path: str, encodes: Mapping[str, EncodeConfig]
) -> None:
    """Refuse a Router with other modules for queries than for documents, if an output does not say which it has."""
    place = f"{path}/router_config.json".lstrip("/")
    saved = _read_mapping(folder / place)
    routes, mappings = (
        _mapping(saved.get("structure")),
        _mapping(saved.get("parameters")).get("route_mappings"),
    )
    # If the kind of input decides, it is always text.
    by_input = any(str(key).startswith("(None, ") for key in mappings or ())
    if by_input or len({json.dumps(route) for route in routes.values()}) < 2:
        return
    for output, encode in encodes.items():
        if encode.task is None and "task" not in encode.kwargs:
            raise config_error(
                f"output {output}: {model.name} encodes by different routes ({listed(list(routes), 6)}), and "
                "encode.task does not say which to take",
                why=f"{place} has the routes; a run would take the default one for every text",
                remedy="Set encode.task to query or document, for all outputs or under outputs."
                f"{output}.encode; for a route of another name: encode.kwargs: {{task: NAME}}.",
            )
