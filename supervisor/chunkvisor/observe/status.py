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
from chunkvisor.errors import no_workdir
from chunkvisor.events.journal import read_state
from chunkvisor.events.progress import DeviceTimes
from chunkvisor.events.state import RunState
from chunkvisor.store.fixed import Plan, read_fixed, read_staged
from chunkvisor.store.layout import Layout, OutputLayout, parse_chunk_name
from chunkvisor.store.lock import Holder, read_holder
from chunkvisor.store.runfolders import all_runs, latest, lives
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
    devices: dict[str, DeviceTimes] = field(default_factory=dict)
    """By number, as the run that is or was last at work used them."""
    message: list[str] = field(default_factory=list)
    """The last words of the run that ended last."""
    slices: list[SliceStatus] = field(default_factory=list)
    """Of the cut that was worked on last; none where that was a run of the whole."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _RunFolder:
    """One who works, or worked, in the workdir."""

    layout: Layout
    holder: Holder | None
    told: RunState
    running: bool

    @property
    def done(self) -> bool:
        """Whether it has come to the end of its work."""
        return self.told.ending is not None and self.told.ending.code in (0, 3)

    @property
    def halted(self) -> bool:
        """Whether its last word was that it cannot go on.

        After code 3 all was complete: since then, `retry` has made rows pending.
        """
        ending = self.told.ending
        return not self.running and ending is not None and ending.code not in (0, 3, 130, 143)


def read_status(workdir: Path) -> Status:
    """The status. Raises Halt (78) where the folder is no workdir."""
    layout = Layout(workdir)
    folders = [_read_folder(folder) for folder in all_runs(layout)]
    if not layout.outputs.exists() and all(folder.holder is None for folder in folders):
        raise no_workdir(workdir)
    names = [path.name for path in sorted(layout.outputs.glob("*/"))]
    outputs = {name: read_output(layout.output(name)) for name in names}
    now = latest(layout)
    last = [folder for folder in folders if folder.layout in now]
    newest = max(last, key=lambda folder: folder.told.told_s)
    running = [folder for folder in last if folder.running]
    wanted = newest.told.wanted or outputs
    if running:
        state = State.RUNNING
    elif bool(outputs) and all(name in outputs and outputs[name].complete for name in wanted):
        state = State.COMPLETE
    else:
        state = State.HALTED if any(folder.halted for folder in last) else State.STOPPED
    told = running or [newest]
    rate = sum(folder.told.texts_per_s or 0.0 for folder in told)
    rows = sum(output.rows for output in outputs.values())
    distinct = sum(output.distinct_texts for output in outputs.values())
    etas = [folder.told.eta_s for folder in running]
    known = [eta_s for eta_s in etas if eta_s is not None]
    counts = (each for folder in folders for each in (folder.told.attempts_before, folder.told.attempts))
    attempts = sum(map(Counter, counts), Counter[str]())
    return Status(
        state,
        told[0].holder.pid if told[0].holder else None,
        outputs,
        dict(attempts),
        round(rate * rows / distinct, 3) if rate and distinct else None,
        max(known) if known and len(known) == len(etas) and not _some_to_come(last) else None,
        {_place(folder, number): device for folder in last for number, device in folder.told.device_times.items()},
        [line for folder in last if folder.halted for line in _last_words(folder)] if state is State.HALTED else [],
        [_read_slice(folder) for folder in last if folder.layout.slice is not None],
    )


def _read_folder(layout: Layout) -> _RunFolder:
    holder, told = read_holder(layout.lock), read_state(layout.events)[0]
    # A run that has said its last word is over, though its process may take a moment to end.
    return _RunFolder(layout, holder, told, told.ending is None and lives(layout, holder, told.told_s))


def _read_slice(folder: _RunFolder) -> SliceStatus:
    told = folder.told
    ended = State.COMPLETE if folder.done else State.HALTED if folder.halted else State.STOPPED
    return SliceStatus(
        str(folder.layout.slice),
        State.RUNNING if folder.running else ended,
        folder.holder.pid if folder.holder else None,
        folder.holder.host if folder.holder else None,
        sum(share.chunks for share in told.shares.values()),
        sum(share.chunks_done for share in told.shares.values()),
        told.texts_per_s,
        told.eta_s if folder.running else None,
    )


def _some_to_come(folders: Sequence[_RunFolder]) -> bool:
    """Whether there are slices that are neither at work nor done: how long they take cannot be told."""
    of = folders[0].layout.slice
    return of is not None and of.count > sum(folder.running or folder.done for folder in folders)


def _place(folder: _RunFolder, device: str) -> str:
    return device if folder.layout.slice is None else f"{device} of slice {folder.layout.slice}"


def _last_words(folder: _RunFolder) -> list[str]:
    lines = folder.told.ending.last_words if folder.told.ending is not None else []
    return lines if folder.layout.slice is None else [f"slice {folder.layout.slice}:", *lines]


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
