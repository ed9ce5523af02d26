"""The one JSON form of a message, the file of the beat, and the batch log.

A message that is missing, torn or of the wrong shape is None, not an exception.
"""

import functools
import json
import os
import re
import types
import typing
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from enum import Enum
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

from chunkvisor_worker.contract.files import read_bounded, write_atomic
from chunkvisor_worker.contract.messages import Beat, Begun, Facts, Written

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


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """What a log says."""

    facts: Facts | None = None
    """None where no batch was written."""
    written: tuple[tuple[tuple[int, ...], str], ...] = ()
    """(rows, digest) of each batch whose vectors are in the file."""
    under_way: tuple[int, ...] = ()
    """Rows of the batches that had begun and were not written."""
    canary: Facts | None = None
    """As they were found when the spec's canary got its vector; None = it got none. Its batch has no rows, so that its
    vector is taken for no text's."""


class BatchLog:
    """The worker's end of the log. Each method raises OSError."""

    def __init__(self, file: FileIO) -> None:
        """`file` is open for appending, and unbuffered."""
        self._file = file
        self._begun = 0
        self._written = 0

    def begin(self, rows: Sequence[int]) -> None:
        """A batch begins; batches are written in the order in which they began. The canary's has no rows."""
        self._say(Begun(self._begun, tuple(rows)))
        self._begun += 1

    def opened(self, facts: Facts) -> None:
        """The file of vectors is there, before its first batch is written; or the canary has its vector."""
        self._say(facts)

    def written(self, digest: str) -> None:
        """The vectors of the oldest batch that is under way are in the file."""
        self._say(Written(self._written, digest))
        self._written += 1

    def _say(self, line: Begun | Written | Facts) -> None:
        self._file.write(json.dumps(asdict(line), separators=(",", ":")).encode() + b"\n")


def read_batch_log(path: Path) -> BatchRecord:
    """What the log says; nothing at all where there is none."""
    facts: Facts | None = None
    begun: dict[int, tuple[int, ...]] = {}
    written = []
    canary: Facts | None = None
    for line in (read_bounded(path) or b"").splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        if (batch := from_json(Begun, line)) is not None:
            begun[batch.batch] = batch.rows
        elif (done := from_json(Written, line)) is not None and facts is not None and done.batch in begun:
            if rows := begun.pop(done.batch):
                written.append((rows, done.digest))
            else:
                canary = facts
        elif (found := from_json(Facts, line)) is not None:
            facts = found
        else:
            break
    return BatchRecord(facts, tuple(written), tuple(row for rows in begun.values() for row in rows), canary)


_SECRETS = (
    # Tokens of the hub, of services like OpenAI's, and of GitHub, wherever they stand.
    r"\b(hf_|api_org_|sk-|gh[oprsu]_|github_pat_)[\w-]{6,}",
    r"(?i)\b(authorization['\"]?\s{0,5}[:=]\s{0,5}b?['\"]?(?:\w{1,30}\s{1,5})?)[^\s'\",;]+",
    r"(?i)\b(bearer\s{1,5})[\w.~+/=-]{6,}",
    r"(?i)\b((?:(?:hf|hub|access|auth|api)[_-]?token|api[_-]?key|password|secret)['\"]?\s{0,5}[:=]\s{0,5}['\"]?)"
    r"[^\s'\",;&)]+",
    # A signed or authorised URL, and one with a password.
    r"(?i)([?&](?:token|signature|x-amz-signature|sig|key)=)[^\s&'\"]+",
    r"(://[^\s/:@]{0,200}:)[^\s/@]+(?=@)",
)
_SECRET_PATTERNS = tuple(re.compile(pattern) for pattern in _SECRETS)


def masked(text: str) -> str:
    """The text without passwords and tokens."""
    for pattern in _SECRET_PATTERNS:
        text = pattern.sub(r"\1***", text)
    return text
