"""Holds what a model's files say about themselves against what the config asks for; doctor, plan and run ask here.

A finite vector of the wrong model is the worst result, because no check of vectors sees it. What the files show is
refused here, before a worker is started; what only loading shows is in `chunkvisor_worker.loaded`.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunkvisor.config.model import Config
from chunkvisor.errors import Halt, config_error
from chunkvisor.units import listed
from chunkvisor_worker.contract.files import read_bounded

_OURS = "SentenceTransformer"
_BUILT_IN = ("query", "document")
"""Prompts that every model has, empty if its files say nothing (`_default_prompts` of sentence-transformers 6.2)."""
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
    files = _Files(config, Path(folder))
    checks = (_other_class, _no_pooling, _undecided_code, _untrusted_activation, _undecided_route, _unknown_prompts)
    return ModelFindings(tuple(fault for check in checks for fault in check(files)), tuple(_warnings(files)))


def refuse_wrong_model(config: Config, folder: str | None) -> None:
    """Raise Halt (78) for the first fault that the files in the folder show."""
    for fault in check_model_files(config, folder).faults:
        raise fault


@dataclass(frozen=True, slots=True)
class _Files:
    """The JSON files of a model's folder, and what the config asks for."""

    config: Config
    folder: Path

    def read(self, path: str) -> Any:
        """Read a file; None if it is missing or not JSON."""
        try:
            return json.loads(read_bounded(self.folder / path) or b"")
        except (OSError, ValueError):
            return None

    def mapping(self, path: str) -> dict[str, Any]:
        """Read a JSON object; empty if there is none."""
        found = self.read(path)
        return found if isinstance(found, dict) else {}

    @property
    def name(self) -> str:
        """Return the model's name in the config."""
        return self.config.model.name

    @property
    def modules(self) -> list[dict[str, Any]] | None:
        """Return the entries of modules.json; None if it is missing or not a list."""
        modules = self.read("modules.json")
        return [each for each in modules if isinstance(each, dict)] if isinstance(modules, list) else None

    @property
    def saved(self) -> dict[str, Any]:
        """Return what was saved with the model: its class, its prompts."""
        return self.mapping("config_sentence_transformers.json")

    def of_kind(self, kind: str) -> Iterator[str]:
        """Yield the paths of the modules of a class."""
        for module in self.modules or ():
            if str(module.get("type", "")).rpartition(".")[2] == kind:
                yield str(module.get("path", ""))

    def code(self) -> list[tuple[str, str]]:
        """Return (file that names it, file of the code) of each piece of code that the model brings."""
        modules, found = self.modules or [], list[tuple[str, str]]()
        first = str(modules[0].get("path", "")) if modules else ""
        for path in dict.fromkeys(f"{folder}/{name}".lstrip("/") for folder in ("", first) for name in _CODE):
            auto_map = self.mapping(path).get("auto_map")
            for value in auto_map.values() if isinstance(auto_map, dict) else ():
                # A list has a slow tokenizer and a fast one.
                names = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]
                found += [(path, f"{name.rpartition('.')[0] or name}.py") for name in names]
        kinds = [str(module.get("type", "")) for module in modules]
        own = [kind for kind in kinds if kind and not kind.startswith("sentence_transformers.")]
        return found + [("modules.json", f"{kind.rpartition('.')[0] or kind}.py") for kind in own]

    @property
    def prompts(self) -> dict[str, str] | None:
        """Return the prompts saved with the model and those of `model.kwargs`; None if the files do not tell."""
        saved, given = self.saved.get("prompts") or {}, self.config.model.kwargs.get("prompts") or {}
        told = isinstance(self.read("config_sentence_transformers.json"), dict)
        if not told or not isinstance(saved, Mapping) or not isinstance(given, Mapping):
            return None
        return {**saved, **{name: str(text) for name, text in given.items()}}


def _other_class(files: _Files) -> Iterator[Halt]:
    kind = files.saved.get("model_type", _OURS)
    if kind != _OURS:
        yield config_error(
            f"{files.name} is a model of the class {kind}, not {_OURS}",
            why=f'config_sentence_transformers.json says "model_type": "{kind}"; its last layers would be left out',
            remedy=f"choose an embedding model as model.name, or encode with {kind} in a plug-in encoder",
        )


