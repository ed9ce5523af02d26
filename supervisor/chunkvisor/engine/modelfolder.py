"""What the files of a model folder say without loading it, and whether that is the model that the config describes.

No machine-learning library is imported. A finite vector of the wrong model is the worst result, because no check of
vectors sees it: what the files show is refused here, before a worker is started, for doctor, plan and run alike; what
only loading shows is in `chunkvisor_worker.model`. What the files do not say is None, not a guess.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunkvisor.config.model import Config, ModelConfig
from chunkvisor.errors import Halt, config_error
from chunkvisor.units import listed
from chunkvisor_worker.contract.files import read_bounded

# Names of weight files, of the best kind first; a folder may have the same weights under several of them.
_WEIGHTS = (("model.safetensors", "model-*-of-*.safetensors"), ("*.safetensors",), ("pytorch_model*.bin",))
# Keys of `model.kwargs` under which the weights in memory have little to do with those on disk, or with `model.dtype`.
_DECIDING = ("backend", "device_map", "quantization_config", "dtype", "torch_dtype")
_SIZES_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}

_OURS = "SentenceTransformer"
# Prompts that every model has, empty if its files say nothing (`_default_prompts` of sentence-transformers 6.2).
_BUILT_IN = ("query", "document")
# Files with an `auto_map`: transformers looks there for Python code that comes with a model.
_CODE = ("config.json", "tokenizer_config.json", "processor_config.json")
_NAMED_IN = "config_sentence_transformers.json"


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _read(path: Path) -> Any:
    """Read a JSON file; None if it is missing or not JSON."""
    try:
        return json.loads(read_bounded(path) or b"")
    except (OSError, ValueError):
        return None


# --- what they say


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What was found."""

    dimension: int | None = None
    dtype: str | None = None  # as stored
    weights_bytes: int | None = None  # on disk
    quantized: bool = False
    model_type: str | None = None  # as config.json has it

    def loaded_bytes(self, dtype: str) -> int | None:
        """Size the weights in memory: as they are stored, unless the config's `dtype` is another, known one."""
        if self.weights_bytes is None or dtype == "auto" or self.dtype not in _SIZES_BYTES:
            return self.weights_bytes
        return self.weights_bytes * _SIZES_BYTES[dtype] // _SIZES_BYTES[self.dtype]


def read_model_folder(folder: Path) -> ModelFolder:
    """Read the JSON files; what is missing or strange is None. Raises nothing."""
    found = _read(folder / "modules.json")
    modules = [_mapping(module) for module in found] if isinstance(found, list) else []
    first = folder / str(modules[0].get("path", "")) if modules else folder
    config = _mapping(_read(first / "config.json"))
    text = _mapping(config.get("text_config")) or config
    # Renamed in transformers 5; those that say nothing were stored before it was written down.
    dtype = config.get("dtype", config.get("torch_dtype")) or "float32"
    kind = config.get("model_type")
    weights_bytes = None
    with contextlib.suppress(OSError):
        files = ([path for pattern in patterns for path in folder.rglob(pattern)] for patterns in _WEIGHTS)
        weights_bytes = sum(path.stat().st_size for path in next(filter(None, files), [])) or None
    return ModelFolder(
        _dimension(folder, text, modules[1:]),
        dtype if isinstance(dtype, str) and config else None,
        weights_bytes,
        config.get("quantization_config") is not None,
        kind if isinstance(kind, str) else None,
    )


def computed_dtype(model: ModelConfig, path: str | None) -> str | None:
    """Say in which dtype a worker computes; None if the files do not say, and for a plug-in. Raises nothing."""
    kwargs = {**model.kwargs, **_mapping(model.kwargs.get("model_kwargs"))}
    if path is None or any(kwargs.get(key) is not None for key in _DECIDING):
        return None
    found = read_model_folder(Path(path))
    stored = found.dtype if str(model.dtype) == "auto" else str(model.dtype)
    return None if found.quantized else stored


