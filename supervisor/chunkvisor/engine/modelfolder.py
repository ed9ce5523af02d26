"""Reads a model's files before any worker starts, and refuses those that would give wrong vectors.

A finite vector of the wrong model is the worst result, because no check of vectors finds it. What
only loading shows is checked in `chunkvisor_worker.model`.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from chunkvisor.config.model import Config, EncodeConfig, ModelConfig
from chunkvisor.errors import config_error
from chunkvisor.units import listed
from chunkvisor_worker.contract.correctness import install_for, kwargs_without_code
from chunkvisor_worker.contract.files import SMALL_FILES, read_json
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import NO_WEIGHTS, ModelSpec

# Names of weight files, the best kind first; a folder may have the same weights in several kinds.
_WEIGHT_PATTERNS = (
    ("model.safetensors", "model-*-of-*.safetensors"),
    ("*.safetensors",),
    ("pytorch_model*.bin",),
)
# Keys of `model.kwargs` that decide the size or the dtype of the weights in memory.
_WEIGHT_KWARGS = ("backend", "device_map", "quantization_config", "dtype", "torch_dtype")

# Memory that torch and transformers take in a process, about, in addition to the weights.
LIBRARIES_BYTES = 1 << 30
_MODEL_CLASS = "SentenceTransformer"
# Git LFS puts a file that begins like this in the place of one that it has not fetched.
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_ROUTERS = ("Router", "Asym")  # the second is its name in sentence-transformers 2 to 4
# sentence-transformers gives every model these, and saves them, empty.
_OWN_PROMPTS = ("query", "document")
# Files with an `auto_map`: transformers looks there for Python code that comes with a model.
_FILES_WITH_AUTO_MAP = (
    "config.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)
_ST_CONFIG = "config_sentence_transformers.json"


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _read_modules(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of modules.json, such as `{"path": "1_Pooling", "type": "….Pooling"}`."""
    return [_mapping(module) for module in read_json(folder / "modules.json", list)]


def _class_name(kind: str) -> str:
    """Return `Pooling` of `sentence_transformers.models.Pooling`, the `type` of a module."""
    return kind.rpartition(".")[2]


