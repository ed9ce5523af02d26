"""Read a config file and its --set overrides into a validated Config.

If anything is wrong, one message names all of it, with the lines.
"""

import copy
import difflib
import io
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from chunkvisor.config.model import Config, EncodeConfig, ModelConfig
from chunkvisor.errors import Halt, config_error
from chunkvisor.units import did_you_mean, printable
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.secrets import hide, is_secret

Key = tuple[str | int, ...]
"""The way to a value from the top: keys of mappings and positions in lists, such as
`("outputs", "titles", "source", 0)`."""

# With it, PyYAML begins the names of types, such as tag:yaml.org,2002:int.
_TAG = "tag:yaml.org,2002:"
_SIZE_LIMIT_BYTES = 1 << 20
# Keys at the top whose values are never shown.
_SECRET_KEYS = frozenset({"env", "notify"})
_WORDS = {
    "bool_type": "true or false",
    "string_type": "text",
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "text, or a list of texts",
    "int_parsing": "an integer",
    "int_parsing_size": "a smaller number",
    "string_pattern_mismatch": "text without a NUL character",
}
"""Types of pydantic's errors -> what the value should be."""


class _Loader(yaml.SafeLoader):
    """Reads YAML 1.1 without what surprises in a config.

    Dates stay text, and so do 010 (8 in YAML) and 1:30 (90).
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012 - as PyYAML has it


for _first, _found in yaml.SafeLoader.yaml_implicit_resolvers.items():
    for _tag, _pattern in _found:
        if _tag.removeprefix(_TAG) in ("bool", "null", "merge"):
            _Loader.add_implicit_resolver(_tag, _pattern, [_first])
_Loader.add_implicit_resolver(
    f"{_TAG}int", re.compile(r"[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    f"{_TAG}float",  # 1e-5 too, which YAML 1.1 takes for text
    re.compile(
        r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9][0-9_]*(?=[eE]))([eE][-+]?[0-9]+)?$"
        r"|[-+]?\.inf$|\.nan$"
    ),
    list("-+0123456789."),
)


def parse(text: str, name: str, at: Key = ()) -> tuple[Any, dict[Key, str]]:
    """Read a YAML text: its value, and the place of each key and list item, such as `NAME:3`.

    The text is the value `at` a key, or a whole config. Raises Halt (78) if it is not valid YAML.
    """
    places: dict[Key, str] = {(): name}
    try:
        # of a stream, so that errors do not quote a line: it may hold a secret
        loader = _Loader(io.StringIO(text))
        node = loader.get_single_node()
        if node is None:
            return None, places
        _collect_places(node, at, places)
        return loader.construct_document(node), places
    except (yaml.YAMLError, RecursionError, ValueError, KeyError) as error:
        why = "it is nested too deeply, or has a tag that does not fit"
        if isinstance(error, yaml.YAMLError):
            why = " ".join(str(error).replace('in "<file>", ', "in ").split())
        raise _wrong_config(f"{name}: not valid YAML: {why}") from None


def _collect_places(node: yaml.Node, key: Key, places: dict[Key, str]) -> None:
    """Add the places of all that is in the node, and make all of its keys text."""
    if isinstance(node, yaml.ScalarNode):
        # A number of `env` keeps its digits: 9.10 is not 9.1 to whoever reads the variable.
        if key[:1] == ("env",) and node.tag in (f"{_TAG}int", f"{_TAG}float"):
            node.tag = f"{_TAG}str"
    elif isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            places[*key, position] = f"{places[()]}:{item.start_mark.line + 1}"
            _collect_places(item, (*key, position), places)
    else:
        for name, value in node.value:
            if name.tag == f"{_TAG}merge" or not isinstance(name, yaml.ScalarNode):
                continue
            name.tag = f"{_TAG}str"
            below = (*key, name.value)
            if below in places:
                again = f"the key {name.value} stands at {places[below]} and again"
                raise yaml.MarkedYAMLError(problem=again, problem_mark=name.start_mark)
            places[below] = f"{places[()]}:{name.start_mark.line + 1}"
            _collect_places(value, below, places)


def with_values(text: str, values: Mapping[str, str | int]) -> str | None:
    """Set keys such as `model.dtype` in a YAML text; None if its form does not allow it.

    Comments, order and quotes stay. The result is parsed again, to be sure that only these keys
    have changed.
    """
    wanted, _ = parse(text, "the config")
    for dotted, value in values.items():
        section, _, key = dotted.partition(".")
        wanted[section] = {**(wanted.get(section) or {}), key: value}
        root = _Loader(text).get_single_node()
        assert root is not None
        found = {name.value: node for name, node in root.value}.get(section)
        if found is None:
            text += f"\n{section}:\n  {key}: {value}\n"
            continue
        pairs = found.value if isinstance(found, yaml.MappingNode) else []
        keys = {name.value: node for name, node in pairs}
        old = keys.get(key, found)
        start = old.start_mark.index
        end = old.end_mark.index
        if key in keys:
            new = str(value)
        elif not keys:  # null, as all of its keys are commented out, or {}
            new = f"\n  {key}: {value}"
        else:
            start = end = start + bool(found.flow_style)
            joint = ", " if found.flow_style else "\n".ljust(found.start_mark.column + 1)
            new = f"{key}: {value}{joint}"
        text = f"{text[:start]}{new}{text[end:]}"
    edited, _ = parse(text, "the edited config")
    return text if edited == wanted else None


@frozen
class RowChoice:
    """Which rows of each output a run takes: all of them, the first ones, or one of equal parts.

    Rows that `where` leaves out do not count.
    """

    first: int | None = None
    part: tuple[int, int] | None = None
    """(3, 8) is the third of eight parts, which differ by one row at most."""

    @property
    def suffix(self) -> str:
        """Return the end of the workdir's name: each choice of rows has its own workdir."""
        if self.part is not None:
            return "-part-{}-of-{}".format(*self.part)
        return "" if self.first is None else f"-first-{self.first}"


