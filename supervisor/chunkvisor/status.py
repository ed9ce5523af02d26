"""How far a workdir is, read from its folder alone.

It never takes the lock and never writes: it works beside a live run, after one, and after one that was killed.
"""

import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from chunkvisor.errors import lines_of_end, no_workdir
from chunkvisor.fixed import read_fixed, read_staged
from chunkvisor.journal import read_events
from chunkvisor.layout import Layout, OutputLayout, parse_chunk_name
from chunkvisor.lock import read_holder
from chunkvisor.manifest import read_quarantined
from chunkvisor.plan import Plan
from chunkvisor.seal import DamagedError
from chunkvisor_worker.contract.exits import Outcome


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


@dataclass(slots=True)
class DeviceStatus:
    """Of one device, in one run."""

    texts: int = 0
    tokens: int = 0
    """Without padding; 0 where the encoder cannot count them."""
    busy_s: float = 0.0
    """From a worker's `go` to its end."""
    idle_s: float = 0.0
    """Between one worker's end and the next one's `go`: what isolation costs."""
    startup_s: float = 0.0
    """Imports, loading and tokenising of all workers; what of it is not in `idle_s` was hidden behind others' work."""
    texts_per_s: float | None = None
    """While busy."""
    tokens_per_s: float | None = None

    def add(self, event: dict[str, Any]) -> None:
        """Take in the end of a worker."""
        for name in ("texts", "tokens", "busy_s", "idle_s", "startup_s"):
            setattr(self, name, round(getattr(self, name) + (_number(event.get(name)) or 0), 4))
        if self.busy_s:
            self.texts_per_s = round(self.texts / self.busy_s, 3)
            self.tokens_per_s = round(self.tokens / self.busy_s, 3) if self.tokens else None


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


@dataclass(slots=True)
class _Story:
    """What the journal says."""

    attempts: Counter[str] = field(default_factory=Counter)
    texts_per_s: float | None = None
    eta_s: float | None = None
    told_s: float = 0.0
    ending: dict[str, Any] | None = None
    devices: dict[str, DeviceStatus] = field(default_factory=dict)
    wanted: list[str] = field(default_factory=list)
    """Outputs of the last run's config."""


def read_status(workdir: Path) -> Status:
    """The status. Raises Halt (78) where the folder is no workdir."""
    layout = Layout(workdir)
    holder = read_holder(layout.lock)
    if holder is None and not layout.outputs.exists():
        raise no_workdir(workdir)
    story = _read_story(layout)
    names = [path.name for path in sorted(layout.outputs.glob("*/"))]
    outputs = {name: read_output(layout.output(name)) for name in names}
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


def _read_story(layout: Layout) -> _Story:
    story = _Story()
    for event in read_events(layout.events):
        story.told_s = _number(event.get("t")) or 0.0
        match event["event"]:
            case "run_started":
                story.ending, story.eta_s, story.texts_per_s, story.devices = None, None, None, {}
                wanted = event.get("outputs")
                story.wanted = list(map(str, wanted)) if isinstance(wanted, list) else []
            case "chunk_committed":
                # A chunk that was taken apart was put together by no attempt of its own.
                story.attempts[Outcome.COMMITTED] += bool(event.get("attempt_ok"))
                story.texts_per_s, story.eta_s = _number(event.get("texts_per_s")), _number(event.get("eta_s"))
            case "worker_ended":
                story.devices.setdefault(str(event.get("device")), DeviceStatus()).add(event)
            case "part_committed":
                story.attempts[Outcome.COMMITTED] += 1
            case "attempt_failed" | "part_failed" | "attempt_interrupted":
                story.attempts[str(event.get("outcome"))] += 1
            case "halted" | "run_ended":
                story.ending = event
    return story


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, float) or (type(value) is int and abs(value) < 1 << 53) else None


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
    chunks = [number for number in committed_chunks(layout) if number < plan.count]
    texts = sum(map(plan.size, chunks))
    return OutputStatus(rows, rows * texts // max(1, distinct), plan.count, len(chunks), distinct_texts=distinct)


def committed_chunks(layout: OutputLayout) -> set[int]:
    """Numbers of the chunks that have a file, by their names alone."""
    numbers = set()
    for folder in layout.chunks.iterdir() if layout.chunks.exists() else ():
        for path in folder.iterdir() if folder.is_dir() else ():
            if parsed := parse_chunk_name(path.name):
                numbers.add(parsed[0])
    return numbers