def _read_router(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return name and content of the file that has a Router's routes."""
    for name in ("router_config.json", "config.json"):
        found = read_json(folder / name)
        if found:
            return name, found
    return "", {}


def _modules_of(folder: Path) -> dict[str, str]:
    """Return the type of each module, by its path in the folder; those in a Router come as well.

    Such as `{".": "sentence_transformers.models.Transformer", "1_Pooling": "….Pooling"}`. The
    folder itself, ".", is always among them, with an empty type if it is no module.
    """
    found = dict[str, str]()
    waiting = [{"path": "."}, *_read_modules(folder)]
    while waiting:
        module = waiting.pop(0)
        path = os.path.normpath(str(module.get("path", "")))
        if found.get(path):
            continue
        found[path] = str(module.get("type", ""))
        if _class_name(found[path]) in _ROUTERS:
            types = _mapping(_read_router(folder / path)[1].get("types"))
            waiting += [{"path": f"{path}/{name}", "type": kind} for name, kind in types.items()]
    return found


def _files_of(folder: Path, others: Iterable[str] = SMALL_FILES) -> Iterator[Path]:
    """Yield the weights that are loaded, and the files that match the patterns `others`."""
    for place in map(folder.joinpath, _modules_of(folder)):
        for patterns in _WEIGHT_PATTERNS:
            weights = list(chain.from_iterable(map(place.glob, patterns)))
            if weights:
                yield from weights
                break
        yield from chain.from_iterable(map(place.glob, others))


# --- what they say


@frozen
class ModelFolder:
    """What a model's files say of it; None = they do not say."""

    dimension: int | None = None
    dtype: str | None = None  # as stored; not known if the weights are quantized
    weights_bytes: int | None = None  # on disk
    model_type: str | None = None  # as config.json has it

    def computes_in(self, model: ModelConfig) -> str | None:
        """Name the dtype in which a worker computes; None if the files do not say."""
        kwargs = {**model.kwargs, **_mapping(model.kwargs.get("model_kwargs"))}
        if self.dtype is None or any(kwargs.get(key) is not None for key in _WEIGHT_KWARGS):
            return None
        return self.dtype if str(model.dtype) == "auto" else str(model.dtype)


def read_model_folder(folder: Path) -> ModelFolder:
    """Read the JSON files; what is missing or strange is None. Raises nothing."""
    modules = _read_modules(folder) or [{}]
    config = read_json(folder / str(modules[0].get("path", "")) / "config.json")
    text = _mapping(config.get("text_config")) or config
    # `torch_dtype` before transformers 5; files of before it was stored have float32.
    dtype = config.get("dtype", config.get("torch_dtype")) or "float32"
    known = isinstance(dtype, str) and config and config.get("quantization_config") is None
    kind = config.get("model_type")
    weights_bytes = None
    with suppress(OSError):
        weights_bytes = sum(path.stat().st_size for path in _files_of(folder, ())) or None
    return ModelFolder(
        dimension=_dimension(folder, text, modules[1:]),
        dtype=dtype if known else None,
        weights_bytes=weights_bytes,
        model_type=kind if isinstance(kind, str) else None,
    )


def pools_last_token(folder: Path, model: ModelConfig) -> bool:
    """Say whether a text's vector is that of its last token."""
    modules = _modules_of(folder).items()
    found = [
        read_json(folder / path / "config.json")
        for path, kind in modules
        if kind.endswith("Pooling")
    ]
    return str(model.pooling) == "lasttoken" or any(
        saved.get("pooling_mode_lasttoken") or "lasttoken" in (saved.get("pooling_mode") or ())
        for saved in found
    )


def _dimension(
    folder: Path, config: Mapping[str, Any], further: list[dict[str, Any]]
) -> int | None:
    """Find the width of a vector after the transformer and the `further` modules."""
    widths = (config.get(key) for key in ("hidden_size", "d_model", "dim"))
    dimension: Any = next((width for width in widths if isinstance(width, int)), None)
    for module in further:
        settings = read_json(folder / str(module.get("path", "")) / "config.json")
        name = _class_name(str(module.get("type", "")))
        if name == "Pooling":
            width = settings.get(
                "embedding_dimension", settings.get("word_embedding_dimension", dimension)
            )
            # The vectors of several modes are put together. sentence-transformers 6 saves a list
            # or a name, older ones a flag for each mode.
            modes = settings.get("pooling_mode")
            if not modes:
                flags = [key for key, on in settings.items() if on is True]
                modes = [key for key in flags if key.startswith("pooling_mode_")]
            count = max(1, len(modes)) if isinstance(modes, list) else 1
            dimension = width * count if isinstance(width, int) else None
        elif name == "Dense":
            dimension = settings.get("out_features")
        elif name not in ("Normalize", "Dropout", "LayerNorm"):
            return None
    return dimension if isinstance(dimension, int) else None


# --- what they name outside the folder


@frozen
class Repository:
    """Files that a model needs."""

    name: str  # hub id, or path of a folder
    asked: str | None  # the branch, tag or commit that is asked for; None = the newest
    backend: str = "torch"  # whose weights are needed; NO_WEIGHTS = of none


def repository_of(model: ModelConfig | ModelSpec) -> Repository:
    """Return the model's own repository."""
    return Repository(model.name, model.revision, str(model.kwargs.get("backend", "torch")))


def outside_of(folder: Path, model: ModelConfig | ModelSpec) -> Iterator[Repository]:
    """Yield the repositories and folders outside the folder that its files refer to.

    They hold modules, base models of adapters, tokenizers, and code that is trusted.
    """
    for path in _modules_of(folder):
        here = folder / path
        if path.startswith(("..", "/")):
            yield Repository(os.path.normpath(here), None, NO_WEIGHTS)
        base = read_json(here / "adapter_config.json").get("base_model_name_or_path")
        if base:
            yield Repository(str(base), None)
        for settings in here.glob("sentence_*_config.json"):
            tokenizer = read_json(settings).get("tokenizer_name_or_path")
            if tokenizer:
                yield Repository(str(tokenizer), None, NO_WEIGHTS)
    for _, name in _code_of(folder) if model.trust_remote_code else ():
        if "--" in name:
            yield Repository(name.rpartition("--")[0], None, NO_WEIGHTS)


# --- whether they fit the config


def check_model_files(config: Config, folder: str | None) -> list[tuple[str, str]]:
    """Check the files in the folder, and return warnings, each as (what is wrong, what to do).

    None for a plug-in or a model that is not here yet. Raises Halt (78) for the first fault.
    """
    if not folder or config.model.is_plugin:
        return []
    model = config.model
    here = Path(folder)
    warnings = list[tuple[str, str]]()
    saved = read_json(here / _ST_CONFIG)
    code = check_code(here, model)
    _refuse_wrong_kind(model, _read_modules(here), saved)
    if code and model.trust_remote_code is False:
        what = (
            f"the Python code of {model.name} ({code}) is left out, because "
            "model.trust_remote_code is false"
        )
        warnings.append((what, "compare some vectors with the author's, by model.expect"))
    encodes = {name: config.effective_encode(name) for name in config.outputs}
    heeds_task = model.trust_remote_code is True and bool(code)
    for path, kind in _modules_of(here).items():
        name = _class_name(kind)
        if name == "Dense" and not model.trust_remote_code:
            _refuse_activation(model, here, path)
        elif name in _ROUTERS:
            _refuse_undecided_route(model, here, path, encodes)
            heeds_task = True
    return warnings + list(_check_prompts(model, saved, encodes, heeds_task=heeds_task))


def _check_prompts(
    model: ModelConfig,
    saved: Mapping[str, Any],
    encodes: Mapping[str, EncodeConfig],
    *,
    heeds_task: bool,
) -> Iterator[tuple[str, str]]:
    """Yield warnings about prompts and tasks.

    Raises Halt (78) for the name of a prompt that the model does not have. `heeds_task` says
    whether the model's own code or a Router may read the task.
    """
    known = _mapping(saved.get("prompts"))
    if not any(known.get(name) for name in _OWN_PROMPTS):
        known = {name: text for name, text in known.items() if name not in _OWN_PROMPTS}
    known |= _mapping(model.kwargs.get("prompts"))
    names = ", ".join(repr(name) for name, text in known.items() if text)
    asked: dict[str, Any] = {
        f"encode.prompt_name of {name}": each.prompt_name for name, each in encodes.items()
    }
    asked["model.kwargs.default_prompt_name"] = model.kwargs.get("default_prompt_name")
    for key, name in asked.items():
        if name is not None and name not in known:
            raise config_error(
                f"{key}: the model {model.name} has no prompt {name!r}",
                "Set it to one that the model has; or take it out, and set encode.prompt to the "
                'text itself, "" for none.',
                why=f"it has {', '.join(map(repr, known)) or 'none'}",
            )
    default = str(model.kwargs.get("default_prompt_name") or saved.get("default_prompt_name") or "")
    without = list[str]()  # outputs with no prompt
    idle = list[str]()  # outputs whose task changes nothing
    for output, encode in encodes.items():
        if encode.prompt is not None or encode.prompt_name is not None:
            continue
        if encode.task is None and "task" not in encode.kwargs:
            without.append(output)
        elif not heeds_task and (known.get(encode.task or default) or "") == (
            known.get(default) or ""
        ):
            idle.append(output)
    if names and without and not default:
        what = (
            f"{listed(without, 3)}: the model {model.name} has prompts ({names}), and none is put "
            "before the texts"
        )
        mend = (
            'set encode.prompt_name to one of them, or encode.task; encode.prompt: "" says that '
            "none is wanted"
        )
        yield what, mend
    if idle:
        what = f"{listed(idle, 3)}: the model {model.name} has no prompt and no route for the task"
        mend = f"set encode.prompt_name to one of its prompts ({names})"
        yield what, mend if names else "leave encode.task out"


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings in a list or mapping, or in those within it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _strings([*value.values()])
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def check_code(folder: Path, model: ModelConfig | ModelSpec) -> str:
    """Return which Python files come with the model or its base: `modeling_x.py of owner/name`.

    Empty if none does. Raises Halt (78) if the config does not say whether to run them, or if files
    of the folder are pointers of Git LFS.
    """
    _refuse_pointers(model, folder)
    places = dict[str, None]()  # in order, each once
    names = dict[str, None]()
    for place, name in _code_of(folder):
        repository, _, inner = name.rpartition("--")
        file = f"{inner.rpartition('.')[0] or inner}.py"
        places[place] = None
        names[f"{file} of {repository}" if repository else file] = None
    code = listed(list(names), 6)
    if code and model.trust_remote_code is None:
        raise config_error(
            f"{model.name} brings Python code ({code}), and model.trust_remote_code does not say "
            "whether to run it",
            _either_way(model, (folder / next(iter(places))).parent),
            why=f"named in {listed(list(places), 4)}; without that code "
            "transformers takes its own class, and the vectors may be others than the author's",
        )
    return code


def _either_way(model: ModelConfig | ModelSpec, folder: Path) -> str:
    """Say what to write in the config to run the code of the model in `folder`, or to leave it."""
    config = read_json(folder / "config.json")
    install = install_for(str(config.get("transformers_version") or "4"))
    line = kwargs_without_code(folder, model.kwargs)
    more = f" and `{line}`" if line else ""
    if "is_causal" in line:
        more += " (is_causal: true, if in that code a token sees only those before it)"
    return (
        "Read that code. Then set `model.trust_remote_code: true` to run it with the versions that "
        f"it was written for ({install}); or `model.trust_remote_code: false`{more} to take the "
        "class of transformers on purpose."
    )


def _code_of(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (file that names it, class) of each piece of code that comes with the model.

    Such as `("config.json", "modeling_x.XModel")`, or `"owner/name--modeling_x.XModel"` for code of
    another repository.
    """
    for path, kind in _modules_of(folder).items():
        for place in (os.path.normpath(f"{path}/{name}") for name in _FILES_WITH_AUTO_MAP):
            for name in _strings(read_json(folder / place).get("auto_map")):
                yield place, name
        if kind and not kind.startswith("sentence_transformers."):
            yield "modules.json", kind


def _refuse_pointers(model: ModelConfig | ModelSpec, folder: Path) -> None:
    """Refuse files of a Git checkout whose content Git LFS has not fetched."""
    found = list[str]()
    for path in _files_of(folder):
        with suppress(OSError), path.open("rb") as file:
            if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                found.append(str(path.relative_to(folder)))
    if found:
        raise config_error(
            f"{model.name}: pointers of Git LFS stand in the place of files: {listed(found, 4)}",
            f"In {folder} run `git lfs pull`; or download the model again.",
            why="the checkout has not fetched the files themselves",
        )


def _refuse_wrong_kind(
    model: ModelConfig, modules: list[dict[str, Any]], saved: dict[str, Any]
) -> None:
    """Refuse a model of another library's class, and one whose pooling is said nowhere, or twice.

    `modules` are those of modules.json, `saved` is config_sentence_transformers.json.
    """
    kind = saved.get("model_type", _MODEL_CLASS)
    if kind != _MODEL_CLASS:
        raise config_error(
            f"{model.name} is a model of the class {kind}, not {_MODEL_CLASS}",
            f"Choose an embedding model as model.name, or encode with {kind} in a plug-in encoder.",
            why=f'{_ST_CONFIG} says "model_type": "{kind}"; its last layers would be left out',
        )
    if not modules and model.pooling is None:
        raise config_error(
            f"{model.name} does not say how the vectors of its tokens become one: it has no "
            "modules.json",
            "Set model.pooling to mean, cls, lasttoken or max, as the model's author says.",
            why="sentence-transformers would make up a pooling, which may not be that of the "
            "model's training",
        )
    if modules and model.pooling is not None:
        raise config_error(
            f"model.pooling is {model.pooling}, but {model.name} has a modules.json, which says "
            "how it pools",
            "Leave model.pooling out.",
        )


def _refuse_activation(model: ModelConfig, folder: Path, path: str) -> None:
    """Refuse a Dense layer whose activation function is the model's own code."""
    name = read_json(folder / path / "config.json").get("activation_function")
    if isinstance(name, str) and not name.startswith("torch."):
        raise config_error(
            f"{model.name} has a Dense layer with the activation {name}, which is not part of "
            "torch",
            "If you trust it, set model.trust_remote_code to true; or choose another model.",
            why=f"{path}/config.json names it; without model.trust_remote_code "
            "sentence-transformers puts Tanh in its place",
        )


def _refuse_undecided_route(
    model: ModelConfig, folder: Path, path: str, encodes: Mapping[str, EncodeConfig]
) -> None:
    """Refuse a Router whose routes differ, if an output does not say which it takes."""
    name, saved = _read_router(folder / path)
    place = os.path.normpath(f"{path}/{name}")
    routes = _mapping(saved.get("structure"))
    mappings = _mapping(_mapping(saved.get("parameters")).get("route_mappings"))
    # If the kind of input decides, it is always text.
    by_input = "text" in routes or "(None, 'text')" in mappings or "(None, None)" in mappings
    if by_input or len({json.dumps(route) for route in routes.values()}) < 2:
        return
    ways = " or ".join(
        f"encode.task: {name}" if name in _OWN_PROMPTS else f"encode.kwargs: {{task: {name}}}"
        for name in routes
    )
    for output, encode in encodes.items():
        task = encode.kwargs.get("task", encode.task)
        if task in routes or any(str(key).startswith(f"({task!r}, ") for key in mappings):
            continue
        raise config_error(
            f"output {output}: {model.name} encodes by different routes "
            f"({listed(list(routes), 6)}), and encode.task is {task or 'not set'}",
            f"Set {ways}; under outputs.{output} for this output alone.",
            why=f"{place} has the routes",
        )