@frozen
class LoadedConfig:
    """A valid config and where it came from."""

    config: Config
    path: Path
    """Absolute."""
    folder: Path
    """Relative paths in the config start here."""
    overrides: tuple[str, ...]
    """KEY=VALUE each, as given."""
    by_options: bool = False
    """Whether it was made of the options of `chunkvisor encode`."""

    def of_rows(self, rows: RowChoice) -> "LoadedConfig":
        """Return a copy with the workdir for these rows; of a trial, it reuses no other workdir."""
        workdir = self.config.workdir
        changed: dict[str, Any] = {"workdir": workdir.with_name(workdir.name + rows.suffix)}
        if rows.first is not None:
            changed["reuse_from"] = ()
        return replace(self, config=self.config.model_copy(update=changed))


def load(path: Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read and validate the file. Raises Halt (78) that lists all problems, each with its place."""
    try:
        if path.stat().st_size > _SIZE_LIMIT_BYTES:
            raise ValueError(f"it is larger than {_SIZE_LIMIT_BYTES:,} bytes, and a config is not")
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        hint = "`chunkvisor init` writes a config to start from"
        for near in difflib.get_close_matches(path.name, _configs_in(path.parent), 1):
            hint = f"did you mean {path.with_name(near)}?"
        raise _wrong_config(f"{path}: there is no such file; {hint}") from None
    except IsADirectoryError:
        there = ", ".join(_configs_in(path)) or "none"
        raise _wrong_config(
            f"{path}: this is a folder, not a config; configs in it: {there}"
        ) from None
    except (OSError, ValueError) as error:  # a name that no file can have, bytes that are not UTF-8
        raise _wrong_config(f"{path}: cannot be read as UTF-8 text: {error}") from None
    values, places = parse(text, str(path))
    if not isinstance(values, dict):
        hint = (
            "if it is a source, use `chunkvisor encode`; `chunkvisor init` writes a config to edit"
        )
        raise _wrong_config(f"{path}: the file has no keys and values; {hint}")
    folder = path.absolute().parent
    return LoadedConfig(
        from_values(values, folder, overrides, places), path.absolute(), folder, tuple(overrides)
    )


def _configs_in(folder: Path) -> list[str]:
    """Return the names of the YAML files in a folder."""
    return sorted(each.name for each in folder.glob("*.y*ml"))


def from_values(
    values: Mapping[str, Any],
    folder: Path,
    overrides: Sequence[str] = (),
    places: Mapping[Key, str] | None = None,
) -> Config:
    """Make a Config of plain values and overrides; relative paths start in `folder`.

    Raises Halt as `load` does, with the `places` of keys.
    """
    changed = copy.deepcopy(dict(values))
    found = dict(places or {})
    for text in overrides:
        _override(changed, found, text)
    # From here on, `masked` replaces these values in all that is printed or written.
    hide(os.environ)
    hide({**changed, "secret": changed.get("notify")})  # the addresses count as secrets as well
    try:
        return Config.model_validate(changed, context={"folder": str(folder)})
    except ValidationError as error:
        raise _wrong_config(*_problems(error, changed, found)) from None


def in_sections(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Put values such as `dtype` into the section, `model` or `encode`, that has the key."""
    kinds: dict[str, type[BaseModel]] = {"model": ModelConfig, "encode": EncodeConfig}
    found = {
        name: {key: given[key] for key in kind.model_fields if key in given}
        for name, kind in kinds.items()
    }
    found["encode"].pop("kwargs", None)  # the argument `kwargs` is that of the model
    return found


def _all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield all valid keys, such as `outputs.*.column`."""
    for name, info in model.model_fields.items():
        yield f"{prefix}{name}"
        below = f"{prefix}{name}.*." if get_origin(info.annotation) is dict else f"{prefix}{name}."
        for kind in (info.annotation, *get_args(info.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _all_keys(kind, below)


def without_secret(text: str) -> str:
    """Hide the value of a KEY=VALUE that may be a secret."""
    dotted, equals, value = text.partition("=")
    # such as model.kwargs={token: SECRET}
    in_mapping = value.lstrip().startswith("{") and is_secret(value)
    secret = (
        dotted.partition(".")[0] in _SECRET_KEYS
        or is_secret(dotted.rpartition(".")[2])
        or in_mapping
    )
    return f"{dotted}=…" if equals and secret else text


def _wrong_config(*problems: str) -> Halt:
    """Return a Halt (78) with a line for each problem."""
    return config_error("\n".join(problems), "Correct this, then run the same command again.")


def _override(values: dict[str, Any], places: dict[Key, str], text: str) -> None:
    """Apply one KEY=VALUE to the values and the places. Raises Halt (78)."""
    shown = without_secret(text)
    place = "--set " + (shown if shown != text else shlex.quote(_shortened(text)))
    dotted, equals, value_text = text.partition("=")
    *sections, last = key = tuple(dotted.split("."))
    if not equals or not all(key):
        raise _wrong_config(f"{place}: write it as --set KEY=VALUE, such as --set chunk.size=200")
    value, _ = parse(value_text, place, key)
    for depth, part in enumerate(sections, start=1):
        if values.get(part) is None:
            values[part] = {}
        values = values[part]
        if not isinstance(values, dict):
            raise _wrong_config(
                f"{place}: {'.'.join(key[:depth])} is a single value or a list and has no keys"
            )
        places.setdefault(key[:depth], place)
    values[last] = value
    for below in [known for known in places if known[: len(key)] == key]:
        del places[below]
    places[key] = place


def _problems(error: ValidationError, values: object, places: Mapping[Key, str]) -> list[str]:
    """Put the errors of pydantic into words: `job.yaml:7: chunk.size: 0 should be …`."""
    found: dict[Key, list[str]] = {}
    for item in error.errors(include_url=False):
        kind = item["type"]
        value = item["input"]
        key = item["loc"]
        is_name = key[-1:] == ("[key]",)  # pydantic's mark if the name of a key is wrong
        if kind not in ("extra_forbidden", "missing"):
            key = key[: _depth(values, key)]
        shown = "this"
        if not (is_name or _SECRET_KEYS.intersection(key[:1]) or isinstance(value, dict | list)):
            shown = _shortened(json.dumps(value, ensure_ascii=False, default=repr))
        sentences = found.setdefault(key, [])
        if kind == "extra_forbidden":
            asked = list(map(str, key))
            if asked[0] == "outputs":
                asked[1] = "*"  # as the names of valid keys have it
            hint = did_you_mean(".".join(asked).lower(), _all_keys(Config), "valid are")
            sentences.append(f"unknown key; {hint}")
        elif kind == "missing":
            sentences.append("this key is required")
        elif kind == "value_error":
            said = str(item["ctx"]["error"])
            sentences.append(f"{shown} {said}" if said.startswith(("should", "has")) else said)
        else:
            what = _WORDS.get(kind) or item["msg"].removeprefix("Input should be ")
            if kind == "string_type" and isinstance(value, bool | int | float):
                what += "; text needs quotes here"
            # A value that may be of several kinds has an error for each: "5 should be text, or …".
            sentences[:] = [
                f"{sentences[0]}, or {what}" if sentences else f"{shown} should be {what}"
            ]
    problems = []
    for key, sentences in found.items():
        place = ""
        for end in range(len(key) + 1):
            place = places.get(key[:end], place)
        dotted = _shortened(".".join(map(str, key)))
        for sentence in sentences:
            problems.append(": ".join(filter(None, (place, dotted, sentence))))
    return problems


def _depth(values: Any, key: Key) -> int:
    """Count the leading parts of a key that lead through the values.

    pydantic appends the kinds of value that it has tried: in `("chunk", "size", "int")`, which is
    about the value of chunk.size, two parts lead through the values.
    """
    for depth, part in enumerate(key):
        in_list = isinstance(values, list) and isinstance(part, int)
        if not in_list and not (isinstance(values, dict) and part in values):
            return depth
        values = values[part]
    return len(key)


def _shortened(text: str) -> str:
    """Return the text in 80 printable characters at most."""
    text = printable(text)
    return text if len(text) <= 80 else f"{text[:50]}…{text[-20:]}"
