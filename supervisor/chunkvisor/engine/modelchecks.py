"""What a model's files say about themselves, against what the config asks for; doctor, plan and run all check by this.

A finite vector of the wrong model is the worst result, because no check of vectors sees it. What the files show is
refused here, before a worker is started; what only loading shows is in `chunkvisor_worker.loaded`. No machine-learning
library is imported.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunkvisor.config.model import Config, EncodeConfig, ModelConfig
from chunkvisor.errors import Halt, config_error
from chunkvisor.units import listed
from chunkvisor_worker.contract.files import read_bounded

OUR_CLASS = "SentenceTransformer"
"""The one class of sentence-transformers that a run loads."""

_BUILT_IN = ("query", "document")
"""Prompts that every model of sentence-transformers has, empty if its files say nothing (`_default_prompts`, 6.2)."""

_CODE = ("config.json", "tokenizer_config.json", "processor_config.json")
"""Files with an `auto_map`: transformers looks there for Python code that comes with a model."""


@dataclass(frozen=True, slots=True)
class ModelFindings:
    """What is wrong with a model, and what a person should know about it."""

    faults: tuple[Halt, ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()
    """(what, what to do) each."""


def check_model_files(config: Config, folder: str | None) -> ModelFindings:
    """Check the files in the folder; nothing is found for a plug-in or a model that is not here yet. Raises nothing."""
    if folder is None or config.model.is_plugin:
        return ModelFindings()
    files = _Files(Path(folder), config)
    faults = [fault for check in _CHECKS for fault in check(files)]
    return ModelFindings(tuple(faults), (*_code_left_out(files), *_unchosen_prompts(files)))


def refuse_wrong_model(config: Config, folder: str | None) -> None:
    """Raises Halt (78) for the first fault that the files in the folder show."""
    for fault in check_model_files(config, folder).faults:
        raise fault


class _Files:
    """The JSON files of a model's folder, and what the config asks for."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder = folder
        self.config = config
        self.name = config.model.name
        modules = self.read("modules.json")
        self.modules = [each for each in modules if isinstance(each, dict)] if isinstance(modules, list) else None
        """None = there is no such file, or it is not a list."""
        self.saved = self.mapping("config_sentence_transformers.json")
        """What was saved with the model: its class, its prompts; empty if nothing was."""

    def read(self, path: str) -> Any:
        """The content of a file; None if it is missing or not JSON."""
        try:
            return json.loads(read_bounded(self.folder / path) or b"")
        except (OSError, ValueError):
            return None

    def mapping(self, path: str) -> dict[str, Any]:
        """The same of a JSON object, empty if there is none."""
        found = self.read(path)
        return found if isinstance(found, dict) else {}

    def of_kind(self, kind: str) -> Iterator[str]:
        """The paths, in the folder, of the modules of a class."""
        for module in self.modules or ():
            if str(module.get("type", "")).rpartition(".")[2] == kind:
                yield str(module.get("path", ""))


def _other_class(files: _Files) -> Iterator[Halt]:
    """The model was saved by another class, whose vectors sentence-transformers would replace by a made-up pooling."""
    kind = files.saved.get("model_type", OUR_CLASS)
    if kind != OUR_CLASS:
        yield config_error(
            f"{files.name} is a model of the class {kind}, not {OUR_CLASS}",
            why=f'config_sentence_transformers.json says "model_type": "{kind}"; loaded as a {OUR_CLASS}, its own last '
            "layers would be left out, and the mean of its tokens taken in their place",
            remedy=f"choose an embedding model as model.name, or encode with {kind} in a plug-in encoder: "
            "model.encoder, see docs/how-to/write-an-encoder.md",
        )


def _no_pooling(files: _Files) -> Iterator[Halt]:
    """Nothing says how a text's token vectors become one, or two things do."""
    pooling = files.config.model.pooling
    if files.modules is None and pooling is None:
        yield config_error(
            f"{files.name} does not say how the vectors of its tokens become one: it has no modules.json",
            why="sentence-transformers would make up a pooling (the mean, or the last token of a causal model), which "
            "may not be the one that the model was trained with",
            remedy="set model.pooling to mean, cls, lasttoken or max, as the model's author says",
        )
    if files.modules is not None and pooling is not None:
        yield config_error(
            f"model.pooling is {pooling}, but {files.name} has a modules.json, which says how it pools",
            remedy="leave model.pooling out",
        )


def _undecided_code(files: _Files) -> Iterator[Halt]:
    """The model brings code, and the config does not say whether to run it."""
    if files.config.model.trust_remote_code is not None:
        return
    found = list(_code_of(files))
    if found:
        where = listed([place for place, _ in found], 4)
        names = listed(list(dict.fromkeys(name for _, name in found)), 6)
        yield config_error(
            f"{files.name} brings Python code ({names}), and model.trust_remote_code does not say whether to run it",
            why=f"{where} names it; without that code transformers takes its own class, if it has one of that type, "
            "and the vectors may be others than the author's",
            remedy="read that code; then set model.trust_remote_code to true to run it, or to false to take the class "
            "of transformers on purpose",
        )


