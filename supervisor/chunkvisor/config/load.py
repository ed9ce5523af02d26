"""A config file and its --set overrides -> a validated Config, or one message with everything that is wrong.

What is valid, `model` decides; here are the line, the nearest valid key and the words.
"""

import copy
import difflib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from chunkvisor.config.model import Config, EncodeConfig, ModelConfig
from chunkvisor.config.suffixes import COMPRESSIONS, FORMATS
from chunkvisor.config.yaml import Document, Key, YamlError, parse
from chunkvisor.errors import Halt, config_error
from chunkvisor.units import did_you_mean

_SIZE_LIMIT_BYTES = 1 << 20
_SECRET_KEYS = frozenset({"env", "notify"})
"""Values under these may be secrets, and are not repeated in messages."""
_ANY = "*"  # stands for the name of an output in a key of the schema


class Given(StrEnum):
    """How a config was given: it decides what a person can do where it is refused."""

    FILE = "file"
    OPTIONS = "options"
    """Of `chunkvisor encode`."""
    ARGUMENTS = "arguments"
    """Of `chunkvisor.encode`."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A valid config and where it came from."""

    config: Config
    path: Path
    """Absolute."""
    folder: Path
    """Relative paths in the config start here."""
    overrides: tuple[str, ...]
    """KEY=VALUE each, as given."""
    given: Given = Given.FILE

    def trial(self, max_rows: int) -> "LoadedConfig":
        """The same with the workdir of a trial of so many rows, beside its own: neither is in the other's way."""
        workdir = self.config.workdir
        beside = workdir.with_name(f"{workdir.name}-first-{max_rows}")
        return replace(
            self, config=self.config.model_copy(update={"workdir": beside, "reuse_from": (), "upload": None})
        )


