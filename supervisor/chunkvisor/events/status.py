"""How far a workdir is, read from its folder alone.

It never takes the lock and never writes: it works beside a live run, after one, and after one that was killed.
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from chunkvisor.assemble.manifest import read_quarantined
from chunkvisor.errors import lines_of_end, no_workdir
from chunkvisor.events.journal import read_so_far
from chunkvisor.events.tally import DeviceStatus, Tally
from chunkvisor.store.fixed import read_fixed, read_staged
from chunkvisor.store.layout import Layout, OutputLayout, parse_chunk_name
from chunkvisor.store.lock import Holder, read_holder
from chunkvisor.store.plan import Plan
from chunkvisor.store.runfolders import all_desks, latest, lives
from chunkvisor.store.seal import DamagedError


class State(StrEnum):
    """Of a whole workdir."""

    RUNNING = "running"
    STOPPED = "stopped"
    HALTED = "halted"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class OutputStatus:
    """Of one output."""

    rows: int = 0
    rows_done: int = 0
    """Rows whose text is encoded; estimated from the share of distinct texts until the output is complete."""
    chunks: int = 0
    chunks_done: int = 0
    quarantined: int = 0
    complete: bool = False
    distinct_texts: int = 0


@dataclass(frozen=True, slots=True)
class SliceStatus:
    """Of one slice, as its own journal has it."""

    slice: str
    """Such as 3/8."""
    state: State
    """COMPLETE: its share is done."""
    pid: int | None
    host: str | None
    chunks: int
    """Of its share, of all outputs; 0 until it has read them."""
    chunks_done: int
    texts_per_s: float | None
    eta_s: float | None


@dataclass(frozen=True, slots=True)
class Status:
    """Of a workdir; the attribute names are the keys of `status --json`."""

    state: State
    pid: int | None
    """Of the run that holds the workdir, or held it last; with slices, of the first of them that is at work."""
    outputs: dict[str, OutputStatus]
    attempts: dict[str, int]
    """Ended attempts of all runs, by outcome."""
    rows_per_s: float | None
    eta_s: float | None
    devices: dict[str, DeviceStatus] = field(default_factory=dict)
    """By number, as the run that is or was last at work used them."""
    message: list[str] = field(default_factory=list)
    """The last words of the run that ended last."""
    slices: list[SliceStatus] = field(default_factory=list)
    """Of the cut that was worked on last; none where that was a run of the whole."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Desk:
    """One who works, or worked, in the workdir."""

    layout: Layout
    holder: Holder | None
    story: Tally
    running: bool

    @property
    def done(self) -> bool:
        """Whether it has come to the end of its work."""
        return self.story.ending is not None and self.story.ending.get("code") in (0, 3)

    @property
    def halted(self) -> bool:
        """Whether its last word was that it cannot go on.

        After code 3 all was complete: since then, `retry` has made rows pending.
        """
        ending = self.story.ending
        return not self.running and ending is not None and ending.get("code") not in (None, 0, 3, 130, 143)


def read_status(workdir: Path) -> Status:
    """The status. Raises Halt (78) where the folder is no workdir."""
    layout = Layout(workdir)
    desks = [_read_desk(desk) for desk in all_desks(layout)]
    if not layout.outputs.exists() and all(desk.holder is None for desk in desks):
        raise no_workdir(workdir)
    names = [path.name for path in sorted(layout.outputs.glob("*/"))]
    outputs = {name: read_output(layout.output(name)) for name in names}
    now = latest(layout)
    last = [desk for desk in desks if desk.layout in now]
    newest = max(last, key=lambda desk: desk.story.told_s)
    running = [desk for desk in last if desk.running]
    wanted = newest.story.wanted or outputs
    if running:
        state = State.RUNNING
    elif bool(outputs) and all(name in outputs and outputs[name].complete for name in wanted):
        state = State.COMPLETE
    else:
        state = State.HALTED if any(desk.halted for desk in last) else State.STOPPED
    told = running or [newest]
    rate = sum(desk.story.texts_per_s or 0.0 for desk in told)
    rows = sum(output.rows for output in outputs.values())
    distinct = sum(output.distinct_texts for output in outputs.values())
    etas = [desk.story.eta_s for desk in running]
    known = [eta_s for eta_s in etas if eta_s is not None]
    attempts = sum((Counter(desk.story.attempts) for desk in desks), Counter[str]())
    return Status(
        state,
        told[0].holder.pid if told[0].holder else None,
        outputs,
        dict(attempts),
        round(rate * rows / distinct, 3) if rate and distinct else None,
        max(known) if known and len(known) == len(etas) and not _some_to_come(last) else None,
        {_place(desk, number): device for desk in last for number, device in desk.story.devices.items()},
        [line for desk in last if desk.halted for line in _last_words(desk)] if state is State.HALTED else [],
        [_read_slice(desk) for desk in last if desk.layout.slice is not None],
    )


def _read_desk(layout: Layout) -> _Desk:
    holder, story = read_holder(layout.lock), read_so_far(layout.events)[0].tally
    # A run that has said its last word is over, though its process may take a moment to end.
    return _Desk(layout, holder, story, story.ending is None and lives(layout, holder, story.told_s))


def _read_slice(desk: _Desk) -> SliceStatus:
    story = desk.story
    ended = State.COMPLETE if desk.done else State.HALTED if desk.halted else State.STOPPED
    return SliceStatus(
        str(desk.layout.slice),
        State.RUNNING if desk.running else ended,
        desk.holder.pid if desk.holder else None,
        desk.holder.host if desk.holder else None,
        sum(share.chunks for share in story.shares.values()),
        sum(share.chunks_done for share in story.shares.values()),
        story.texts_per_s,
        story.eta_s if desk.running else None,
    )


def _some_to_come(desks: Sequence[_Desk]) -> bool:
    """Whether there are slices that are neither at work nor done: how long they take cannot be told."""
    of = desks[0].layout.slice
    return of is not None and of.count > sum(desk.running or desk.done for desk in desks)


def _place(desk: _Desk, device: str) -> str:
    return device if desk.layout.slice is None else f"{device} of slice {desk.layout.slice}"


def _last_words(desk: _Desk) -> list[str]:
    lines = lines_of_end(desk.story.ending or {})
    return lines if desk.layout.slice is None else [f"slice {desk.layout.slice}:", *lines]


def read_output(layout: OutputLayout) -> OutputStatus:
    """How far one output is, by its records and the names of its chunks."""
    try:
        quarantined, fixed, record = read_quarantined(layout), read_fixed(layout), read_staged(layout)
    except DamagedError:
        return OutputStatus()
    if fixed is None or record is None:
        return OutputStatus()
    rows, distinct = record.staged.rows, record.staged.distinct
    plan = Plan(distinct, fixed.chunk_size)
    if quarantined is not None:
        count = len(quarantined)
        return OutputStatus(rows, rows, plan.count, plan.count, count, complete=True, distinct_texts=distinct)
    chunks = committed_chunks(layout, plan)
    done = rows * plan.texts_in(chunks) // max(1, distinct)
    return OutputStatus(rows, done, plan.count, chunks.count(1), distinct_texts=distinct)


def committed_chunks(layout: OutputLayout, plan: Plan) -> bytearray:
    """One byte a chunk: 1 where it has a file, by the names alone."""
    found = bytearray(plan.count)
    for folder in layout.chunks.iterdir() if layout.chunks.exists() else ():
        for name in os.listdir(folder) if folder.is_dir() else ():  # noqa: PTH208 - no Path for each
            if (parsed := parse_chunk_name(name)) and parsed[0] < len(found):
                found[parsed[0]] = 1
    return found
