"""The journal: what happened, one JSON object a line, in order.

Nothing is decided by it: with a lost, torn or damaged journal what happened is forgotten, not a single row.

Now and then a line holds the state that all lines before it come to, so that `status` reads the end alone, however long
the journal is. Lines that cannot be read are passed over.
"""

import contextlib
import glob
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from chunkvisor.events.decode import event_of
from chunkvisor.events.event import Event
from chunkvisor.events.state import RunState
from chunkvisor_worker.contract.files import READ_LIMIT_BYTES
from chunkvisor_worker.contract.wire import from_json

_STATE = "run_state"
_SIGN = f'"event": "{_STATE}"'.encode()
"""Of a line that holds the state; inside of any value the quotes would have a backslash before them."""
_EVERY_BYTES = 256 << 10
"""Between two such lines: some 250 chunks, which are read in 20 ms."""
_SHARE = 16
"""With thousands of workers under way the line is long: it is written so rarely that it is a 16th of the journal."""
_LATEST_S = 1e11
"""No time of ours: some thousand years from now."""


class Entry(NamedTuple):
    """One line of a journal."""

    t: float
    """Seconds since the epoch."""
    run: str
    """Id of the run that told it."""
    event: Event


class Journal:
    """Appends events to a file, and knows what they come to."""

    def __init__(self, path: Path, run_id: str) -> None:
        self._run_id = run_id
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self.state, offset = read_state(path)
        self._unread_bytes = os.fstat(self._fd).st_size - offset
        self._every_bytes = _EVERY_BYTES
        # A line that a killed run left half-written must not swallow the first of ours.
        if _is_torn(path):
            os.write(self._fd, b"\n")

    def write(self, event: Event) -> None:
        """Append one event; a full disk swallows it.

        One write(2) with O_APPEND, so that a reader never sees two events mixed. Not synced: the journal is not
        what a resume is based on.
        """
        t = round(time.time(), 3)
        self._unread_bytes += self._append(t, event.name, event.details())
        self.state.apply(event, t)
        if self._unread_bytes >= self._every_bytes:
            content = {"state": asdict(self.state)}
            size_bytes = self._append(t, _STATE, content)
            self._unread_bytes, self._every_bytes = 0, max(_EVERY_BYTES, _SHARE * size_bytes)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _append(self, t: float, event: str, details: Mapping[str, Any]) -> int:
        line = json.dumps({"t": t, "run": self._run_id, "event": event, **details}).encode() + b"\n"
        with contextlib.suppress(OSError):
            os.write(self._fd, line)
        return len(line)


def _is_torn(path: Path) -> bool:
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def read_events(path: Path, offset: int = 0) -> Iterator[Entry]:
    """The events that can be read, oldest first, from that byte on; none where there is no journal."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below; a missing file is not an error
    except OSError:
        return
    with file:
        file.seek(offset)
        for line in file:
            if (entry := decoded(line)) is not None:
                yield entry


def read_with_trials(workdir: Path, journal: Path) -> Iterator[Entry]:
    """Those of the trials of this workdir (`run --max-rows`), and then its own: what was measured there counts here."""
    for folder in sorted(workdir.parent.glob(f"{glob.escape(workdir.name)}-first-*")):
        yield from read_events(folder / journal.relative_to(workdir))
    yield from read_events(journal)


def speed_of_trials(workdir: Path, journal: Path) -> float | None:
    """Texts a second of the largest trial of this workdir; None where there was none."""
    for folder in sorted(workdir.parent.glob(f"{glob.escape(workdir.name)}-first-*"), key=_size_of_trial, reverse=True):
        if rate := read_state(folder / journal.relative_to(workdir))[0].texts_per_s:
            return rate
    return None


def _size_of_trial(folder: Path) -> int:
    size = folder.name.rpartition("-")[2]
    return int(size) if size.isdecimal() else 0


def decoded(line: bytes) -> Entry | None:
    """The event of a line; None where it cannot be read, holds a state, or is of a kind that nobody here knows."""
    try:
        values = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or not isinstance(name := values.get("event"), str):
        return None
    t, event = values.get("t"), event_of(name, values)
    if event is None or not isinstance(t, int | float) or not 0 < t < _LATEST_S:  # NaN compares false
        return None
    return Entry(float(t), str(values.get("run")), event)


def read_state(path: Path) -> tuple[RunState, int]:
    """What all events come to, and the byte behind the newest line that holds what those before it do."""
    state, offset = newest_state(path)
    for entry in read_events(path, offset):
        state.apply(entry.event, entry.t)
    return state, offset


def newest_state(path: Path) -> tuple[RunState, int]:
    """What the events before some byte come to, and that byte: the last for which the journal has it, or 0."""
    try:
        with open(path, "rb") as file:
            rest, end = b"", os.fstat(file.fileno()).st_size
            while end:
                start = max(0, end - _EVERY_BYTES)
                file.seek(start)
                data = file.read(end - start) + rest
                # The first line may begin in the block before, unless there is none.
                whole = data.find(b"\n") + 1 if start else 0
                for first, last in _signed(data, whole):
                    if (found := _restored(data[first:last])) is not None:
                        return found, start + last
                rest, end = data[:whole] or data, start
                if len(rest) > READ_LIMIT_BYTES:
                    rest = b""  # no line of ours
    except OSError:
        pass
    return RunState(), 0


@dataclass(frozen=True, slots=True)
class _StateLine:
    state: RunState


def _restored(line: bytes) -> RunState | None:
    """The state of a line; None if something of it is missing."""
    found = from_json(_StateLine, line)
    if found is None:
        return None
    if not json.loads(line)["state"].keys() >= {item.name for item in fields(RunState)}:
        return None
    return found.state


def _signed(data: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Bounds of the whole lines that bear the sign, the last one first."""
    at = len(data)
    while (at := data.rfind(_SIGN, start, at)) >= 0:
        first, last = data.rfind(b"\n", start, at) + 1 or start, data.find(b"\n", at) + 1
        if last:
            yield first, last
