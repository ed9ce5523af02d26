"""The keys that a config can have, and which of them was meant."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from chunkvisor.config.model import Config

_ANY = "*"  # stands for the name of an output in a key of the schema

GONE: dict[tuple[str, ...], str] = {
    ("model", "backend"): (
        "torch computes; remove the key. For OpenVINO, use the plug-in encoder of examples/openvino/openvino_encoder.py"
    ),
    ("model", "dtype", "int8"): (
        "write float32 or bfloat16, or use a plug-in encoder. Files in int8 are made by outputs.NAME.dtype"
    ),
    ("ingest", "head"): "a run reads its sources to the end before it encodes; remove the key",
    ("encode", "long"): "cut long texts into pieces in the source, one a row; a run says how many it has cut off",
    ("encode", "overlap"): "cut long texts into pieces in the source, one a row; a run says how many it has cut off",
    ("identity",): (
        "a run notes other versions of the libraries, and the manifest names them all; remove the key. To keep to one "
        "set of versions, pin them in the environment"
    ),
    ("upload",): "copy the finished files with `aws s3 cp`, or with `hf upload`",
}
"""Keys of earlier versions, or keys and one of their values, each with what to do instead.

Those of `encode` are gone under an output as well."""


def key_of(dotted: str, outputs: Mapping[str, Any]) -> tuple[str, ...]:
    """The parts of a dotted key; the name of an output may hold dots itself."""
    rest = dotted.removeprefix("outputs.")
    if rest != dotted:
        for name in sorted(outputs, key=len, reverse=True):
            if rest.startswith(f"{name}."):
                return ("outputs", name, *rest.removeprefix(f"{name}.").split("."))
            if rest == name:
                return ("outputs", name)
    return tuple(dotted.split("."))


def all_keys(model: type[BaseModel] = Config, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All valid keys; outputs.*.column is ("outputs", "*", "column")."""
    for name, info in model.model_fields.items():
        yield (*prefix, name)
        named = [_ANY] if get_origin(info.annotation) is dict else []
        for kind in (info.annotation, *get_args(info.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from all_keys(kind, (*prefix, name, *named))


def dotted_keys() -> list[str]:
    """Every key of a single value as --set takes it, but for those of outputs: their names are in the file."""
    known = list(all_keys())
    sections = {key[:-1] for key in known}
    return [".".join(key) for key in known if key not in sections and key[0] != "outputs"]


def generic(key: tuple[str, ...]) -> tuple[str, ...]:
    """The key with the mark for any output in place of its name."""
    return (key[0], _ANY, *key[2:]) if len(key) > 1 and key[0] == "outputs" else key


def unknown(key: tuple[str, ...]) -> str:
    """What is wrong with a key that no config has, and what was meant by it."""
    instead = GONE.get(key[2:] if key[0] == "outputs" else key)
    return f"this key is gone: {instead}" if instead else "unknown key" + _suggestion(key)


def _suggestion(key: tuple[str, ...]) -> str:
    """What was probably meant: the nearest sibling, else a key of that name in another section."""
    keys = list(all_keys())
    section, name = generic(key)[:-1], key[-1]
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
