"""Follows all slices of a workdir as if they were one run.

It never takes a lock for longer than a look and never writes; of a run of the whole it is no more than its follower.
"""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from chunkvisor.events.event import Severity
from chunkvisor.events.progress import NewsLine
from chunkvisor.observe.follow import Follower
from chunkvisor.observe.snapshot import OutputState, RunHealth, Snapshot
from chunkvisor.store.fixed import Plan, read_fixed, read_staged
from chunkvisor.store.layout import Layout
from chunkvisor.store.runfolders import latest
from chunkvisor.store.seal import DamagedError
from chunkvisor.store.slices import Slice


def follower_of(workdir: Path) -> "Follower | SlicesFollower":
    """Whoever was at work last, of the whole or of its slices."""
    now = latest(Layout(workdir))
    return Follower(workdir) if now[0].slice is None else SlicesFollower(workdir)


class SlicesFollower:
    """The slices of a workdir, those that join in meanwhile among them."""

    def __init__(self, workdir: Path) -> None:
        self._layout = Layout(workdir)
        self._followers: dict[str, Follower] = {}
        self._sizes: dict[str, tuple[int, int]] = {}
        self.news: list[NewsLine] = []
        """What has come with the last look; with the first one, the last few lines of each slice."""
        self._meet()

    def look(self) -> Snapshot:
        """Read what has come."""
        self._meet()
        seen = [(name, follower.look()) for name, follower in self._followers.items()]
        news = (
            replace(line, words=f"{name}: {line.words}")
            for name, follower in self._followers.items()
            for line in follower.news
        )
        self.news = sorted(news, key=lambda line: line.t)
        self._measure({output.name for _, snapshot in seen for output in snapshot.outputs})
        return merged(seen, {name for name, follower in self._followers.items() if follower.alive}, self._sizes)

    @property
    def alive(self) -> bool:
        """Whether any slice is at work."""
        return any(follower.alive for follower in self._followers.values())

    @property
    def ending(self) -> int | None:
        """The worst of the slices' exit codes; None where one lives, or ended without a word."""
        codes = [follower.ending for follower in self._followers.values()]
        known = [code for code in codes if code is not None]
        return max(known, default=None) if len(known) == len(codes) else None

    def begun_anew(self) -> list[tuple[str, int]]:
        """(output, chunk) of attempts that were under way when their slice ended without a word."""
        return sorted(chunk for follower in self._followers.values() for chunk in follower.begun_anew())

    def _meet(self) -> None:
        for run in latest(self._layout):
            if str(run.slice) not in self._followers and run.slice is not None:
                self._followers[str(run.slice)] = Follower(run.workdir, run.slice)

    def _measure(self, names: set[str]) -> None:
        """Learn how large outputs are, whoever has begun with his share of them; that never changes."""
        for name in names - self._sizes.keys():
            layout = self._layout.output(name)
            with contextlib.suppress(DamagedError, OSError):
                fixed, record = read_fixed(layout), read_staged(layout)
                if fixed is not None and record is not None:
                    self._sizes[name] = record.staged.rows, Plan(record.staged.distinct, fixed.chunk_size).count


def merged(parts: Sequence[tuple[str, Snapshot]], live: set[str], sizes: Mapping[str, tuple[int, int]]) -> Snapshot:
    """One snapshot of many, each with the name of its slice.

    `live` are the names of those that are at work, `sizes` rows and chunks of each output. Rates add up, and the
    slowest says how long it takes, once all slices are at work or done. What has ended counts for how far it is.
    """
    working = [(name, snapshot) for name, snapshot in parts if name in live]
    shown = working or list(parts)
    doing = Counter(snapshot.doing for _, snapshot in shown).most_common(1)[0][0] if shown else "starting"
    name, worst = max(shown, key=lambda each: each[1].health.severity, default=("", None))
    health = worst.health if worst else RunHealth(Severity.NEWS, "all is well")
    if health.severity > Severity.NEWS:
        health = replace(health, words=f"slice {name}: {health.words}")
    etas = [snapshot.eta_s for _, snapshot in working]
    known = [eta_s for eta_s in etas if eta_s is not None]
    begun = sum(name in live or snapshot.share >= 1 for name, snapshot in parts)
    whole = bool(parts) and begun == Slice.parse(parts[0][0]).count
    return Snapshot(
        doing=f"{doing} in {len(working)} slice{'s' * (len(working) != 1)}" if working else doing,
        elapsed_s=max((snapshot.elapsed_s for _, snapshot in shown), default=0.0),
        health=health,
        outputs=_outputs([snapshot for _, snapshot in parts], sizes),
        devices=tuple(
            replace(device, label=f"{name} {device.label}") for name, snapshot in working for device in snapshot.devices
        ),
        rows_per_s=sum(snapshot.rows_per_s or 0.0 for _, snapshot in working) or None,
        tokens_per_s=sum(snapshot.tokens_per_s or 0.0 for _, snapshot in working) or None,
        eta_s=max(known) if whole and known and len(known) == len(etas) else None,
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
    for share in shares:
        if share.complete:
            return share
    rows_done = sum(share.rows * share.share for share in shares)
    chunks_done = sum(share.chunks_done for share in shares)
    return OutputState(name, rows, min(1.0, rows_done / rows) if rows else 0.0, chunks, min(chunks, chunks_done))
