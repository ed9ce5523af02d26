"""How far a workdir is, read from its folder alone: during a run, or after any end of it.

Nothing is written, and no lock is waited for. `Follower` reads the folder, `status_of` makes the
values of `status --json`, and `status_screen` the lines of `status`.
"""

import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from chunkvisor.errors import KEPT, ExitCode
from chunkvisor.events.journal import Tail
from chunkvisor.events.state import DeviceTimes, Progress
from chunkvisor.messages import BadReason, reasons_in_words, reasons_of
from chunkvisor.outputs.state import read
from chunkvisor.show.snapshot import PHASES, Snapshot, figure, percent, rows_in_words, take_snapshot
from chunkvisor.store.layout import Layout, OutputLayout, is_held, read_holder, require_workdir
from chunkvisor.units import counted, human_moment, human_time, listed
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.frozen import frozen

SCHEMA = 1
"""The version of `status --json`. It stays if a key is added, and rises if one is removed or
changes its meaning."""
_FOREIGN_SILENCE_S = 900.0
"""A run on another host counts as dead after this time without an event: a live one has one every
few minutes."""
_DONE = (0, 3)
"""Exit codes of a run that has come to the end of its work."""
_KILLED = "its process was killed, the machine went down, or the disk was full"
_STOPPED = {
    3: "stopped: the next run tries the rows without a vector again",
    130: "stopped by Ctrl-C (SIGINT); finished work is kept",
    143: "stopped by SIGTERM; finished work is kept",
}
_NEWS = 5  # lines of news that are shown at first


class State(StrEnum):
    """The state of a whole workdir."""

    RUNNING = "running"
    STOPPED = "stopped"
    HALTED = "halted"
    COMPLETE = "complete"


@frozen
class OutputStatus:
    """How far one output is; the attribute names are keys of `status --json`."""

    rows: int = 0
    """Rows of its source; 0 until it has been read."""
    rows_done: int = 0
    """Rows with a vector or in quarantine; an estimate until the output is complete, if texts
    repeat."""
    chunks: int = 0
    """Chunks of the texts to be encoded."""
    chunks_done: int = 0
    """Chunks that are committed."""
    quarantined: int = 0
    """Rows without a vector, so far."""
    complete: bool = False
    """Whether the final file is in its place."""
    distinct_texts: int = 0
    """Distinct texts."""
    reasons: tuple[BadReason, ...] = ()
    """Why rows have no vector, the most frequent first."""
    file: str = ""
    """The final file, if `chunkvisor encode` has moved it out of the workdir."""
    listed_in: str = ""
    """The file that lists each row without a vector."""
    truncated: int | None = None
    """Rows cut at the model's maximum length; `<output>.truncated.jsonl` lists them."""

    @property
    def progress(self) -> str:
        """`about 3 of 6 rows, 1 of 2 chunks`."""
        if not self.rows:
            return "nothing is known of it yet"
        is_under_way = not self.complete and 0 < self.rows_done < self.rows
        about = is_under_way and self.distinct_texts != self.rows
        chunks = f", {self.chunks_done:,} of {counted(self.chunks, 'chunk')}" if self.chunks else ""
        return rows_in_words(self.rows_done, self.rows, about=about) + chunks


@frozen
class Status:
    """How far a workdir is; the attribute names are the keys of `status --json`."""

    state: State
    """`running`, `stopped` (it can continue), `halted` (it ended with 69, 74, 75 or 78) or
    `complete`."""
    pid: int | None
    """Process of the run that holds the workdir, or held it last."""
    outputs: dict[str, OutputStatus]
    """Each output, by name."""
    attempts: dict[str, int]
    """Ended attempts of all runs, by outcome."""
    rows_per_s: float | None
    """During a run over its last 48 chunks; after it over the whole run, without the first start of
    the workers."""
    eta_s: float | None
    """Seconds until all outputs are complete."""
    devices: dict[str, DeviceTimes] = field(default_factory=dict)
    """Sums over the workers of the last run that have ended, by device: `CPU`, `GPU 0`."""
    message: list[str] = field(default_factory=list)
    """The last words of the run that ended last."""
    command: str = ""
    """What was typed last, and where, without secrets."""
    host: str = ""
    """Host of that process."""
    began_at: float | None = None
    """When the run began."""
    told_at: float | None = None
    """When it last reported an event."""

    start_s: dict[str, float] = field(default_factory=dict)
    """Seconds before the first batch, by what the run was doing."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the template and of workers that committed a chunk, by phase."""
    combined: dict[str, str] = field(default_factory=dict)
    """The finished files of `combine`, by name."""

    def to_dict(self) -> dict[str, Any]:
        """Return what `status --json` prints: the attributes, and `schema`."""
        return {"schema": SCHEMA, **asdict(self)}


