"""A config file and its --set overrides -> a validated Config, or one message with everything that is wrong.

The YAML is read as plain values that remember their lines; `with_values` sets single keys in such a text.
"""

import copy
import difflib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from chunkvisor.config.choices import AS_PARQUET, is_secret
from chunkvisor.config.model import Config, EncodeConfig, ModelConfig
from chunkvisor.errors import Halt, config_error
from chunkvisor.units import did_you_mean

Key = tuple[str | int, ...]
"""Where a value stands: keys of mappings and positions in lists, from the top."""

_TAG = "tag:yaml.org,2002:"
_SIZE_LIMIT_BYTES = 1 << 20
_SECRET_KEYS = frozenset({"env", "notify"})
_CUT = "cut long texts into pieces in the source, one a row; a run says how many it has cut off"

GONE: dict[tuple[str, ...], str] = {
    ("model", "backend"): (
        "torch computes; remove the key. For OpenVINO, use the plug-in encoder of examples/openvino/openvino_encoder.py"
    ),
    ("model", "dtype", "int8"): (
        "write float32 or bfloat16, or use a plug-in encoder. Files in int8 are made by outputs.NAME.dtype"
    ),
    ("engine", "shared"): "what workers need and make is sent from machine to machine; remove the key",
    ("ingest", "head"): "a run reads its sources to the end before it encodes; remove the key",
    ("encode", "long"): _CUT,
    ("encode", "overlap"): _CUT,
    ("identity",): (
        "a run notes other versions of the libraries, and the manifest names them all; remove the key. To keep to one "
        "set of versions, pin them in the environment"
    ),
    ("upload",): "copy the finished files with `aws s3 cp`, or with `hf upload`",
    ("source", "database"): AS_PARQUET[0].lower() + AS_PARQUET[1:].removesuffix("."),
}
"""Keys of earlier versions, or keys and one of their values, each with what to do instead."""

_WORDS = {
    "bool_type": "true or false",
    "string_type": "text",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "text, or a list of texts",
}
"""Types of error of pydantic -> what the value should be."""


@dataclass(slots=True)
class Document:
    """What a YAML text says, and where."""

    value: Any = None
    lines: dict[Key, int] = field(default_factory=dict)
    """Line of each key and list item, from 1."""
    problems: list[tuple[int, str]] = field(default_factory=list)
    """(line, sentence) if the text cannot be read, and for each key that stands twice."""


