"""The journal: one line of JSON for each event, oldest first.

It is for people and views. No run depends on it: no row is lost with it. A line that cannot be read
is skipped.
"""

import glob
import json
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from chunkvisor.events.event import Event, event_of
from chunkvisor.events.state import RunState
from chunkvisor_worker.contract.files import open_regular, write_atomic
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.wire import read_message, to_json

_LATEST_S = 1e11  # in the year 5138; a later time is damage
_SUMS_EVERY_BYTES = 1 << 20


class Logged(NamedTuple):
    """An event, with its time in seconds since the epoch and the id of the run that reported it."""

    t: float
    run: str
    event: Event


@frozen
class Sums:
    """What the first events of a journal add up to, so that readers need not read these.

    `Journal` writes it next to the journal, with the suffix .sums, after each MiB of events.
    """

    offset: int  # where these events end in the journal, in bytes
    state: RunState


class Journal:
    """Appends events to the journal, and keeps the state that all of its events add up to."""

    def __init__(self, path: Path, run_id: str) -> None:
        """Open or make the file, and read what is there. Raises OSError."""
        self._path = path
        self._run_id = run_id
        self._fd = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        tail = Tail(path)
        deque(tail.read_new(), maxlen=0)  # reads all, and holds none
        self.state = tail.state
        self._keep_sums(tail.offset)
        # A killed run may have left half a line: ours must not continue it.
        if os.fstat(self._fd).st_size > tail.offset:
            os.write(self._fd, b"\n")

    def _keep_sums(self, offset: int) -> None:
        self._summed_bytes = offset
        with suppress(OSError):
            sums = to_json(Sums(offset, self.state))
            write_atomic(self._path.with_suffix(".sums"), [sums], durable=False)

    def write(self, event: Event) -> None:
        """Append one event, if the disk has room, and add it to the state.

        One call of write(2) with O_APPEND writes the line, so that no reader sees two events mixed.
        It is not synced, since no run depends on it.
        """
        t = round(time.time(), 3)
        line = json.dumps({"t": t, "run": self._run_id, "event": event.name, **event.details()})
        with suppress(OSError):
            os.write(self._fd, line.encode() + b"\n")
        self.state.apply(event, t)
        size_bytes = os.fstat(self._fd).st_size
        if size_bytes > self._summed_bytes + _SUMS_EVERY_BYTES:
            self._keep_sums(size_bytes)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class Tail:
    """Follows a journal that grows, and keeps the state that its events add up to.

    It begins where the written `Sums` end, if there are any, so that at most about a MiB is read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        sums = read_message(Sums, path.with_suffix(".sums"))
        size_bytes = path.stat().st_size if path.exists() else 0
        if sums is None or not (
            0 <= sums.offset <= size_bytes  # else it is of another journal
            and 0 <= sums.state.began_s < _LATEST_S
            and 0 <= sums.state.last_event_s < _LATEST_S
        ):
            sums = Sums(0, RunState())
        self.state = sums.state
        self.offset = sums.offset  # of the next line to read

    def read_new(self) -> Iterator[Logged]:
        """Yield the events of the lines that are new and whole; the state has each already."""
        with suppress(OSError), open(self._path, "rb", opener=open_regular) as file:
            if os.fstat(file.fileno()).st_size < self.offset:
                self.offset = 0  # another journal is in its place
                self.state = RunState()
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
    with suppress(OSError), open(path, "rb", opener=open_regular) as file:
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
    if event is None or not 0 < t < _LATEST_S:
        return None
    return Logged(t, run, event)
