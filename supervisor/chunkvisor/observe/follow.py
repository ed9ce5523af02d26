"""Follows a run by its folder alone: the journal as it grows, beats and sensors.

It never takes the lock and never writes, so that it works from another terminal, and over ssh.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from chunkvisor.events.journal import Entry, decode, newest_state
from chunkvisor.events.progress import NewsLine
from chunkvisor.observe.readings import Readings, take_readings
from chunkvisor.observe.runview import snapshot_of
from chunkvisor.observe.snapshot import Snapshot
from chunkvisor.store.layout import Layout
from chunkvisor.store.lock import read_holder
from chunkvisor.store.runfolders import lives
from chunkvisor.store.slices import Slice
from chunkvisor_worker.contract.files import open_regular

_BLOCK_BYTES = 1 << 20


class Tail:
    """The whole lines of a journal that have come since the last look."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset

    def events(self) -> Iterator[Entry]:
        """Those that can be read; a journal that has become shorter is read from its start."""
        try:
            with open_regular(self._path) as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                while block := file.readlines(_BLOCK_BYTES):
                    for line in block:
                        if not line.endswith(b"\n"):
                            return
                        self._offset += len(line)
                        if (entry := decode(line)) is not None:
                            yield entry
        except OSError:
            return


class Follower:
    """A workdir, or one slice of it, looked at now and then."""

    def __init__(self, workdir: Path, of_slice: Slice | None = None) -> None:
        self._layout = Layout(workdir, of_slice)
        self._state, offset = newest_state(self._layout.events)
        self._tail = Tail(self._layout.events, offset)
        self._read()
        self.news: list[NewsLine] = []
        """What has come with the last look; with the first one, the last few lines of that run."""
        self._begun_with = list(self._state.last_lines)

    def look(self) -> Snapshot:
        """Read what has come."""
        self.news, self._begun_with = [*self._begun_with, *self._read()], []
        if not self.alive:
            return snapshot_of(self._state, self._state.told_s, Readings())
        # Not of the workdir that the journal tells: it may be mounted elsewhere here.
        return snapshot_of(self._state, time.time(), take_readings(self._layout, self._state))

    def _read(self) -> list[NewsLine]:
        news = []
        for entry in self._tail.events():
            self._state.apply(entry.event, entry.t)
            if line := entry.event.line:
                news.append(NewsLine(entry.event.severity, entry.t, line))
        return news

    @property
    def alive(self) -> bool:
        """Whether the run whose events were read last is still under way."""
        if self._state.ending is not None:
            return False
        return lives(self._layout, read_holder(self._layout.lock), self._state.told_s)

    @property
    def ending(self) -> int | None:
        """Exit code of the run that ended last; None where it lives, or ended without a word."""
        return None if self._state.ending is None else self._state.ending.code

    def begun_anew(self) -> list[tuple[str, int]]:
        """(output, chunk) of attempts that were under way when the run ended without a word."""
        if self.alive or self._state.ending is not None:
            return []
        return sorted({(worker.output, worker.chunk) for worker in self._state.workers.values()})