def _no_pooling(files: _Files) -> Iterator[Halt]:
    """Refuse a model for which nothing says how its token vectors become one, or two things do."""
    pooling = files.config.model.pooling
    if files.modules is None and pooling is None:
        yield config_error(
            f"{files.name} does not say how the vectors of its tokens become one: it has no modules.json",
            why="sentence-transformers would make up a pooling, which may not be that of the model's training",
            remedy="set model.pooling to mean, cls, lasttoken or max, as the model's author says",
        )
    if files.modules is not None and pooling is not None:
        what = f"model.pooling is {pooling}, but {files.name} has a modules.json, which says how it pools"
        yield config_error(what, remedy="leave model.pooling out")


def _undecided_code(files: _Files) -> Iterator[Halt]:
    if files.config.model.trust_remote_code is None and (found := files.code()):
        names = listed(list(dict.fromkeys(name for _, name in found)), 6)
        yield config_error(
            f"{files.name} brings Python code ({names}), and model.trust_remote_code does not say whether to run it",
            why=f"{listed([place for place, _ in found], 4)} names it; without that code transformers takes its own "
            "class, and the vectors may be others than the author's",
            remedy="read that code; then set model.trust_remote_code to true to run it, or to false to take the class "
            "of transformers on purpose",
        )


def _untrusted_activation(files: _Files) -> Iterator[Halt]:
    for path in files.of_kind("Dense") if not files.config.model.trust_remote_code else ():
        name = files.mapping(f"{path}/config.json").get("activation_function")
        if isinstance(name, str) and not name.startswith("torch."):
            yield config_error(
                f"{files.name} has a Dense layer with the activation {name}, which comes from outside torch",
                why=f"{path}/config.json names it; without model.trust_remote_code sentence-transformers puts Tanh in "
                "its place",
                remedy="if you trust it, set model.trust_remote_code to true; or choose another model",
            )


def _undecided_route(files: _Files) -> Iterator[Halt]:
    """Refuse a Router with other modules for queries than for documents, if an output does not say which it has."""
    for path in files.of_kind("Router"):
        place = f"{path}/router_config.json".lstrip("/")
        saved = files.mapping(place)
        routes, parameters = saved.get("structure"), saved.get("parameters")
        if not isinstance(routes, dict) or len({json.dumps(route) for route in routes.values()}) < 2:
            continue
        mappings = parameters.get("route_mappings") if isinstance(parameters, dict) else None
        if any(str(key).startswith("(None, ") for key in mappings or ()):
            continue  # the kind of input decides, and it is always text
        for output in files.config.outputs:
            encode = files.config.effective_encode(output)
            if encode.task is None and "task" not in encode.kwargs:
                yield config_error(
                    f"output {output}: {files.name} encodes by different routes ({listed(list(routes), 6)}), and "
                    "encode.task does not say which to take",
                    why=f"{place} has the routes; a run would take the default one for every text",
                    remedy="set encode.task to query or document, for all outputs or under outputs."
                    f"{output}.encode; for a route of another name: encode.kwargs: {{task: NAME}}",
                )


def _unknown_prompts(files: _Files) -> Iterator[Halt]:
    known = files.prompts
    if known is None or files.config.model.trust_remote_code:  # its code may have more: the worker decides
        return
    for output in files.config.outputs:
        name = files.config.effective_encode(output).prompt_name
        if name is not None and name not in (*known, *_BUILT_IN):
            no_prompts = "its config_sentence_transformers.json names no prompts"
            yield config_error(
                f"output {output}: the model {files.name} has no prompt named {name!r}",
                why=f"its prompts are {', '.join(map(repr, known))}" if known else no_prompts,
                remedy="correct encode.prompt_name, or write the text itself: encode.prompt",
            )


def _warnings(files: _Files) -> Iterator[tuple[str, str]]:
    """Yield what may be meant: code that is left out, and prompts that no output uses."""
    model = files.config.model
    if model.trust_remote_code is False and (found := files.code()):
        names = listed(list(dict.fromkeys(name for _, name in found)), 6)
        what = f"the Python code of {files.name} ({names}) is left out, because model.trust_remote_code is false"
        yield what, "compare some vectors with the author's, by model.expect"
    names = ", ".join(repr(name) for name, text in (files.prompts or {}).items() if text)
    encodes = {name: files.config.effective_encode(name) for name in files.config.outputs}
    without = [name for name, e in encodes.items() if e.prompt is None and e.prompt_name is None and e.task is None]
    has_default = model.kwargs.get("default_prompt_name") or files.saved.get("default_prompt_name")
    if names and without and not has_default:
        yield (
            f"{listed(without, 3)}: the model {files.name} has prompts ({names}), and none is put before the texts",
            'set encode.prompt_name to one of them, or encode.task; encode.prompt: "" says that none is wanted',
        )
