"""The journal: what happened, one JSON object a line, in order.

It never decides anything: a lost, torn or damaged journal costs the story, not a single row.

Now and then a line says what all lines before it come to, so that `status` reads the end alone, however long the
story is.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chunkvisor.events.sofar import SoFar
from chunkvisor_worker.contract.files import READ_LIMIT_BYTES, open_regular, set_aside

_SO_FAR = "so_far"
_SIGN = f'"event": "{_SO_FAR}"'.encode()
"""Of a line that sums up; inside of any value the quotes would have a backslash before them."""
_EVERY_BYTES = 256 << 10
"""Between two such lines: some 250 chunks, which are read in 20 ms."""
_SHARE = 16
"""With thousands of workers under way the line is long: it is written so rarely that it is a 16th of the journal."""


class Journal:
    """Appends events to a file."""

    def __init__(self, path: Path, run_id: str) -> None:
        self._run_id = run_id
        set_aside(path)  # to open a pipe is to wait for a reader
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._so_far, offset = read_so_far(path)
        self._unread_bytes = os.fstat(self._fd).st_size - offset
        self._every_bytes = _EVERY_BYTES
        # A line that a killed run left half-written must not swallow the first of ours.
        if os.fstat(self._fd).st_size:
            os.write(self._fd, b"\n")

    def write(self, event: str, **details: Any) -> None:
        """Append one event; a full disk swallows it.

        One write(2) with O_APPEND, so that a reader never sees two events mixed. Not synced: the journal is not
        what a resume is based on.
        """
        line = self._append(event, details)
        self._so_far.feed(json.loads(line))
        self._unread_bytes += len(line)
        if self._unread_bytes >= self._every_bytes:
            size_bytes = len(self._append(_SO_FAR, self._so_far.to_json()))
            self._unread_bytes, self._every_bytes = 0, max(_EVERY_BYTES, _SHARE * size_bytes)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _append(self, event: str, details: dict[str, Any]) -> bytes:
        line = json.dumps({"t": round(time.time(), 3), "run": self._run_id, "event": event, **details}).encode() + b"\n"
        with contextlib.suppress(OSError):
            os.write(self._fd, line)
        return line


def read_events(path: Path, offset: int = 0) -> Iterator[dict[str, Any]]:
    """The events that can be read, oldest first, from that byte on; none where there is no journal."""
    try:
        file = open_regular(path)  # a missing file is no error
    except OSError:
        return
    with file:
        file.seek(offset)
        for line in file:
            if (event := parse_event(line)) is not None:
                yield event


def parse_event(line: bytes) -> dict[str, Any] | None:
    """The event of a line; None where it cannot be read, or sums up those before it."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    sound = isinstance(event, dict) and isinstance(event.get("event"), str) and event["event"] != _SO_FAR
    return event if sound else None


def read_so_far(path: Path) -> tuple[SoFar, int]:
    """What all events come to, and the byte behind the newest line that says what those before it do."""
    found, offset = newest_mark(path)
    for event in read_events(path, offset):
        found.feed(event)
    return found, offset


def newest_mark(path: Path) -> tuple[SoFar, int]:
    """What the events before some byte come to, and that byte: the last for which the journal says it, or 0."""
    try:
        with open_regular(path) as file:
            rest, end = b"", os.fstat(file.fileno()).st_size
            while end:
                start = max(0, end - _EVERY_BYTES)
                file.seek(start)
                data = file.read(end - start) + rest
                # The first line may begin in the block before, unless there is none.
                whole = data.find(b"\n") + 1 if start else 0
                for first, last in _signed(data, whole):
                    if (found := SoFar.restored(data[first:last])) is not None:
                        return found, start + last
                rest, end = data[:whole] or data, start
                if len(rest) > READ_LIMIT_BYTES:
                    rest = b""  # no line of ours
    except OSError:
        pass
    return SoFar(), 0


def _signed(data: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Bounds of the whole lines that bear the sign, the last one first."""
    at = len(data)
    while (at := data.rfind(_SIGN, start, at)) >= 0:
        first, last = data.rfind(b"\n", start, at) + 1 or start, data.find(b"\n", at) + 1
        if last:
            yield first, last
