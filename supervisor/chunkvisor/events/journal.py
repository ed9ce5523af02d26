"""The journal: one line of JSON for each event, oldest first.

It is for people and views. No run depends on it: if it is lost or damaged, no row is. Lines that
cannot be read are skipped.
"""

import contextlib
import glob
import json
import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from chunkvisor.events.event import Event, Sums, event_of
from chunkvisor.events.state import RunState
from chunkvisor_worker.contract.wire import from_plain

_LATEST_S = 1e11  # in the year 5138; a later time is damage
_SUMS_MARK = b'"event": "sums"'
_SUMS_EVERY_BYTES = 1 << 20
"""How often sums are written, so that no reader has to begin at the start of a long journal."""


class Logged(NamedTuple):
    """An event, with its time in seconds since the epoch and the id of the run that reported it."""

    t: float
    run: str
    event: Event


class Journal:
    """Appends events to the journal, and keeps the state that all of its events add up to."""

    def __init__(self, path: Path, run_id: str) -> None:
        """Open or make the file, and read what is there. Raises OSError."""
        self._run_id = run_id
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        tail = Tail(path)
        self._bytes_since_sums = -tail.offset
        deque(tail.read_new(), maxlen=0)
        self._bytes_since_sums += tail.offset
        self.state = tail.state
        # A killed run may have left half a line: ours must not continue it.
        if os.fstat(self._fd).st_size > tail.offset:
            os.write(self._fd, b"\n")

    def write(self, event: Event) -> None:
        """Append one event, if the disk has room, and add it to the state."""
        t = round(time.time(), 3)
        self._append(event, t)
        self.state.apply(event, t)
        if self._bytes_since_sums > _SUMS_EVERY_BYTES:
            self._append(Sums(asdict(self.state)), t)
            self._bytes_since_sums = 0

    def _append(self, event: Event, t: float) -> None:
        """Write a line by one write(2) with O_APPEND, so that readers never see two mixed.

        It is not synced, since no run depends on it.
        """
        values = {"t": t, "run": self._run_id, "event": event.name, **event.details()}
        line = json.dumps(values).encode() + b"\n"
        self._bytes_since_sums += len(line)
        with contextlib.suppress(OSError):
            os.write(self._fd, line)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class Tail:
    """Follows a journal that grows, and keeps the state that its events add up to.

    It begins at sums close to the end, if there are any, with about the last MiB still to be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.state = RunState()
        self.offset = 0  # end of the last line that was read
        with contextlib.suppress(OSError), open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 2 * _SUMS_EVERY_BYTES))
            for line in file:
                logged = _decode(line) if _SUMS_MARK in line else None
                if logged is not None and isinstance(logged.event, Sums):
                    state = from_plain(RunState, logged.event.state)
                    if state is not None:
                        self.state = state
                        self.offset = file.tell()
                        break

    def read_new(self) -> Iterator[Logged]:
        """Yield the events of the lines that are new and whole; the state has each already."""
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            if os.fstat(file.fileno()).st_size < self.offset:
                self.offset = 0  # another journal is in its place
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.offset += len(line)
                logged = _decode(line)
                if logged is not None:
                    self.state.apply(logged.event, logged.t)
                    yield logged


def read_events(path: Path) -> Iterator[Logged]:
    """Yield all events that can be read, oldest first; none if there is no journal."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        yield from filter(None, map(_decode, file))


def states_with_trials(workdir: Path, journal: Path) -> Iterator[RunState]:
    """Yield the states of the workdir's trials (`run --max-rows`), smallest first, then its own."""
    folders = workdir.parent.glob(f"{glob.escape(workdir.name)}-first-*")
    for folder in [*sorted(folders, key=lambda each: (len(each.name), each)), workdir]:
        tail = Tail(folder / journal.relative_to(workdir))
        deque(tail.read_new(), maxlen=0)
        yield tail.state


def _decode(line: bytes) -> Logged | None:
    """Return the event of a line; None if the line is damaged or of an unknown event."""
    try:
        values = json.loads(line.decode())
        t = float(values["t"])
        run = values.get("run", "")
        event = event_of(values["event"], values)
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError):
        return None
    if event is None or not isinstance(run, str) or not 0 < t < _LATEST_S:
        return None
    return Logged(t, run, event)
