"""Follows a run by its folder alone.

It writes nothing and takes no lock for longer than a look, so that it works from another terminal, and over ssh.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from chunkvisor.events.journal import Entry, decoded, newest_state
from chunkvisor.events.progress import NewsLine
from chunkvisor.show.snapshot import Readings, Snapshot, snapshot_of, take_readings
from chunkvisor.store.layout import Layout
from chunkvisor.store.lock import Holder, is_held, read_holder
from chunkvisor_worker.contract.batchlog import read_batch_log
from chunkvisor_worker.contract.files import open_regular

_BLOCK_BYTES = 1 << 20
_FOREIGN_SILENCE_S = 900.0
"""A live run writes its journal every few minutes at the least; more is not known of one on another host."""


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
                        if (entry := decoded(line)) is not None:
                            yield entry
        except OSError:
            return


class Follower:
    """The run that is at work in a workdir, or was last, as the last look has found it."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.state, offset = newest_state(layout.events)
        self.holder: Holder | None = None
        """Of the lock: who is at work, or was last."""
        self.alive = False
        """Whether it is under way. One that has said its last word is over, though its process may take a moment."""
        self.news: list[NewsLine] = []
        """What has come with the last look; with the first one, the last few lines of that run."""
        self._tail = Tail(layout.events, offset)
        self._read()
        self._begun_with = list(self.state.last_lines)

    @property
    def code(self) -> int | None:
        """With which it has ended; None where it is under way, or ended without a word."""
        return self.state.ending.code if self.state.ending is not None else None

    @property
    def silent_s(self) -> float | None:
        """Since the last sign of life, of a run that another host cannot be asked about; else None."""
        unseen = self.holder is not None and self.holder.alive() is None
        return max(0.0, time.time() - self.state.told_s) if unseen else None

    def look(self) -> Snapshot:
        """Read what has come."""
        self.news, self._begun_with = [*self._begun_with, *self._read()], []
        if not self.alive:
            return snapshot_of(self.state, self.state.told_s, Readings())
        # Not of the workdir that the journal tells: it may be mounted elsewhere here.
        return snapshot_of(self.state, time.time(), take_readings(self.layout, self.state))

    def begun_anew(self) -> dict[tuple[str, int], int]:
        """By (output, chunk) of the attempts under way when a run ended without a word: the texts that they saved."""
        found = Counter[tuple[str, int]]()
        for worker in self.state.workers.values() if self.code is None and not self.alive else ():
            files = self.layout.output(worker.output).attempt(worker.chunk, worker.attempt)
            found[worker.output, worker.chunk] += sum(len(rows) for rows, _ in read_batch_log(files.batches).written)
        return dict(sorted(found.items()))

    def _read(self) -> list[NewsLine]:
        news = []
        self.holder = read_holder(self.layout.lock)
        for entry in self._tail.events():
            self.state.apply(entry.event, entry.t)
            if line := entry.event.line:
                news.append(NewsLine(entry.event.severity, entry.t, line))
        self.alive = self.code is None and _lives(self.layout, self.holder, self.state.told_s)
        return news


def _lives(layout: Layout, holder: Holder | None, told_s: float) -> bool:
    """Whether that run is alive; of one on another machine, whose last event is of `told_s`, what its silence says."""
    alive = holder.alive() if holder is not None else False
    if alive is False:
        return is_held(layout.lock)  # after a step of the clock, a process seems to be another one (proc(5), btime)
    return time.time() - told_s < _FOREIGN_SILENCE_S if alive is None else alive
