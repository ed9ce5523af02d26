"""The journal: what happened, one JSON object a line, in order.

Nothing is decided by it: if it is lost, torn or damaged, what happened is forgotten, and not a
single row. Lines that cannot be read are passed over.
"""

import contextlib
import glob
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from chunkvisor.events.event import Event, event_of
from chunkvisor.events.state import RunState

_LATEST_S = 1e11  # no time of ours: some thousand years from now


class Logged(NamedTuple):
    """An event, with its time in seconds since the epoch and the id of the run that reported it."""

    t: float
    run: str
    event: Event


class Journal:
    """Appends events to a file, and knows what they add up to."""

    def __init__(self, path: Path, run_id: str) -> None:
        self._run_id = run_id
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        tail = Tail(path)
        for _ in tail.read_new():
            pass
        self.state = tail.state
        # A line that a killed run left half-written must not swallow the first of ours.
        if os.fstat(self._fd).st_size > tail.offset:
            os.write(self._fd, b"\n")

    def write(self, event: Event) -> None:
        """Append one event; a full disk swallows it.

        It is one write(2) with O_APPEND, so that a reader never sees two events mixed. It is not
        synced: no resume depends on it.
        """
        t = round(time.time(), 3)
        line = json.dumps({"t": t, "run": self._run_id, "event": event.name, **event.details()})
        with contextlib.suppress(OSError):
            os.write(self._fd, line.encode() + b"\n")
        self.state.apply(event, t)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class Tail:
    """A journal as it grows, and what its events add up to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.state, self.offset = RunState(), 0

    def read_new(self) -> Iterator[Logged]:
        """Yield the events of the whole lines that have come, after the state has taken each in."""
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            if os.fstat(file.fileno()).st_size < self.offset:
                self.offset = 0  # it is another journal
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.offset += len(line)
                if (logged := _decoded(line)) is not None:
                    self.state.apply(logged.event, logged.t)
                    yield logged


def read_events(path: Path) -> Iterator[Logged]:
    """Yield all events that can be read, oldest first; none if there is no journal."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        yield from filter(None, map(_decoded, file))


def read_with_trials(workdir: Path, journal: Path) -> Iterator[Logged]:
    """Yield the events of the workdir's trials (`run --max-rows`), then its own.

    The largest trial comes last.
    """
    folders = workdir.parent.glob(f"{glob.escape(workdir.name)}-first-*")
    for folder in sorted(folders, key=lambda each: (len(each.name), each)):
        yield from read_events(folder / journal.relative_to(workdir))
    yield from read_events(journal)


def _decoded(line: bytes) -> Logged | None:
    """Return the event of a line; None if it cannot be read, or is of an unknown kind."""
    try:
        values = json.loads(line.decode())
        t = values["t"]
        run = values.get("run", "")
        event = event_of(values["event"], values)
        known = event is not None and isinstance(run, str) and 0 < float(t) < _LATEST_S
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError):
        return None
    return Logged(float(t), run, event) if known and event is not None else None
