"""Writes messages as JSON, and reads them: None if one is missing, torn or of the wrong shape."""

import functools
import itertools
import json
import types
import typing
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from chunkvisor_worker.contract.files import READ_LIMIT_BYTES, read_bounded, write_atomic
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import BatchLine, Beat, Facts
from chunkvisor_worker.contract.secrets import revealed

Message = TypeVar("Message")


def to_json(message: Any) -> bytes:
    """Return one line of JSON in ASCII, with the dataclass's names as keys."""
    return json.dumps(asdict(message), ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def from_json(kind: type[Message], data: bytes | str | None) -> Message | None:
    """Return the message, or None if `data` is not one of that kind; unknown keys are ignored."""
    try:
        return from_plain(kind, revealed(json.loads(data or b"")))
    except (ValueError, RecursionError):
        return None


def from_plain(kind: type[Message], values: object) -> Message | None:
    """Return the message of parsed JSON, or None as `from_json`."""
    try:
        return typing.cast("Message", _build(kind, values))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None


def write_message(path: Path, message: object, *, durable: bool = False) -> None:
    """Write the message by one rename, and sync it if `durable`.

    Raises OSError, ValueError if it would not be read.
    """
    data = to_json(message)
    if len(data) > READ_LIMIT_BYTES:
        raise ValueError(f"{path} would have {len(data):,} bytes, more than are read")
    write_atomic(path, [data], durable=durable)


def read_message(kind: type[Message], path: Path) -> Message | None:
    """Return the message in the file, or None as `from_json`."""
    return from_json(kind, read_bounded(path))


@functools.cache
def _fields_of(kind: type) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(kind)
    return tuple((item.name, hints[item.name]) for item in fields(kind))


@functools.cache
def _parts_of(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(kind), typing.get_args(kind)


def _build(kind: Any, value: Any) -> Any:
    if type(value) is kind:  # most fields, of beats that are read four times a second
        return value
    origin, args = _parts_of(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _build(args[args[0] is type(None)], value)
    if origin is tuple and isinstance(value, list):
        return tuple(_build(args[0], item) for item in value)
    if origin is dict and isinstance(value, dict):
        item_kind = args[1]
        if item_kind is Any or all(type(item) is item_kind for item in value.values()):
            return value
        return {key: _build(item_kind, item) for key, item in value.items()}
    if is_dataclass(kind) and isinstance(value, dict):
        known = _fields_of(typing.cast("type", kind))
        given = {}
        for name, hint in known:
            if name in value:
                found = value[name]
                # A journal has a million fields, nearly all of their type: for those no call.
                given[name] = found if type(found) is hint else _build(hint, found)
        return kind(**given)  # type: ignore[operator]  # a class
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    raise TypeError(value)


def read_beat(path: Path) -> Beat | None:
    """Return the beat in the file; None if there is none, or it is being written."""
    beat = read_message(Beat, path)
    return beat if beat and beat.end == beat.seq else None


@frozen
class BatchRecord:
    """The content of a batch log."""

    facts: Facts | None = None  # none if no batch was written
    written: tuple[tuple[tuple[int, ...], str], ...] = ()
    """(rows, digest) of each batch whose vectors are in the file."""
    under_way: tuple[int, ...] = ()  # rows of the batches that had begun and were not written
    canary: Facts | None = None
    """Set if the canary of another chunk got its vector."""


def read_batch_log(path: Path) -> BatchRecord:
    """Read the log up to the first line that is torn or wrong.

    Batches are written in the order in which they begin.
    """
    facts: Facts | None = None
    canary: Facts | None = None
    begun: list[tuple[int, ...]] = []
    written = []
    for line in (read_bounded(path) or b"").splitlines(keepends=True):
        said = from_json(BatchLine, line) if line.endswith(b"\n") else None
        if not said:
            break
        if said.rows is not None:
            begun.append(said.rows)
        elif said.facts:
            facts = said.facts
        elif said.digest and facts and begun:
            rows = begun.pop(0)
            if rows:
                written.append((rows, said.digest))
            else:
                canary = facts
        else:
            break
    return BatchRecord(facts, tuple(written), tuple(itertools.chain(*begun)), canary)
