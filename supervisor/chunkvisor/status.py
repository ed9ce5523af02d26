"""How far a workdir is, read from its folder alone.

It never takes the lock and never writes: it works beside a live run, after one, and after one that was killed.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from chunkvisor.desks import all_desks, at_work, latest
from chunkvisor.errors import lines_of_end, no_workdir
from chunkvisor.fixed import read_fixed, read_staged
from chunkvisor.journal import read_events
from chunkvisor.layout import Layout, OutputLayout, parse_chunk_name
from chunkvisor.lock import Holder, read_holder
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
    shares: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Output -> chunks that are done, and that there are, for this run."""


@dataclass(frozen=True, slots=True)
class _Desk:
    """One who works, or worked, in the workdir."""

    layout: Layout
    holder: Holder | None
    story: _Story
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
    attempts = sum((desk.story.attempts for desk in desks), Counter[str]())
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
    holder, story = read_holder(layout.lock), _read_story(layout)
    alive = at_work(layout, holder)
    if alive is None:  # another host: a live run writes its journal every few minutes at the least
        alive = time.time() - story.told_s < 900
    # A run that has said its last word is over, though its process may take a moment to end.
    return _Desk(layout, holder, story, alive and story.ending is None)


def _read_slice(desk: _Desk) -> SliceStatus:
    story = desk.story
    ended = State.COMPLETE if desk.done else State.HALTED if desk.halted else State.STOPPED
    return SliceStatus(
        str(desk.layout.slice),
        State.RUNNING if desk.running else ended,
        desk.holder.pid if desk.holder else None,
        desk.holder.host if desk.holder else None,
        sum(chunks for _, chunks in story.shares.values()),
        sum(chunks_done for chunks_done, _ in story.shares.values()),
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


def _read_story(layout: Layout) -> _Story:
    story = _Story()
    for event in read_events(layout.events):
        story.told_s = _number(event.get("t")) or 0.0
        match event["event"]:
            case "run_started":
                story.ending, story.eta_s, story.texts_per_s, story.devices, story.shares = None, None, None, {}, {}
                wanted = event.get("outputs")
                story.wanted = list(map(str, wanted)) if isinstance(wanted, list) else []
            case "output_opened":
                # The slice that joins opens the output a second time, as a whole.
                share = int(_number(event.get("chunks_done")) or 0), int(_number(event.get("chunks")) or 0)
                story.shares.setdefault(str(event.get("output")), share)
            case "chunk_committed":
                share = int(_number(event.get("chunks_done")) or 0), int(_number(event.get("chunks")) or 0)
                story.shares[str(event.get("output"))] = share
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
