"""The journal: what happened, one JSON object a line, in order.

Nothing is decided by it: if it is lost, torn or damaged, what happened is forgotten, and not a single row. Now and then
a line holds the state that all lines before it add up to, so that `status` reads only the end of a long journal. Lines
that cannot be read are passed over.
"""

import contextlib
import glob
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from chunkvisor.events.event import Event, event_of, read_json
from chunkvisor.events.state import RunState

_STATE = "run_state"
_SIGN = f'"event": "{_STATE}"'.encode()
"""Of a line that holds the state; inside of a value the quotes would have a backslash before them."""
_EVERY_BYTES = 256 << 10
"""Between two such lines: some 250 chunks, which are read in 20 ms."""
_SHARE = 16
"""With thousands of workers under way the line is long: it is written so rarely that it is a 16th of the journal."""
_SPANS_BYTES = (1 << 20, 1 << 25)
"""How far from the end such a line is looked for."""
_LATEST_S = 1e11
"""No time of ours: some thousand years from now."""


class Entry(NamedTuple):
    """An event, with its time in seconds since the epoch and the id of the run that reported it."""

    t: float
    run: str
    event: Event


@dataclass(frozen=True, slots=True)
class _Line:
    t: float
    event: str
    run: str = ""
    state: RunState | None = None


class Journal:
    """Appends events to a file, and knows what they add up to."""

    def __init__(self, path: Path, run_id: str) -> None:
        self._run_id = run_id
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        tail = Tail(path)
        self._unread_bytes, self._every_bytes = os.fstat(self._fd).st_size - tail.offset, _EVERY_BYTES
        tail.read()
        self.state = tail.state
        # A line that a killed run left half-written must not swallow the first of ours.
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")

    def write(self, event: Event) -> None:
        """Append one event; a full disk swallows it.

        It is one write(2) with O_APPEND, so that a reader never sees two events mixed. It is not synced: no resume
        depends on it.
        """
        t = round(time.time(), 3)
        self._unread_bytes += self._append(t, event.name, event.details())
        self.state.apply(event, t)
        if self._unread_bytes >= self._every_bytes:
            size_bytes = self._append(t, _STATE, {"state": asdict(self.state)})
            self._unread_bytes, self._every_bytes = 0, max(_EVERY_BYTES, _SHARE * size_bytes)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _append(self, t: float, event: str, details: Mapping[str, Any]) -> int:
        line = json.dumps({"t": t, "run": self._run_id, "event": event, **details}).encode() + b"\n"
        with contextlib.suppress(OSError):
            os.write(self._fd, line)
        return len(line)


class Tail:
    """The end of a journal, as it grows; what comes before the last line with a state is not read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.state, self.offset = _newest_state(path)

    def read(self) -> list[Entry]:
        """Return the events of the whole lines that have come; the state takes them in."""
        found = []
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            if os.fstat(file.fileno()).st_size < self.offset:
                self.offset = 0  # it is another journal
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.offset += len(line)
                if (entry := _decoded(line)) is not None:
                    self.state.apply(entry.event, entry.t)
                    found.append(entry)
        return found


def read_events(path: Path) -> Iterator[Entry]:
    """Yield all events that can be read, oldest first; none if there is no journal."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        yield from filter(None, map(_decoded, file))


def read_with_trials(workdir: Path, journal: Path) -> Iterator[Entry]:
    """Yield the events of the trials of this workdir (`run --max-rows`), the largest last, then its own."""
    folders = workdir.parent.glob(f"{glob.escape(workdir.name)}-first-*")
    for folder in sorted(folders, key=lambda each: (len(each.name), each)):
        yield from read_events(folder / journal.relative_to(workdir))
    yield from read_events(journal)


def _read_line(line: bytes) -> _Line | None:
    found = read_json(_Line, line)
    return found if found is not None and 0 < found.t < _LATEST_S else None  # NaN compares false


def _decoded(line: bytes) -> Entry | None:
    """Return the event of a line; None if it cannot be read, holds a state, or is of an unknown kind."""
    if (head := _read_line(line)) is None or (event := event_of(head.event, line)) is None:
        return None
    return Entry(head.t, head.run, event)


def _newest_state(path: Path) -> tuple[RunState, int]:
    """Return the state of the last line that holds one, and the byte behind it; a fresh one and 0 if none does."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        for start in (max(0, size - span) for span in _SPANS_BYTES):
            file.seek(start)
            data = file.read()
            at = len(data)
            while (at := data.rfind(_SIGN, 0, at)) >= 0:
                first, last = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at) + 1
                line = _read_line(data[first:last]) if last else None
                if line is not None and line.state is not None:
                    return line.state, start + last
    return RunState(), 0