def _code_of(files: _Files) -> Iterator[tuple[str, str]]:
    """(file that names it, file of the code) of each piece of code that the model brings."""
    first = str(files.modules[0].get("path", "")) if files.modules else ""
    for folder in dict.fromkeys(["", first]):
        for name in _CODE:
            path = f"{folder}/{name}" if folder else name
            auto_map = files.mapping(path).get("auto_map")
            for reference in _references(auto_map):
                yield path, f"{reference.rpartition('.')[0] or reference}.py"
    for module in files.modules or ():
        kind = str(module.get("type", ""))
        if kind and not kind.startswith("sentence_transformers."):
            yield "modules.json", f"{kind.rpartition('.')[0] or kind}.py"


def _references(auto_map: Any) -> Iterator[str]:
    """Values of an `auto_map`: strings, or lists of them (a slow tokenizer and a fast one)."""
    values = auto_map.values() if isinstance(auto_map, dict) else ()
    for value in values:
        yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str))


def _untrusted_activation(files: _Files) -> Iterator[Halt]:
    """A Dense whose activation is not torch's: without trust the library puts Tanh in its place."""
    if files.config.model.trust_remote_code:
        return
    for path in files.of_kind("Dense"):
        name = files.mapping(f"{path}/config.json").get("activation_function")
        if isinstance(name, str) and not name.startswith("torch."):
            yield config_error(
                f"{files.name} has a Dense layer with the activation {name}, which comes from outside torch",
                why=f"{path}/config.json names it; without model.trust_remote_code sentence-transformers puts Tanh in "
                "its place",
                remedy="if you trust it, set model.trust_remote_code to true; or choose another model",
            )


def _undecided_route(files: _Files) -> Iterator[Halt]:
    """A Router with other modules for queries than for documents, and an output that does not say which it has."""
    for path in files.of_kind("Router"):
        place = f"{path}/router_config.json" if path else "router_config.json"
        saved = files.mapping(place)
        routes = saved.get("structure")
        if not isinstance(routes, dict) or len({json.dumps(route) for route in routes.values()}) < 2:
            continue
        parameters = saved.get("parameters")
        mappings = parameters.get("route_mappings") if isinstance(parameters, dict) else None
        if any(str(key).startswith("(None, ") for key in mappings or ()):
            continue  # the kind of input decides, and it is always text
        for output in files.config.outputs:
            encode = files.config.effective_encode(output)
            if encode.task is None and "task" not in encode.kwargs:
                names = listed([str(name) for name in routes], 6)
                yield config_error(
                    f"output {output}: {files.name} encodes by different routes ({names}), and encode.task does not "
                    "say which to take",
                    why=f"{place} has the routes; a run would take the default one for every text",
                    remedy="set encode.task to query or document, for all outputs or under outputs."
                    f"{output}.encode; for a route of another name: encode.kwargs: {{task: NAME}}",
                )


def _unknown_prompts(files: _Files) -> Iterator[Halt]:
    """An output asks for a prompt that the model does not have. If it brings code, the worker decides."""
    known = _prompts(files, files.config.model)
    if known is None or files.config.model.trust_remote_code:
        return
    for output in files.config.outputs:
        name = files.config.effective_encode(output).prompt_name
        if name is not None and name not in (*known, *_BUILT_IN):
            yield config_error(
                f"output {output}: the model {files.name} has no prompt named {name!r}",
                why=f"its prompts are {', '.join(map(repr, known))}"
                if known
                else "its config_sentence_transformers.json names no prompts",
                remedy="correct encode.prompt_name, or write the text itself: encode.prompt",
            )


_CHECKS: tuple[Callable[[_Files], Iterable[Halt]], ...] = (
    _other_class,
    _no_pooling,
    _undecided_code,
    _untrusted_activation,
    _undecided_route,
    _unknown_prompts,
)


def _code_left_out(files: _Files) -> Iterator[tuple[str, str]]:
    """The model's own code is not run, as the config says: its vectors may be others than the author's."""
    if files.config.model.trust_remote_code is False and (found := list(_code_of(files))):
        names = listed(list(dict.fromkeys(name for _, name in found)), 6)
        yield (
            f"the Python code of {files.name} ({names}) is left out, because model.trust_remote_code is false",
            "compare some vectors with the author's, by model.expect",
        )


def _unchosen_prompts(files: _Files) -> Iterator[tuple[str, str]]:
    """The model has prompts, and an output uses none of them."""
    prompts = {name: text for name, text in (_prompts(files, files.config.model) or {}).items() if text}
    if not prompts or files.config.model.kwargs.get("default_prompt_name") or files.saved.get("default_prompt_name"):
        return
    without = [name for name in files.config.outputs if not _chooses_prompt(files.config.effective_encode(name))]
    if without:
        names = ", ".join(map(repr, prompts))
        yield (
            f"{listed(without, 3)}: the model {files.name} has prompts ({names}), and none is put before the texts",
            'set encode.prompt_name to one of them, or encode.task; encode.prompt: "" says that none is wanted',
        )


def _chooses_prompt(encode: EncodeConfig) -> bool:
    return any(each is not None for each in (encode.prompt, encode.prompt_name, encode.task))


def _prompts(files: _Files, model: ModelConfig) -> dict[str, str] | None:
    """Those saved with the model and those of `model.kwargs`; None if the files do not tell."""
    saved, given = files.saved.get("prompts") or {}, model.kwargs.get("prompts") or {}
    listed_there = isinstance(files.read("config_sentence_transformers.json"), dict)
    if not listed_there or not isinstance(saved, Mapping) or not isinstance(given, Mapping):
        return None
    return {**saved, **given}