def load(path: Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read and validate the file. Raises Halt (exit 78) that lists all problems, each with its line or --set."""
    source = _Source(str(path))
    if path.suffix.lower() in FORMATS.keys() | COMPRESSIONS and path.is_file():
        command = f"chunkvisor encode {shlex.quote(str(path))} --column NAME --model MODEL -o OUT.npy"
        remedy = f"to encode this one file: {command}; or name it in a config, which `chunkvisor init` writes"
        raise config_error(f"{path} is a source, not a config", remedy=remedy)
    try:
        document = parse(_read(path))
    except YamlError as error:
        raise _halt([f"{source.name}:{error.line}: {error.sentence}"]) from None
    if document.value is None:
        raise _halt([f"{source.name}: the file is empty; `chunkvisor init` writes a config to start from"])
    if not isinstance(document.value, dict):
        raise _halt([f"{source.name}:1: the file must hold keys and values, such as `workdir: cache`"])
    source.take(document)
    for override in overrides:
        source.override(override)
    folder = path.absolute().parent
    config = source.validate(folder)
    return LoadedConfig(config, path.absolute(), folder, tuple(overrides))


def from_values(values: Mapping[str, Any], folder: Path, overrides: Sequence[str] = ()) -> Config:
    """A Config of plain values, for callers without a file. Raises Halt as `load` does, without lines."""
    source = _Source("")
    source.values = copy.deepcopy(dict(values))
    for override in overrides:
        source.override(override)
    return source.validate(folder)


def in_sections(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Values of keys such as `dtype` and `normalize` under the sections `model` and `encode`, which have such keys."""
    kinds: dict[str, type[BaseModel]] = {"model": ModelConfig, "encode": EncodeConfig}
    return {name: {key: given[key] for key in kind.model_fields if key in given} for name, kind in kinds.items()}


def _halt(problems: Sequence[str]) -> Halt:
    # A lone surrogate from an escape in the YAML could not be printed.
    what = "\n".join(problems).encode(errors="backslashreplace").decode()
    return config_error(what, remedy="correct this, then run the same command again")


def _read(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(_SIZE_LIMIT_BYTES + 1)
    except FileNotFoundError:
        near = difflib.get_close_matches(path.name, _yaml_files(path.parent), 1)
        hint = f"did you mean {path.with_name(near[0])}?" if near else "`chunkvisor init` writes a config to start from"
        raise _halt([f"{path}: there is no such file; {hint}"]) from None
    except IsADirectoryError:
        inside = _yaml_files(path)
        raise _halt([f"{path}: this is a folder" + (f"; did you mean {path / inside[0]}?" if inside else "")]) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise _halt([f"{path}: cannot be read: {reason}"]) from None
    if len(data) > _SIZE_LIMIT_BYTES:
        raise _halt([f"{path}: larger than {_SIZE_LIMIT_BYTES:,} bytes; this cannot be a config"])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _halt([f"{path}:{line}: not UTF-8 text; save the file in this encoding"]) from None


def _yaml_files(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.suffix in (".yaml", ".yml"))
    except OSError:
        return []


@dataclass(slots=True)
class _Source:
    """Values on their way to validation, each knowing its place."""

    name: str
    """Of the file; empty for values that came from no file."""
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Key, int | str] = field(default_factory=dict)
    """Line in the file, or the --set that gave the value."""
    written: dict[Key, str] = field(default_factory=dict)
    problems: list[tuple[int | str, str]] = field(default_factory=list)

    def take(self, document: Document) -> None:
        self.values = document.value
        self.places.update(document.lines)
        self.written = document.written
        self.problems.extend(document.problems)

    def override(self, text: str) -> None:
        """Apply one KEY=VALUE; what is wrong with it joins the problems."""
        dotted, equals, value_text = text.partition("=")
        secret = dotted.partition(".")[0] in _SECRET_KEYS
        place = "--set " + (f"{dotted}=…" if secret else shlex.quote(_shortened(text)))
        if not equals or not all(dotted.split(".")):
            self.problems.append((place, "write it as --set KEY=VALUE, such as --set chunk.size=200"))
            return
        try:
            document = parse(value_text)
        except YamlError as error:
            self.problems.append((place, error.sentence if not secret else "not valid YAML"))
            return
        self.problems.extend((place, sentence) for _, sentence in document.problems)
        outputs = self.values.get("outputs")
        key = _key_of(dotted, outputs if isinstance(outputs, dict) else {})
        if len(key) > 2 and key[0] == "outputs" and isinstance(outputs, dict) and key[1] not in outputs:
            hint = did_you_mean(key[1], outputs, "valid here")
            self.problems.append((place, f"there is no output {key[1]}; {hint}"))
            return
        section = self.values
        for depth, part in enumerate(key[:-1], start=1):
            if section.get(part) is None:
                section[part] = {}
            if not isinstance(section[part], dict):
                sentence = f"{'.'.join(key[:depth])} is a single value or a list, without keys of its own"
                self.problems.append((place, sentence))
                return
            section = section[part]
            self.places.setdefault(key[:depth], place)
        section[key[-1]] = document.value
        self.places = {known: place for known, place in self.places.items() if known[: len(key)] != key} | {key: place}
        self.written = {known: word for known, word in self.written.items() if known[: len(key)] != key}
        self.written |= {key + known: word for known, word in document.written.items()}

    def validate(self, folder: Path) -> Config:
        """The Config. Raises Halt with all problems."""
        env = self.values.get("env")
        if isinstance(env, dict):  # numbers as they were written: 9.10 is not 9.1 to whoever reads the variable
            numbers = [name for name, value in env.items() if type(value) in (int, float)]
            self.values["env"] = env | {name: self.written.get(("env", name), str(env[name])) for name in numbers}
        try:
            config = Config.model_validate(self.values, context={"folder": str(folder)})
        except ValidationError as error:
            self.problems.extend(self._problem(dict(item)) for item in error.errors(include_url=False))
        if self.problems:
            ordered = sorted(self.problems, key=lambda problem: problem[0] if isinstance(problem[0], int) else 1 << 30)
            raise _halt(list(dict.fromkeys(self._located(place) + sentence for place, sentence in ordered)))
        return config

    def _located(self, place: int | str) -> str:
        if isinstance(place, str):
            return f"{place}: "
        prefix = f"{self.name}:{place}" if place else self.name
        return f"{prefix}: " if prefix else ""

    def _problem(self, item: dict[str, Any]) -> tuple[int | str, str]:
        key: Key = item["loc"]
        context = item.get("ctx", {})
        is_name = False
        # pydantic's mark for the key of a mapping being wrong, not its value; a person may have written it, too.
        if len(key) > 2 and key[-1] == "[key]" and item["type"] != "extra_forbidden":
            key, is_name = key[:-1], True
        if context.get("of_section"):
            key = key[:-1]
        place = next((self.places[key[:end]] for end in range(len(key), 0, -1) if key[:end] in self.places), 0)
        shown = "this" if is_name else self._shown(key, item["input"])
        dotted = ".".join(_printable(str(part)) for part in key)
        return place, f"{dotted}: {self._sentence(item['type'], key, shown, item['input'], context)}"

    def _sentence(self, kind: str, key: Key, shown: str, value: Any, context: Mapping[str, Any]) -> str:
        if kind == "extra_forbidden":
            return "unknown key" + _suggestion(tuple(str(part) for part in key))
        if kind == "missing":
            return "this key is required"
        if kind == "refused":
            return str(context["sentence"])
        if kind == "too_large":
            return f"{shown} is too large; {context['most']} is the most"
        if kind == "expected":
            quotable = context["text"] and isinstance(value, bool | int | float) and key in self.written
            hint = f'; put it in quotes: "{self.written[key]}"' if quotable and key[0] not in _SECRET_KEYS else ""
            if context["text"] and not hint and isinstance(value, bool | dict):
                hint = "; text needs quotes here"
            return f"{shown} is not {context['what']}{hint}"
        names = [name[-1] for name in _schema() if name[:-1] == _generic(tuple(map(str, key)))]
        such = f", with keys such as {', '.join(names[:3])}" if names else ""
        return f"{shown} stands where a mapping is needed{such}"

    def _shown(self, key: Key, value: Any) -> str:
        if key[:1] and key[0] in _SECRET_KEYS and isinstance(value, str):
            return "the value"  # it may be a secret
        if isinstance(value, bool | int | float) and key in self.written:
            return _shortened(self.written[key])
        if value is None or isinstance(value, bool | int | float | str):
            return _shortened(json.dumps(value, ensure_ascii=False))
        kinds = {"dict": "this mapping", "list": "this list"}
        return kinds.get(type(value).__name__, f"an object of type {type(value).__name__}")


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:50]}…{text[-20:]}"


