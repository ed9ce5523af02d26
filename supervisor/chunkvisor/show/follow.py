"""Follows a run, or all slices of a workdir as if they were one run, by the folder alone.

It writes nothing and takes no lock for longer than a look, so that it works from another terminal, and over ssh.
"""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from chunkvisor.events.event import Severity
from chunkvisor.events.journal import Decoder, Entry, newest_state
from chunkvisor.events.progress import NewsLine
from chunkvisor.show.readings import Readings, take_readings
from chunkvisor.show.runview import snapshot_of
from chunkvisor.show.snapshot import OutputState, Snapshot
from chunkvisor.store.fixed import read_fixed, read_staged
from chunkvisor.store.layout import Layout
from chunkvisor.store.lock import Holder, read_holder
from chunkvisor.store.reuse import work_of
from chunkvisor.store.runfolders import latest, lives
from chunkvisor.store.seal import DamagedError
from chunkvisor.store.slices import Slice
from chunkvisor_worker.contract.batchlog import read_batch_log
from chunkvisor_worker.contract.files import open_regular

_BLOCK_BYTES = 1 << 20


class Tail:
    """The whole lines of a journal that have come since the last look."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset
        self._decoder = Decoder()

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
                        if (entry := self._decoder.entry(line)) is not None:
                            yield entry
        except OSError:
            return


class RunFollower:
    """One run, of the whole or of a slice, as the last look has found it."""

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
        """Since the last sign of life, of a run of the whole that another host cannot be asked about; else None."""
        unseen = self.layout.slice is None and self.holder is not None and self.holder.alive() is None
        return max(0.0, time.time() - self.state.told_s) if unseen else None

    def look(self) -> Snapshot:
        """Read what has come."""
        self.news, self._begun_with = [*self._begun_with, *self._read()], []
        if not self.alive:
            return snapshot_of(self.state, self.state.told_s, Readings())
        # Not of the workdir that the journal tells: it may be mounted elsewhere here.
        return snapshot_of(self.state, time.time(), take_readings(self.layout, self.state))

    def _read(self) -> list[NewsLine]:
        news = []
        self.holder = read_holder(self.layout.lock)
        for entry in self._tail.events():
            self.state.apply(entry.event, entry.t)
            if line := entry.event.line:
                news.append(NewsLine(entry.event.severity, entry.t, line))
        self.alive = self.code is None and lives(self.layout, self.holder, self.state.told_s)
        return news


class Follower:
    """Whoever was at work last: one run, or the slices of a workdir, those that join in meanwhile among them."""

    def __init__(self, workdir: Path) -> None:
        self._layout = Layout(workdir)
        self._runs: dict[str, RunFollower] = {}
        """By slice; empty = the whole."""
        self._sizes: dict[str, tuple[int, int]] = {}
        self.news: list[NewsLine] = []
        """What has come with the last look; with the first one, the last few lines of each run."""
        self._meet()

    def look(self) -> Snapshot:
        """Read what has come."""
        self._meet()
        seen = [(name, run.look()) for name, run in self._runs.items()]
        if "" in self._runs:
            self.news = self._runs[""].news
            return seen[0][1]
        news = (replace(line, words=f"{name}: {line.words}") for name, run in self._runs.items() for line in run.news)
        self.news = sorted(news, key=lambda line: line.t)
        self._measure({output.name for _, snapshot in seen for output in snapshot.outputs})
        return merged(seen, {name for name, run in self._runs.items() if run.alive}, self._sizes)

    @property
    def alive(self) -> bool:
        """Whether any of them is at work."""
        return any(run.alive for run in self._runs.values())

    @property
    def ending(self) -> int | None:
        """The worst of their exit codes; None where one lives, or ended without a word."""
        codes = [run.code for run in self._runs.values() if run.code is not None]
        return max(codes, default=None) if len(codes) == len(self._runs) else None

    def begun_anew(self) -> dict[tuple[str, int], int]:
        """By (output, chunk) of the attempts under way when a run ended without a word: the texts that they saved."""
        killed = [run for run in self._runs.values() if run.code is None and not run.alive]
        found = Counter[tuple[str, int]]()
        for layout, worker in ((run.layout, worker) for run in killed for worker in run.state.workers.values()):
            files = layout.output(worker.output).attempt(worker.chunk, worker.attempt)
            found[worker.output, worker.chunk] += sum(len(rows) for rows, _ in read_batch_log(files.batches).written)
        return dict(sorted(found.items()))

    def _meet(self) -> None:
        for folder in latest(self._layout) if "" not in self._runs else ():
            name = str(folder.slice or "")
            if name not in self._runs and (name or not self._runs):
                self._runs[name] = RunFollower(folder)

    def _measure(self, names: set[str]) -> None:
        """Learn how large outputs are, whoever has begun with his share of them; that never changes."""
        for name in names - self._sizes.keys():
            layout = self._layout.output(name)
            with contextlib.suppress(DamagedError, OSError):
                fixed, record = read_fixed(layout), read_staged(layout)
                if fixed is not None and record is not None:
                    self._sizes[name] = record.staged.rows, work_of(layout, fixed, record.staged)[0].count


def merged(parts: Sequence[tuple[str, Snapshot]], live: set[str], sizes: Mapping[str, tuple[int, int]]) -> Snapshot:
    """One snapshot of many, each with the name of its slice.

    `live` are the names of those that are at work, `sizes` rows and chunks of each output. Rates add up, and the
    slowest says how long it takes, once all slices are at work or done. What has ended counts for how far it is.
    """
    working = [(name, snapshot) for name, snapshot in parts if name in live]
    shown = working or list(parts)
    doing = Counter(snapshot.doing for _, snapshot in shown).most_common(1)[0][0]
    name, health = max(((name, snapshot.health) for name, snapshot in shown), key=lambda each: each[1].severity)
    if health.severity > Severity.NEWS:
        health = replace(health, words=f"slice {name}: {health.words}")
    etas = [snapshot.eta_s for _, snapshot in working]
    known = [eta_s for eta_s in etas if eta_s is not None]
    begun = sum(name in live or snapshot.share >= 1 for name, snapshot in parts)
    whole = begun == Slice.parse(parts[0][0]).count
    return Snapshot(
        doing=f"{doing} in {len(working)} slice{'s' * (len(working) != 1)}" if working else doing,
        elapsed_s=max(snapshot.elapsed_s for _, snapshot in shown),
        health=health,
        outputs=_outputs([snapshot for _, snapshot in parts], sizes),
        devices=tuple(
            replace(device, label=f"{name} {device.label}") for name, snapshot in working for device in snapshot.devices
        ),
        rows_per_s=sum(snapshot.rows_per_s or 0.0 for _, snapshot in working) or None,
        tokens_per_s=sum(snapshot.tokens_per_s or 0.0 for _, snapshot in working) or None,
        eta_s=max(known) if whole and known and len(known) == len(etas) else None,
        by_tokens=any(snapshot.by_tokens for _, snapshot in working),
        chunks_here=sum(snapshot.chunks_here for _, snapshot in parts),
    )


def _outputs(snapshots: Sequence[Snapshot], sizes: Mapping[str, tuple[int, int]]) -> tuple[OutputState, ...]:
    shares: dict[str, list[OutputState]] = {}
    for snapshot in snapshots:
        for output in snapshot.outputs:
            shares.setdefault(output.name, []).append(output)
    return tuple(_whole(name, found, *sizes.get(name, (0, 0))) for name, found in shares.items())


def _whole(name: str, shares: Sequence[OutputState], rows: int, chunks: int) -> OutputState:
    """An output by its shares; whoever has joined it, or found it complete, speaks for all."""
    if (complete := next((share for share in shares if share.complete), None)) is not None:
        return complete
    rows_done = sum(share.rows * share.share for share in shares)
    chunks_done = sum(share.chunks_done for share in shares)
    share, repeats = min(1.0, rows_done / rows) if rows else 0.0, any(each.repeats for each in shares)
    return OutputState(name, rows, share, chunks, min(chunks, chunks_done), repeats=repeats)
