"""The one JSON form of a message, which is a frozen dataclass.

A message that is missing, torn or of the wrong shape is None, not an exception.
"""

import functools
import json
import os
import types
import typing
import zlib
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from chunkvisor_worker.contract.files import read_bounded, write_atomic
from chunkvisor_worker.contract.messages import Beat

Message = TypeVar("Message")


def to_json(message: object) -> bytes:
    """One JSON object, UTF-8, keys as the dataclass names them; a lone surrogate stays escaped."""
    assert is_dataclass(message)
    assert not isinstance(message, type)
    return json.dumps(asdict(message), ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def from_json(kind: type[Message], data: bytes | str | None) -> Message | None:
    """The message, or None where `data` is not exactly one of that kind; unknown keys are ignored."""
    if data is None:
        return None
    try:
        built: Message = _build(kind, json.loads(data))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None
    return built


def write_message(path: Path, message: object, *, durable: bool = True) -> None:
    """Write the message by one rename. Raises OSError."""
    write_atomic(path, to_json(message), durable=durable)


def read_message(kind: type[Message], path: Path) -> Message | None:
    """The message in the file, or None where there is none to be had."""
    return from_json(kind, read_bounded(path))


@functools.cache
def _hints_of(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _build(kind: Any, value: Any) -> Any:
    if type(value) is kind:  # most fields, of beats that are read four times a second
        return value
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        (kind,) = (option for option in typing.get_args(kind) if option is not type(None))
        return _build(kind, value)
    form = list if origin is tuple else dict if origin is dict or is_dataclass(kind) else None
    if form is not None and not isinstance(value, form):
        raise TypeError(value)
    if origin is tuple:
        return tuple(_build(typing.get_args(kind)[0], item) for item in value)
    if origin is dict:
        item_kind = typing.get_args(kind)[1]
        return value if item_kind is Any else {key: _build(item_kind, item) for key, item in value.items()}
    if is_dataclass(kind):
        hints = _hints_of(typing.cast("type", kind))
        given = {item.name: value[item.name] for item in fields(kind) if item.name in value}
        return kind(**{name: _build(hints[name], item) for name, item in given.items()})  # type: ignore[operator]  # a class
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    raise TypeError(value)


_SIZE_BYTES = 1024
"""Of the file: a beat takes half of it."""
_KEY = b',"crc32":"'
"""Comes last, over all before it."""
_PADDING = b"\n"


def write_beat(path: Path, beat: Beat) -> None:
    """Put the beat in the place of the one before. Raises OSError."""
    fields = to_json(beat).rstrip()[:-1]
    data = (fields + _KEY + _checksum(fields) + b'"}').ljust(_SIZE_BYTES, _PADDING)
    if not _overwritten(path, data):
        write_atomic(path, data, durable=False)


def read_beat(path: Path) -> Beat | None:
    """The beat in the file, None where there is none to be had; it may be written at this moment."""
    data = read_bounded(path)
    line = data.partition(b"\n")[0] if data else b""
    fields, key, checksum = line.rpartition(_KEY)
    whole = bool(key) and checksum == _checksum(fields) + b'"}'
    return from_json(Beat, line) if whole else None


def _checksum(line: bytes) -> bytes:
    return f"{zlib.crc32(line):08x}".encode()


def _overwritten(path: Path, data: bytes) -> bool:
    """Whether there was a beat of this size to be overwritten."""
    try:
        fd = os.open(path, os.O_WRONLY)
    except OSError:
        return False
    try:
        return os.fstat(fd).st_size == len(data) and os.pwrite(fd, data, 0) == len(data)
    finally:
        os.close(fd)