class _Loader(yaml.SafeLoader):
    """Reads YAML 1.1 less what surprises in a config: dates stay text, and so do 010 (8 in YAML) and 1:30 (90)."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as PyYAML has it
        first: [(tag, pattern) for tag, pattern in found if tag.removeprefix(_TAG) in ("bool", "null", "merge")]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(f"{_TAG}int", re.compile(r"[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    f"{_TAG}float",  # 1e-5 too, which YAML 1.1 takes for text
    re.compile(r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9][0-9_]*(?=[eE]))([eE][-+]?[0-9]+)?$|[-+]?\.inf$|\.nan$"),
    list("-+0123456789."),
)


def parse(text: str, at: Key = ()) -> Document:
    """Read the document in the text, whose value is to stand at this key. No value is repeated: it may be a secret."""
    document = Document()
    try:
        loader = _Loader(text)
        if (node := loader.get_single_node()) is not None:
            _note(document, node, at, set())
            document.value = loader.construct_document(node)
    except (yaml.YAMLError, RecursionError, ValueError, KeyError) as error:
        why = (
            getattr(error, "problem", None) or "it is nested too deeply, or has a character or a tag that does not fit"
        )
        begin, mark = getattr(error, "context_mark", None), getattr(error, "problem_mark", None)
        column = f" (column {mark.column + 1})" if mark else ""
        begun = f", {getattr(error, 'context', '')} from line {begin.line + 1} on" if begin else ""
        line = mark.line if mark else text.count("\n", 0, getattr(error, "position", 0))
        document.problems.append((line + 1, f"not valid YAML: {why}{column}{begun}"))
    return document


def _note(document: Document, node: yaml.Node, key: Key, seen: set[yaml.Node]) -> None:
    """Note the lines of all that is in the node, and make all of its keys text."""
    if isinstance(node, yaml.ScalarNode):
        # A number of `env` keeps its digits: 9.10 is not 9.1 to whoever reads the variable.
        if key[:1] == ("env",) and node.tag in (f"{_TAG}int", f"{_TAG}float"):
            node.tag = f"{_TAG}str"
        return
    if node in seen:  # what an alias repeats has its place where it is anchored
        return
    seen.add(node)
    for position, item in enumerate(node.value):
        name_node, value_node = item if isinstance(node, yaml.MappingNode) else (item, item)
        name: str | int = position
        line = int(name_node.start_mark.line) + 1
        if isinstance(node, yaml.MappingNode):
            if name_node.tag == f"{_TAG}merge" or not isinstance(name_node, yaml.ScalarNode):
                continue
            name_node.tag = f"{_TAG}str"
            name = name_node.value
            if before := document.lines.get((*key, name)):
                dotted = ".".join(map(str, (*key, name)))
                sentence = f"{dotted}: this key stands twice, in lines {before} and {line}; keep one"
                document.problems.append((line, sentence))
        document.lines[*key, name] = line
        _note(document, value_node, (*key, name), seen)


def with_values(text: str, values: Mapping[tuple[str, str], str | int]) -> str | None:
    """Set these keys (section, key) in the text; None if its form does not allow it.

    Comments, order and quotes stay. The result is parsed again: it says what the text said, but for these keys.
    """
    wanted = parse(text).value
    for (section, key), value in values.items():
        if not isinstance(wanted, dict) or not isinstance(wanted.get(section), dict | None):
            return None
        wanted[section] = {**(wanted.get(section) or {}), key: value}
        root = _Loader(text).get_single_node()
        assert root is not None
        found = {name.value: node for name, node in root.value}.get(section)
        if found is None:
            text += f"\n{section}:\n  {key}: {value}\n"
            continue
        start, end, added = found.start_mark.index, found.start_mark.index, f"{key}: {value}"
        if isinstance(found, yaml.ScalarNode):  # null: all of its keys are commented out
            added, end = f"\n  {added}", found.end_mark.index
        elif at := {name.value: node for name, node in found.value}.get(key):
            start, end, added = at.start_mark.index, at.end_mark.index, str(value)
        elif found.flow_style:
            start, end, added = start + 1, end + 1, added + ", " * bool(found.value)
        else:
            added += f"\n{' ' * found.start_mark.column}"
        text = text[:start] + added + text[end:]
    result = parse(text)
    return text if result.value == wanted and not result.problems else None


Given = StrEnum("Given", ["FILE", "OPTIONS", "ARGUMENTS"])
"""How a config was given: by OPTIONS of `chunkvisor encode`, by ARGUMENTS of `chunkvisor.encode`."""


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
        """Copy it with a separate workdir, for a trial of this many rows."""
        workdir = self.config.workdir
        separate = workdir.with_name(f"{workdir.name}-first-{max_rows}")
        return replace(self, config=self.config.model_copy(update={"workdir": separate, "reuse_from": ()}))


def load(path: Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read and validate the file. Raises Halt (exit 78) that lists all problems, each with its line or --set."""
    try:
        with open(path, "rb") as file:
            data = file.read(_SIZE_LIMIT_BYTES + 1)
        if len(data) > _SIZE_LIMIT_BYTES:
            raise ValueError(f"it is larger than {_SIZE_LIMIT_BYTES:,} bytes, and a config is not")
        document = parse(data.decode("utf-8-sig"))
    except FileNotFoundError:
        near = difflib.get_close_matches(path.name, [each.name for each in path.parent.glob("*.y*ml")], 1)
        hint = f"did you mean {path.with_name(near[0])}?" if near else "`chunkvisor init` writes a config to start from"
        raise _wrong_config([f"{path}: there is no such file; {hint}"]) from None
    except UnicodeDecodeError:
        raise _wrong_config([f"{path}: not UTF-8 text; save the file in this encoding"]) from None
    except (OSError, ValueError) as error:  # a folder, a name that no file can have
        raise _wrong_config([f"{path}: cannot be read: {error}"]) from None
    if not isinstance(document.value, dict):
        problems = [f"{path}:{line}: {sentence}" for line, sentence in document.problems]
        hint = "if it is a source, use `chunkvisor encode`; `chunkvisor init` writes a config to edit"
        raise _wrong_config(problems or [f"{path}: the file has no keys and values; {hint}"])
    folder = path.absolute().parent
    config = _validated(str(path), document, overrides, folder)
    return LoadedConfig(config, path.absolute(), folder, tuple(overrides))


