"""How far a workdir is, read from its folder alone.

It never takes the lock and never writes: it works beside a live run, after one, and after one that was killed.
"""

import os
import time
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from chunkvisor.errors import lines_of_end, no_workdir
from chunkvisor.fixed import read_fixed, read_staged
from chunkvisor.journal import read_so_far
from chunkvisor.layout import Layout, OutputLayout, parse_chunk_name
from chunkvisor.lock import read_holder
from chunkvisor.manifest import read_quarantined
from chunkvisor.plan import Plan
from chunkvisor.seal import DamagedError
from chunkvisor.tally import DeviceStatus


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
class Status:
    """Of a workdir; the attribute names are the keys of `status --json`."""

    state: State
    pid: int | None
    """Of the run that holds the workdir, or held it last."""
    outputs: dict[str, OutputStatus]
    attempts: dict[str, int]
    """Ended attempts of all runs, by outcome."""
    rows_per_s: float | None
    eta_s: float | None
    devices: dict[str, DeviceStatus] = field(default_factory=dict)
    """By number, as the run that is or was last at work used them."""
    message: list[str] = field(default_factory=list)
    """The last words of the run that ended last."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def read_status(workdir: Path) -> Status:
    """The status. Raises Halt (78) where the folder is no workdir."""
    layout = Layout(workdir)
    holder = read_holder(layout.lock)
    if holder is None and not layout.outputs.exists():
        raise no_workdir(workdir)
    story = read_so_far(layout.events)[0].tally
    names = [path.name for path in sorted(layout.outputs.glob("*/"))]
    outputs = {name: _read_output(layout.output(name)) for name in names}
    alive = holder.alive() if holder else False
    if alive is None:  # another host: a live run writes its journal every few minutes at the least
        alive = time.time() - story.told_s < 900
    # A run that has said its last word is over, though its process may take a moment to end.
    running = bool(alive) and story.ending is None
    complete = bool(outputs) and all(name in outputs and outputs[name].complete for name in (story.wanted or outputs))
    if running:
        state = State.RUNNING
    elif complete:
        state = State.COMPLETE
    else:
        # After code 3 all was complete: since then, `retry` has made rows pending.
        halted = story.ending is not None and story.ending.get("code") not in (None, 0, 3, 130, 143)
        state = State.HALTED if halted else State.STOPPED
    rate = story.texts_per_s
    rows = sum(output.rows for output in outputs.values())
    distinct = sum(output.distinct_texts for output in outputs.values())
    return Status(
        state,
        holder.pid if holder else None,
        outputs,
        dict(story.attempts),
        round(rate * rows / distinct, 3) if rate and distinct else None,
        story.eta_s if running else None,
        story.devices,
        lines_of_end(story.ending or {}) if state is State.HALTED else [],
    )


def _read_output(layout: OutputLayout) -> OutputStatus:
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
