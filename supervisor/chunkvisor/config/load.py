"""A config file and its --set overrides -> a validated Config, or one message with everything that is wrong."""

import copy
import difflib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from chunkvisor.config.choices import AS_PARQUET, COMPRESSIONS, FORMATS, is_secret
from chunkvisor.config.model import Config, EncodeConfig, ModelConfig
from chunkvisor.config.yaml import Document, Key, YamlError, parse
from chunkvisor.errors import Halt, config_error
from chunkvisor.units import did_you_mean

_SIZE_LIMIT_BYTES = 1 << 20
_ANY = "*"  # stands for the name of an output in a key of the schema
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


class Given(StrEnum):
    """Say how a config was given: it decides what a person can do if it is refused."""

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
        """Copy it with a separate workdir, for a trial of this many rows."""
        workdir = self.config.workdir
        separate = workdir.with_name(f"{workdir.name}-first-{max_rows}")
        return replace(self, config=self.config.model_copy(update={"workdir": separate, "reuse_from": ()}))


def load(path: Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read and validate the file. Raises Halt (exit 78) that lists all problems, each with its line or --set."""
    if path.suffix.lower() in FORMATS.keys() | COMPRESSIONS and path.is_file():
        command = f"chunkvisor encode {shlex.quote(str(path))} --column NAME --model MODEL -o OUT.npy"
        remedy = f"to encode this one file: {command}; or name it in a config, which `chunkvisor init` writes"
        raise config_error(f"{path} is a source, not a config", remedy=remedy)
    try:
        document = parse(_read(path))
    except YamlError as error:
        raise _wrong_config([f"{path}:{error.line}: {error.sentence}"]) from None
    if not isinstance(document.value, dict):
        raise _wrong_config([f"{path}: the file holds no keys and values; `chunkvisor init` writes a config to edit"])
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


def all_keys(model: type[BaseModel] = Config, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield all valid keys; outputs.*.column is ("outputs", "*", "column")."""
    for name, info in model.model_fields.items():
        yield (*prefix, name)
        named = [_ANY] if get_origin(info.annotation) is dict else []
        for kind in (info.annotation, *get_args(info.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from all_keys(kind, (*prefix, name, *named))


def without_secret(text: str) -> str:
    """Hide the value of a KEY=VALUE that may be a secret."""
    dotted, equals, value = text.partition("=")
    in_mapping = value.lstrip().startswith("{") and is_secret(value)  # such as model.kwargs={token: SECRET}
    secret = dotted.partition(".")[0] in _SECRET_KEYS or is_secret(dotted.rpartition(".")[2]) or in_mapping
    return f"{dotted}=…" if equals and secret else text


def _read(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(_SIZE_LIMIT_BYTES + 1)
    except FileNotFoundError:
        near = difflib.get_close_matches(path.name, [each.name for each in path.parent.glob("*.y*ml")], 1)
        hint = f"`chunkvisor init {shlex.quote(str(path))}` writes a config to start from"
        hint = f"did you mean {path.with_name(near[0])}?" if near else hint
        raise _wrong_config([f"{path}: there is no such file; {hint}"]) from None
    except (OSError, ValueError) as error:  # a folder, a name that no file can have
        raise _wrong_config([f"{path}: cannot be read: {error}"]) from None
    if len(data) > _SIZE_LIMIT_BYTES:
        raise _wrong_config([f"{path}: larger than {_SIZE_LIMIT_BYTES:,} bytes; this cannot be a config"])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _wrong_config([f"{path}: not UTF-8 text; save the file in this encoding"]) from None


def _wrong_config(problems: Sequence[str]) -> Halt:
    # A lone surrogate from an escape in the YAML could not be printed.
    what = "\n".join(problems).encode(errors="backslashreplace").decode()
    return config_error(what, remedy="correct this, then run the same command again")


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
    """Apply one KEY=VALUE to the values; says what is wrong with it."""
    dotted, equals, value_text = text.partition("=")
    if not equals or not all(dotted.split(".")):
        return "write it as --set KEY=VALUE, such as --set chunk.size=200"
    key = tuple(dotted.split("."))
    outputs = document.value.get("outputs")
    if key[0] == "outputs" and len(key) > 2 and isinstance(outputs, dict) and key[1] not in outputs:
        return f"there is no output {key[1]}; {did_you_mean(key[1], outputs, 'valid here')}"
    try:
        value = parse(value_text, key).value
    except YamlError as error:
        return error.sentence
    section = document.value
    for depth, part in enumerate(key[:-1], start=1):
        if section.get(part) is None:
            section[part] = {}
        if not isinstance(section[part], dict):
            return f"{'.'.join(key[:depth])} is a single value or a list and has no keys"
        section = section[part]
        places.setdefault(key[:depth], place)
    section[key[-1]] = value
    for known in [known for known in places if known[: len(key)] == key]:
        del places[known]
    places[key] = place
    return ""


def _problems(error: ValidationError, values: object, places: Mapping[Key, int | str]) -> list[tuple[int | str, str]]:
    """Put the errors of pydantic into words: the place of each key, and the sentence."""
    found: dict[Key, list[str]] = {}
    for item in error.errors(include_url=False):
        key, kind, value, context = item["loc"], item["type"], item["input"], item.get("ctx", {})
        # pydantic's mark for the key of a mapping being wrong, not its value; a person may have written it, too.
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
    """Say what was probably meant: the nearest key of the section, else a key of that name in another section."""
    if instead := GONE.get(key[2:] if key[0] == "outputs" else key):
        return f"this key is gone: {instead}"
    keys = list(all_keys())
    section = (key[0], _ANY, *key[2:-1]) if key[0] == "outputs" else key[:-1]
    siblings = [known[-1] for known in keys if known[:-1] == section]
    if near := difflib.get_close_matches(key[-1].lower(), siblings, 1):
        return f"unknown key; did you mean {'.'.join((*key[:-1], near[0]))}?"
    elsewhere = difflib.get_close_matches(key[-1].lower(), [known[-1] for known in keys], 1, cutoff=0.85)
    for known in keys:
        if elsewhere and known[-1] == elsewhere[0]:
            return f"unknown key; did you mean {'.'.join(known).replace(_ANY, '<name>')}?"
    return f"unknown key; valid here: {', '.join(siblings)}"


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        return _shortened(json.dumps(value, ensure_ascii=False))
    kinds = {"dict": "this mapping", "list": "this list"}
    return kinds.get(type(value).__name__, f"an object of type {type(value).__name__}")


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:50]}…{text[-20:]}"