def _printable(text: str) -> str:
    return _shortened(text if text and text.isprintable() else json.dumps(text, ensure_ascii=False))


def _key_of(dotted: str, outputs: Mapping[str, Any]) -> tuple[str, ...]:
    """The parts of a dotted key; the name of an output may hold dots itself."""
    rest = dotted.removeprefix("outputs.")
    if rest != dotted:
        for name in sorted(outputs, key=len, reverse=True):
            if rest.startswith(f"{name}."):
                return ("outputs", name, *rest.removeprefix(f"{name}.").split("."))
            if rest == name:
                return ("outputs", name)
    return tuple(dotted.split("."))


def _schema(model: type[BaseModel] = Config, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All valid keys; outputs.*.column is ("outputs", "*", "column")."""
    for name, info in model.model_fields.items():
        yield (*prefix, name)
        named = [_ANY] if get_origin(info.annotation) is dict else []
        for kind in (info.annotation, *get_args(info.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _schema(kind, (*prefix, name, *named))


def dotted_keys() -> list[str]:
    """Every key of a single value as --set takes it, but for those of outputs: their names are in the file."""
    known = list(_schema())
    sections = {key[:-1] for key in known}
    return [".".join(key) for key in known if key not in sections and key[0] != "outputs"]


def _generic(key: tuple[str, ...]) -> tuple[str, ...]:
    return (key[0], _ANY, *key[2:]) if len(key) > 1 and key[0] == "outputs" else key


def _suggestion(key: tuple[str, ...]) -> str:
    """What was meant by an unknown key: the nearest sibling, else a key of that name in another section."""
    keys = list(_schema())
    section, name = _generic(key)[:-1], key[-1]
    siblings = [known[-1] for known in keys if known[:-1] == section]
    if tuple(name.split(".")) in keys:
        return f"; nest it: `{name.replace('.', ': {')}: …" + "}" * name.count(".") + "`"
    if near := difflib.get_close_matches(name.lower(), siblings, 1):
        return f"; did you mean {'.'.join((*key[:-1], near[0]))}?"
    elsewhere = difflib.get_close_matches(name.lower(), [known[-1] for known in keys], 1, cutoff=0.85)
    for known in keys:
        if elsewhere and known[-1] == elsewhere[0]:
            return f"; did you mean {'.'.join(known).replace(_ANY, '<name>')}?"
    return f"; valid here: {', '.join(siblings)}" if siblings else ""