def _dimension(folder: Path, config: Mapping[str, Any], further: list[dict[str, Any]]) -> int | None:
    """Find the width of a vector behind the transformer and the `further` modules."""
    widths = (config.get(key) for key in ("hidden_size", "d_model", "dim"))
    dimension: Any = next((width for width in widths if isinstance(width, int)), None)
    for module in further:
        kind = str(module.get("type", "")).rpartition(".")[2]
        settings = _mapping(_read(folder / str(module.get("path", "")) / "config.json"))
        if kind == "Pooling":
            width = settings.get("embedding_dimension", settings.get("word_embedding_dimension", dimension))
            # Each mode gives a vector, one behind the other: a list since sentence-transformers 6; before, flags.
            modes = settings.get("pooling_mode")
            flags = [key for key, on in settings.items() if key.startswith("pooling_mode_") and on is True]
            count = len(modes) if isinstance(modes, list) else 1 if modes else max(1, len(flags))
            dimension = width * count if isinstance(width, int) else None
        elif kind == "Dense":
            dimension = settings.get("out_features")
        elif kind not in ("Normalize", "Dropout", "LayerNorm"):
            return None
    return dimension if isinstance(dimension, int) else None


# --- whether they fit the config


@dataclass(frozen=True, slots=True)
class ModelFindings:
    """What is wrong with a model, and what a person should know about it."""

    faults: tuple[Halt, ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()  # (what, what to do) each


def check_model_files(config: Config, folder: str | None) -> ModelFindings:
    """Check the files in the folder; nothing is found for a plug-in or a model that is not here yet. Raises nothing."""
    if folder is None or config.model.is_plugin:
        return ModelFindings()
    checks = _Checks(config, Path(folder))
    return ModelFindings(
        (
            *checks.other_class(),
            *checks.pooling(),
            *checks.undecided_code(),
            *checks.untrusted_activation(),
            *checks.undecided_route(),
            *checks.unknown_prompts(),
        ),
        tuple(checks.warnings()),
    )


def refuse_wrong_model(config: Config, folder: str | None) -> None:
    """Raise Halt (78) for the first fault that the files in the folder show."""
    for fault in check_model_files(config, folder).faults:
        raise fault


class _Checks:
    """Each yields what it finds."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._model, self._folder, self._name = config.model, folder, config.model.name
        self._encodes = {name: config.effective_encode(name) for name in config.outputs}
        found = _read(folder / "modules.json")
        self._modules = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else None
        # What was saved with the model: its class, its prompts.
        saved, given = _read(folder / _NAMED_IN), dict[str, Any](config.model.kwargs).get("prompts") or {}
        self._saved = _mapping(saved)
        prompts = self._saved.get("prompts") or {}
        told = isinstance(saved, dict) and isinstance(prompts, dict) and isinstance(given, dict)
        # Those of the model and of `model.kwargs`; None if the files do not tell.
        self._prompts: dict[str, str] | None = {**prompts, **given} if told else None
        self._code = list(self._find_code())

    def _mapping(self, path: str) -> dict[str, Any]:
        return _mapping(_read(self._folder / path))

    def _of_kind(self, kind: str) -> Iterator[str]:
        """Yield the paths of the modules of a class."""
        for module in self._modules or ():
            if str(module.get("type", "")).rpartition(".")[2] == kind:
                yield str(module.get("path", ""))

    def _find_code(self) -> Iterator[tuple[str, str]]:
        """Yield (file that names it, file of the code) of each piece of code that the model brings."""
        modules = self._modules or []
        first = str(modules[0].get("path", "")) if modules else ""
        for path in dict.fromkeys(f"{folder}/{name}".lstrip("/") for folder in ("", first) for name in _CODE):
            for value in _mapping(self._mapping(path).get("auto_map")).values():
                for name in value if isinstance(value, list) else [value]:  # a list has two kinds of tokenizers
                    if isinstance(name, str):
                        yield path, f"{name.rpartition('.')[0] or name}.py"
        for kind in (str(module.get("type", "")) for module in modules):
            if kind and not kind.startswith("sentence_transformers."):
                yield "modules.json", f"{kind.rpartition('.')[0] or kind}.py"

    @property
    def _code_names(self) -> str:
        return listed(list(dict.fromkeys(name for _, name in self._code)), 6)

    def other_class(self) -> Iterator[Halt]:
        kind = self._saved.get("model_type", _OURS)
        if kind != _OURS:
            yield config_error(
                f"{self._name} is a model of the class {kind}, not {_OURS}",
                why=f'{_NAMED_IN} says "model_type": "{kind}"; its last layers would be left out',
                remedy=f"choose an embedding model as model.name, or encode with {kind} in a plug-in encoder",
            )

    def pooling(self) -> Iterator[Halt]:
        """Refuse a model for which nothing says how its token vectors become one, or two things do."""
        pooling = self._model.pooling
        if self._modules is None and pooling is None:
            yield config_error(
                f"{self._name} does not say how the vectors of its tokens become one: it has no modules.json",
                why="sentence-transformers would make up a pooling, which may not be that of the model's training",
                remedy="set model.pooling to mean, cls, lasttoken or max, as the model's author says",
            )
        if self._modules is not None and pooling is not None:
            what = f"model.pooling is {pooling}, but {self._name} has a modules.json, which says how it pools"
            yield config_error(what, remedy="leave model.pooling out")

    def undecided_code(self) -> Iterator[Halt]:
        if self._model.trust_remote_code is None and self._code:
            yield config_error(
                f"{self._name} brings Python code ({self._code_names}), and model.trust_remote_code does not say "
                "whether to run it",
                why=f"{listed([place for place, _ in self._code], 4)} names it; without that code transformers takes "
                "its own class, and the vectors may be others than the author's",
                remedy="read that code; then set model.trust_remote_code to true to run it, or to false to take the "
                "class of transformers on purpose",
            )

    def untrusted_activation(self) -> Iterator[Halt]:
        for path in self._of_kind("Dense") if not self._model.trust_remote_code else ():
            name = self._mapping(f"{path}/config.json").get("activation_function")
            if isinstance(name, str) and not name.startswith("torch."):
                yield config_error(
                    f"{self._name} has a Dense layer with the activation {name}, which comes from outside torch",
                    why=f"{path}/config.json names it; without model.trust_remote_code sentence-transformers puts Tanh "
                    "in its place",
                    remedy="if you trust it, set model.trust_remote_code to true; or choose another model",
                )

    def undecided_route(self) -> Iterator[Halt]:
        """Refuse a Router with other modules for queries than for documents, if an output does not say which it has."""
        for path in self._of_kind("Router"):
            place = f"{path}/router_config.json".lstrip("/")
            saved = self._mapping(place)
            routes = _mapping(saved.get("structure"))
            mappings = _mapping(saved.get("parameters")).get("route_mappings") or ()
            # If the kind of input decides, it is always text.
            if len({json.dumps(route) for route in routes.values()}) < 2 or any(
                str(key).startswith("(None, ") for key in mappings
            ):
                continue
            for output, encode in self._encodes.items():
                if encode.task is None and "task" not in encode.kwargs:
                    yield config_error(
                        f"output {output}: {self._name} encodes by different routes ({listed(list(routes), 6)}), and "
                        "encode.task does not say which to take",
                        why=f"{place} has the routes; a run would take the default one for every text",
                        remedy="set encode.task to query or document, for all outputs or under outputs."
                        f"{output}.encode; for a route of another name: encode.kwargs: {{task: NAME}}",
                    )

    def unknown_prompts(self) -> Iterator[Halt]:
        known = self._prompts
        if known is None or self._model.trust_remote_code:  # its code may have more: the worker decides
            return
        for output, encode in self._encodes.items():
            name = encode.prompt_name
            if name is not None and name not in (*known, *_BUILT_IN):
                its = f"its prompts are {', '.join(map(repr, known))}" if known else f"its {_NAMED_IN} names no prompts"
                yield config_error(
                    f"output {output}: the model {self._name} has no prompt named {name!r}",
                    why=its,
                    remedy="correct encode.prompt_name, or write the text itself: encode.prompt",
                )

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield what may be meant: code that is left out, and prompts that no output uses."""
        if self._model.trust_remote_code is False and self._code:
            yield (
                f"the Python code of {self._name} ({self._code_names}) is left out, because model.trust_remote_code "
                "is false",
                "compare some vectors with the author's, by model.expect",
            )
        names = ", ".join(repr(name) for name, text in (self._prompts or {}).items() if text)
        undecided = (None, None, None)
        without = [name for name, e in self._encodes.items() if (e.prompt, e.prompt_name, e.task) == undecided]
        has_default = self._model.kwargs.get("default_prompt_name") or self._saved.get("default_prompt_name")
        if names and without and not has_default:
            yield (
                f"{listed(without, 3)}: the model {self._name} has prompts ({names}), and none is put before the texts",
                'set encode.prompt_name to one of them, or encode.task; encode.prompt: "" says that none is wanted',
            )