class Follower:
    """Follows the run that works in a workdir, or did last, through its journal and its lock."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._tail = Tail(layout.events)
        self._refreshed = False

    def refresh(self) -> Snapshot:
        """Read what is new; `news` has its events with words, at first only the last few."""
        self.holder = read_holder(self.layout.lock)
        # Thousands of events may be new: most are never shown, so only the last are held.
        come = [each for each in deque(self._tail.read_new(), maxlen=1000) if each.event.line]
        self.state = self._tail.state
        self.news = come if self._refreshed else come[-_NEWS:]
        self._refreshed = True
        # Whether the run is on another host, whose processes cannot be seen.
        self.elsewhere = self.holder is not None and self.holder.alive() is None
        silent_s = time.time() - self.state.last_event_s
        # A run whose last event has come is over, though its process may take a moment to end.
        self.alive = self.state.ending is None and (
            is_held(self.layout.lock) or (self.elsewhere and silent_s < _FOREIGN_SILENCE_S)
        )
        # With our layout: the run may have seen the workdir under another path.
        return take_snapshot(self.state, self.layout, alive=self.alive)


def _output_status(layout: OutputLayout, known: Progress) -> OutputStatus:
    """Return how far an output is: by its manifest once it is complete, until then by events."""
    found = read(layout, check_file=False)
    manifest = found.manifest
    if manifest is not None:
        count = manifest["quarantined_rows"]
        return OutputStatus(
            manifest["rows"],
            manifest["rows"],
            known.chunks,
            known.chunks,
            count,
            True,
            manifest["distinct_texts"],
            reasons_of(manifest["quarantined"]),
            file="" if found.layout.place is None else str(found.layout.place),
            listed_in=str(found.layout.quarantined) if count else "",
            truncated=(manifest.get("truncated") or {}).get("rows"),
        )
    done = known.rows_done
    bad = known.without
    if known.complete:  # `retry` has made the rows without a vector pending again
        done = known.rows - bad
        bad = 0
    return OutputStatus(
        known.rows, done, known.chunks, known.chunks_done, bad, distinct_texts=known.distinct
    )


def status_of(run: Follower, now: Snapshot) -> Status:
    """Return the status of a run of which `now` is the newest snapshot."""
    known = run.state
    ending = known.ending
    there = sorted(path.name for path in run.layout.outputs.glob("*/"))
    # In the order of the config, then those that it no longer has.
    outputs = {
        name: _output_status(run.layout.output(name), now.outputs.get(name, Progress()))
        for name in dict.fromkeys((*known.wanted, *there))
        if name in there
    }
    combined = {}
    for path in sorted(run.layout.all_combined.glob("*/")):
        each = run.layout.combined(path.name)
        if each.final.exists() and each.manifest.exists():
            combined[path.name] = str(each.final)
    state = State.STOPPED
    if run.alive:
        state = State.RUNNING
    elif outputs and all(n in outputs and outputs[n].complete for n in known.wanted or outputs):
        state = State.COMPLETE
    elif ending and ending.code not in (*_STOPPED, *_DONE):
        state = State.HALTED
    # The last words are shown after a halt, and after a stop for which there was a reason.
    message = list[str]()
    had_trouble = ending and ending.code not in _DONE and ending.why
    if ending and (state is State.HALTED or (state is State.STOPPED and had_trouble)):
        message = ending.last_words
    return Status(
        state,
        run.holder.pid if run.holder else None,
        outputs,
        dict(Counter(known.attempts_before) + Counter(known.attempts)),
        round(now.rows_per_s, 3) if now.rows_per_s else None,
        round(now.eta_s, 1) if run.alive and now.eta_s is not None else None,
        {
            known.devices.get(n, f"device {n}"): known.device_times.get(n, DeviceTimes())
            for n in known.devices | known.device_times
        },
        message,
        known.command,
        run.holder.host if run.holder else "",
        known.began_s or None,
        known.last_event_s or None,
        {doing: round(seconds, 2) for doing, seconds in known.start_s.items()},
        {phase: round(seconds, 2) for phase, seconds in known.phases_s.items()},
        combined,
    )


def read_status(workdir: Path) -> tuple[Status, list[str]]:
    """Return the status, and the lines that `chunkvisor status` prints.

    Raises Halt (78) if the folder is not a workdir.
    """
    run = Follower(require_workdir(workdir))
    now = run.refresh()
    status = status_of(run, now)
    return status, status_screen(status, now, workdir, elsewhere=run.elsewhere)


def status_screen(
    status: Status, now: Snapshot, workdir: Path, *, elsewhere: bool = False
) -> list[str]:
    """Say in a few lines the state, how far it is, whether to worry and what to do."""
    head, *last = _state_lines(status, now, workdir, elsewhere)
    return [head, *(f"  {line}" for line in (*_detail_lines(status, now), *last))]


def _state_lines(status: Status, now: Snapshot, workdir: Path, elsewhere: bool) -> Iterator[str]:
    """Say the state in the first line, and what to do in the others."""
    ending = now.state.ending
    if status.state is State.RUNNING:
        where = f"pid {status.pid}"
        if elsewhere:
            silent = human_time(max(0.0, time.time() - (status.told_at or 0.0)))
            where += (
                f" on {status.host}, last sign of life {silent} ago, more cannot be seen from here"
            )
        yield f"running ({where}): {now.stage}"
        yield now.health
        yield f"to follow it: chunkvisor status --watch {workdir}"
        return
    if status.state is State.COMPLETE:
        yield from _complete_lines(status, workdir)
        return
    if status.state is State.HALTED:
        yield "halted"
    elif ending:
        yield _STOPPED.get(ending.code, f"stopped: the last run ended with code {ending.code}")
    else:
        kept = any(output.rows_done for output in status.outputs.values())
        yield f"stopped: {_KILLED}{KEPT if kept else ''}"
    repair = ending and ending.code in (ExitCode.MACHINE, ExitCode.DISK, ExitCode.CONFIG)
    first = "do what is said above, then " if repair else ""
    yield f"to continue: {first}run the same command again"
    if status.command:
        yield f"the command: {status.command}"


def _detail_lines(status: Status, now: Snapshot) -> Iterator[str]:
    """Say what went wrong, how far the outputs are, and how the time was spent."""
    yield from status.message
    for name, output in status.outputs.items():
        words = f"{name}: "
        if output.rows:
            words += f"{percent(output.rows_done / output.rows)}, "
        words += output.progress
        if output.quarantined:
            words += f", {counted(output.quarantined, 'row')} without a vector"
        if output.truncated:
            words += f", {counted(output.truncated, 'row')} cut"
        yield words
    for name in status.combined:
        yield f"{name}: combined, complete"
    if status.state is State.RUNNING:
        if now.rates:
            yield ", ".join(now.rates)
        yield from now.workers
    else:
        yield from _time_lines(status, now)
    for name, times in status.devices.items():
        if times.fragmented and Outcome.GPU_OOM in status.attempts:
            yield f"{name}: {times.fragmented}"
            yield "set env: {PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True}"
    if status.attempts:
        ended = (f"{count:,} {outcome}" for outcome, count in status.attempts.items())
        yield f"attempts: {', '.join(ended)}"
    if status.began_at and status.told_at:
        last = "ended" if now.state.ending else "last sign of life"
        yield (
            f"began {human_moment(status.began_at)}, {last} {human_moment(status.told_at)}, "
            f"after {human_time(status.told_at - status.began_at)}"
        )


def _time_lines(status: Status, now: Snapshot) -> Iterator[str]:
    """Say how the time of a run that is over was spent."""
    for name, times in status.devices.items():
        if times.busy_s:
            rate = figure(times.texts / times.busy_s)
            idle = 100 * times.idle_s / (times.busy_s + times.idle_s)
            yield f"{name}: {rate} texts/s while computing, idle {idle:.1f} % between chunks"
    if now.state.first_go_s is not None:
        phases = ", ".join(_phases_in_words(status.start_s))
        yield f"{human_time(sum(status.start_s.values()))} before the first batch" + (
            f" ({phases})" if phases else ""
        )
    spent = _phases_in_words(status.phases_s)
    if spent:
        yield f"all workers together: {'; '.join(spent)}"


def _phases_in_words(times: Mapping[str, float]) -> list[str]:
    return [
        f"{PHASES.get(name, name)} {human_time(each_s)}"
        for name, each_s in times.items()
        if 1 <= each_s < 1e9  # a damaged journal may have NaN
    ]


def _complete_lines(status: Status, workdir: Path) -> Iterator[str]:
    """Say where the files are, and which rows have no vector."""
    lacking = {name: output for name, output in status.outputs.items() if output.quarantined}
    bad = sum(output.quarantined for output in lacking.values())
    if not bad:
        yield "complete"
        moved = [f"file is {output.file}" for output in status.outputs.values() if output.file]
        yield f"nothing to do; the {moved[0] if moved else f'files are in {workdir}'}"
        return
    yield f"complete, but {counted(bad, 'row')} {'has' if bad == 1 else 'have'} no vector"
    for name, output in lacking.items():
        for words in reasons_in_words(output.reasons, output.quarantined):
            yield f"{name}: {words}"
    yield f"which rows: {listed([output.listed_in for output in lacking.values()], 3)}"
    yield f"to try {'it' if bad == 1 else 'them'} again: chunkvisor retry {workdir}, then run again"
    yield "see: chunkvisor explain quarantine"
