"""Follows a run by its folder alone: the journal as it grows, beats and sensors.

It never takes the lock and never writes, so that it works from another terminal, and over ssh.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chunkvisor.events.journal import newest_mark, parse_event
from chunkvisor.events.readings import Readings, take_readings
from chunkvisor.events.snapshot import Snapshot
from chunkvisor.events.words import Weight, weight_of, words_of
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

    def events(self) -> Iterator[dict[str, Any]]:
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
                        event = parse_event(line)
                        if event is not None and isinstance(event.get("t"), int | float):
                            yield event
        except OSError:
            return


class Follower:
    """A workdir, or one slice of it, looked at now and then."""

    def __init__(self, workdir: Path, of_slice: Slice | None = None) -> None:
        self._layout = Layout(workdir, of_slice)
        so_far, offset = newest_mark(self._layout.events)
        self._tail = Tail(self._layout.events, offset)
        for event in self._tail.events():
            so_far.feed(event)
        self._fold = so_far.fold
        self._told_s = so_far.tally.told_s
        self.news: list[tuple[Weight, float, str]] = []
        """What has come with the last look: weight, time, words; of the first look only the last few of that run."""
        self._begun_with = list(so_far.news)

    def look(self) -> Snapshot:
        """Read what has come."""
        self._read()
        self.news, self._begun_with = [*self._begun_with, *self.news], []
        if not self.alive:
            return self._fold.snapshot(self._told_s, Readings())
        # Not of the workdir that the journal tells: it may be mounted elsewhere here.
        return self._fold.snapshot(time.time(), take_readings(self._layout, self._fold.invocation, self._fold.workers))

    def _read(self) -> None:
        self.news = []
        for event in self._tail.events():
            name, t = event["event"], event["t"]
            self._told_s = t
            self._fold.feed(name, event, t)
            if line := words_of(name, event):
                self.news.append((weight_of(name), t, line))

    @property
    def alive(self) -> bool:
        """Whether the run whose events were read last is still under way."""
        if self._fold.ending is not None:
            return False
        return lives(self._layout, read_holder(self._layout.lock), self._told_s)

    @property
    def ending(self) -> int | None:
        """Exit code of the run that ended last; None where it lives, or ended without a word."""
        return None if self._fold.ending is None else int(self._fold.ending.get("code", 1))

    def begun_anew(self) -> list[tuple[str, int]]:
        """(output, chunk) of attempts that were under way when the run ended without a word."""
        if self.alive or self._fold.ending is not None:
            return []
        return sorted({(key.output, key.chunk) for key in self._fold.workers})