def from_values(values: Mapping[str, Any], folder: Path, overrides: Sequence[str] = ()) -> Config:
    """Make a Config of plain values, for callers without a file. Raises Halt as `load` does, without lines."""
    return _validated("", Document(copy.deepcopy(dict(values))), overrides, folder)


def in_sections(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Sort values such as `dtype` and `normalize` into the sections `model` and `encode`, which have such keys."""
    kinds: dict[str, type[BaseModel]] = {"model": ModelConfig, "encode": EncodeConfig}
    found = {name: {key: given[key] for key in kind.model_fields if key in given} for name, kind in kinds.items()}
    found["encode"].pop("kwargs", None)  # the argument `kwargs` is that of the model
    return found


def _all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield all valid keys, such as outputs.*.column."""
    for name, info in model.model_fields.items():
        yield f"{prefix}{name}"
        below = f"{prefix}{name}.*." if get_origin(info.annotation) is dict else f"{prefix}{name}."
        for kind in (info.annotation, *get_args(info.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _all_keys(kind, below)


def without_secret(text: str) -> str:
    """Hide the value of a KEY=VALUE that may be a secret."""
    dotted, equals, value = text.partition("=")
    in_mapping = value.lstrip().startswith("{") and is_secret(value)  # such as model.kwargs={token: SECRET}
    secret = dotted.partition(".")[0] in _SECRET_KEYS or is_secret(dotted.rpartition(".")[2]) or in_mapping
    return f"{dotted}=…" if equals and secret else text


def _wrong_config(problems: Sequence[str]) -> Halt:
    # A lone surrogate from an escape in the YAML could not be printed.
    what = "\n".join(problems).encode(errors="backslashreplace").decode()
    return config_error(what, remedy="Correct this, then run the same command again.")


def _validated(name: str, document: Document, overrides: Sequence[str], folder: Path) -> Config:
    """Apply the overrides and validate; `name` is that of the file, empty for values that came from no file."""
    places: dict[Key, int | str] = dict(document.lines)
    problems: list[tuple[int | str, str]] = list(document.problems)
    for text in overrides:
        shown = without_secret(text)
        place = "--set " + (shown if shown != text else shlex.quote(_shortened(text)))
        if sentence := _override(document, places, place, text):
            problems.append((place, sentence))
    try:
        config = Config.model_validate(document.value, context={"folder": str(folder)})
    except ValidationError as error:
        problems += _problems(error, document.value, places)
    if not problems:
        return config
    lines = []
    for where, sentence in sorted(problems, key=lambda each: each[0] if isinstance(each[0], int) else 1 << 30):
        located = where if isinstance(where, str) else f"{name}:{where}" if name and where else name
        lines.append(f"{located}: {sentence}" if located else sentence)
    raise _wrong_config(list(dict.fromkeys(lines)))


def _override(document: Document, places: dict[Key, int | str], place: str, text: str) -> str:
    """Apply one KEY=VALUE to the values; returns what is wrong with it."""
    dotted, equals, value_text = text.partition("=")
    key = tuple(dotted.split("."))
    if not equals or not all(key):
        return "write it as --set KEY=VALUE, such as --set chunk.size=200"
    given = parse(value_text, key)
    if given.problems:
        return given.problems[0][1]
    section = document.value
    for depth, part in enumerate(key[:-1], start=1):
        if section.get(part) is None:
            section[part] = {}
        if not isinstance(section[part], dict):
            return f"{'.'.join(key[:depth])} is a single value or a list and has no keys"
        section = section[part]
        places.setdefault(key[:depth], place)
    section[key[-1]] = given.value
    for known in [known for known in places if known[: len(key)] == key]:
        del places[known]
    places[key] = place
    return ""


def _problems(error: ValidationError, values: object, places: Mapping[Key, int | str]) -> list[tuple[int | str, str]]:
    """Put the errors of pydantic into words: the place of each key, and the sentence."""
    found: dict[Key, list[str]] = {}
    for item in error.errors(include_url=False):
        key, kind, value, context = item["loc"], item["type"], item["input"], item.get("ctx", {})
        # pydantic's mark if the name of a key is wrong, not its value; a config may have a key of that name as well.
        is_name = len(key) > 2 and key[-1] == "[key]" and kind != "extra_forbidden"
        if is_name or context.get("of_section"):
            key = key[:-1]
        elif kind not in ("extra_forbidden", "missing"):
            key = key[: _depth(values, key)]
        shown = "this" if is_name else "the value" if key[:1] and key[0] in _SECRET_KEYS else _shown(value)
        is_query = key[-1:] == ("source",) and isinstance(value, dict)
        sentences = found.setdefault(key, [])
        if kind == "extra_forbidden":
            sentences.append(_unknown(tuple(map(str, key))))
        elif kind == "missing":
            sentences.append("this key is required")
        elif kind == "refused":
            said = str(context["sentence"])
            sentences.append(f"{shown} {said}" if said.startswith(("should", "has")) else said)
        elif instead := GONE.get(("source", "database") if is_query else (*map(str, key), str(value))):
            sentences.append(f"{shown} is gone: {instead}")
        else:
            what = _WORDS.get(kind) or item["msg"].removeprefix("Input should be ")
            what += "; text needs quotes here" * (kind == "string_type" and isinstance(value, bool | int | float))
            # Of a value that may be of several kinds, there is an error for each.
            sentences[:] = [f"{sentences[0]}, or {what}" if sentences else f"{shown} should be {what}"]
    problems = []
    for key, sentences in found.items():
        dotted = ".".join(part if part.isprintable() else json.dumps(part) for part in map(str, key))
        place = next((places[key[:end]] for end in range(len(key), 0, -1) if key[:end] in places), 0)
        problems += [(place, f"{_shortened(dotted)}: {each}" if dotted else each) for each in sentences]
    return problems


def _depth(values: Any, key: Key) -> int:
    """Count the parts of a key that lead through the values: pydantic adds a mark for each kind that it has tried."""
    for depth, part in enumerate(key):
        is_in_list = isinstance(values, list) and isinstance(part, int)
        if not is_in_list and not (isinstance(values, dict) and part in values):
            return depth
        values = values[part]
    return len(key)


def _unknown(key: tuple[str, ...]) -> str:
    is_of_output = key[0] == "outputs" and len(key) > 2
    if instead := GONE.get(key[2:] if is_of_output else key):
        return f"this key is gone: {instead}"
    asked = ".".join(("outputs", "*", *key[2:]) if is_of_output else key)
    return f"unknown key; {did_you_mean(asked.lower(), list(_all_keys(Config)), 'valid are')}"


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        return _shortened(json.dumps(value, ensure_ascii=False))
    return {"dict": "this mapping", "list": "this list"}.get(type(value).__name__, "this object")


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:50]}…{text[-20:]}"
