"""What the journals of a workdir tell over time, as a report shows it.

It never keeps more than a bounded part of it: a journal can be long, damaged or a lie.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from chunkvisor.events import attempt as of_attempt
from chunkvisor.events import device as of_device
from chunkvisor.events import output as of_output
from chunkvisor.events import run as of_run
from chunkvisor.events.event import Event
from chunkvisor.events.journal import Entry
from chunkvisor.events.progress import AttemptKey
from chunkvisor.observe.pace import Pace
from chunkvisor.observe.report.attemptspans import Kind, kind_of
from chunkvisor.observe.report.attempttracker import AttemptTracker
from chunkvisor.observe.report.bins import Bins
from chunkvisor.observe.report.ceiling import Ceiling, ceiling_of
from chunkvisor_worker.contract.exits import Outcome

_RUNS = 200
_FAILURES = 40
_QUARANTINED = 200
_CEILINGS = 400
_NOTED = 200
_DAY_S = 86400.0

_NOTES: dict[type[Event], str] = {
    of_run.Waiting: "waited {0.delay_s:.0f} s: {0.reason}",
    of_output.WaitingToJoin: "waited for disk space: {0.reason}",
    of_device.WarmGivenUp: "warm starts were given up: {0.reason}",
    of_device.DeviceDropped: "{0.device} was left out: {0.why}",
    of_device.GpuBusy: "{0.device}: waited, {0.why}",
    of_device.GpuBlind: "{0.device}: {0.why}",
    of_attempt.ChunkSetAside: "{0.output} chunk {0.chunk} was set aside",
    of_attempt.ChunkDamaged: "{0.output} chunk {0.chunk} was damaged: {0.why}",
}


@dataclass(slots=True)
class Run:
    """One invocation, as the journal tells it."""

    run_id: str
    start_s: float
    stop_s: float
    slice: str = ""
    """Such as 3/8; empty for a run of the whole."""
    device: str = ""
    code: int | None = None
    """None: it said no last word."""
    what: str = ""
    why: str = ""
    remedy: str = ""
    log: str = ""


@dataclass(slots=True)
class Failure:
    """Failed attempts of one kind."""

    outcome: str
    rule: str
    count: int = 0
    reason: str = ""
    """Of the last one, like what follows."""
    phase: str = ""
    output: str = ""
    chunk: int = 0
    attempt: int = 0
    at_s: float = 0.0


@dataclass(slots=True)
class History:
    """What is known of a workdir's runs."""

    runs: list[Run] = field(default_factory=list)
    runs_left_out: int = 0
    texts: Bins = field(default_factory=Bins)
    tokens: int = 0
    padded_tokens: int = 0
    texts_done: int = 0
    chunks_done: int = 0
    pace: Pace = field(default_factory=Pace)
    outcomes: Counter[str] = field(default_factory=Counter)
    attempts: AttemptTracker = field(default_factory=AttemptTracker)
    ceilings: list[Ceiling] = field(default_factory=list)
    phase_s: dict[str, float] = field(default_factory=dict)
    startup_s: float = 0.0
    idle_s: float = 0.0
    busy_s: float = 0.0
    failures: dict[tuple[str, str], Failure] = field(default_factory=dict)
    quarantined: dict[tuple[str, int], of_attempt.Quarantined] = field(default_factory=dict)
    notes: list[tuple[float, str]] = field(default_factory=list)
    """What was waited for, given up or left out, newest last."""
    outputs: list[str] = field(default_factory=list)
    """Of the last run's config."""
    _last_s: float | None = None
    """When a chunk was committed last, or the last run began, in whichever journal."""
    _in_parts: dict[tuple[str, int], int] = field(default_factory=dict)
    """Texts of a chunk that was taken apart, as far as they are counted already."""

    def apply(self, entry: Entry, of_slice: str = "") -> None:
        """Take in one event of the journal, of that slice where it is one's."""
        at_s, event = entry.t, entry.event
        run = self._run(entry.run, at_s, of_slice)
        match event:
            case of_attempt.AttemptStarted():
                device = f"{event.device} of slice {run.slice}" if run.slice else str(event.device)
                self.attempts.started(_attempt_of(event), device)
            case of_attempt.Go():
                self._go(event, at_s)
            case of_attempt.WorkerEnded():
                self._worker_ended(event, at_s)
            case of_attempt.ChunkCommitted():
                self._committed(event, at_s)
            case of_attempt.PartCommitted():
                self._part_committed(event, at_s)
            case of_attempt.FailureEvent():
                self._failed(event, at_s)
            case of_attempt.Quarantined():
                if len(self.quarantined) < _QUARANTINED:
                    self.quarantined[event.output[:100], event.row] = event
            case of_output.Assembling():
                self._began(at_s)
            case of_run.RunStarted():
                run.device, self.outputs = event.device[:200], [name[:100] for name in event.outputs]
            case of_run.RunEnded() | of_run.Halted():
                run.code = event.code
                if isinstance(event, of_run.Halted):
                    words = (event.what, event.why, event.remedy, event.log)
                    run.what, run.why, run.remedy, run.log = (each[:2000] for each in words)
                self.attempts.cut_off(run.stop_s)
            case _ if note := _NOTES.get(type(event)):
                self.notes = [*self.notes[-_NOTED:], (at_s, note.format(event)[:300])]

    def finish(self) -> None:
        """After the last event: what is still open was cut off, and what several journals told is put in order."""
        if self.runs:
            self.attempts.cut_off(self.runs[-1].stop_s)
        self.runs.sort(key=lambda run: run.start_s)
        self.notes.sort(key=lambda note: note[0])
        self.ceilings.sort(key=lambda ceiling: ceiling.at_s)
        self.pace.last_s = self._last_s

    def _run(self, run_id: str, at_s: float, of_slice: str) -> Run:
        if not self.runs or self.runs[-1].run_id != run_id:
            if self.runs:
                self.attempts.cut_off(self.runs[-1].stop_s)
            self.runs.append(Run(run_id, at_s, at_s, of_slice))
            self._began(at_s)
            if len(self.runs) > _RUNS:
                self.runs.pop(0)
                self.runs_left_out += 1
        run = self.runs[-1]
        run.stop_s = max(run.stop_s, min(at_s, run.stop_s + 30 * _DAY_S))
        return run

    def _began(self, at_s: float) -> None:
        self.pace.began(at_s)
        self._last_s = max(at_s, self._last_s or at_s)

    def _go(self, event: of_attempt.Go, at_s: float) -> None:
        self.attempts.go(_attempt_of(event), at_s)
        ceiling = ceiling_of(event, at_s)
        if not self.ceilings or replace(self.ceilings[-1], at_s=at_s) != ceiling:
            self.ceilings.append(ceiling)
            if len(self.ceilings) > _CEILINGS:
                self.ceilings = self.ceilings[:1] + self.ceilings[2::2]

    def _worker_ended(self, event: of_attempt.WorkerEnded, at_s: float) -> None:
        self.startup_s += event.startup_s
        self.idle_s += event.idle_s
        self.busy_s += event.busy_s
        self.attempts.ended(_attempt_of(event), at_s, event.opening_s + event.busy_s, event.returncode == 0)

    def _committed(self, event: of_attempt.ChunkCommitted, at_s: float) -> None:
        self.outcomes[Outcome.COMMITTED] += event.attempt_ok
        self.texts_done, self.chunks_done = self.texts_done + event.texts, self.chunks_done + 1
        self.pace.committed(at_s)
        self._last_s = max(at_s, self._last_s or at_s)
        self.tokens += event.tokens
        self.padded_tokens += event.padded_tokens
        for phase, seconds in event.phase_s.items():
            if len(self.phase_s) < _FAILURES or phase in self.phase_s:
                self.phase_s[phase[:40]] = self.phase_s.get(phase[:40], 0.0) + seconds
        place = (event.output[:100], event.chunk)
        self._spread(place, event.texts - self._in_parts.pop(place, 0), at_s, attempt_ok=event.attempt_ok)

    def _part_committed(self, event: of_attempt.PartCommitted, at_s: float) -> None:
        self.outcomes[Outcome.COMMITTED] += 1
        texts = event.stop - event.start
        place = (event.output[:100], event.chunk)
        self._in_parts[place] = self._in_parts.get(place, 0) + texts
        while len(self._in_parts) > _NOTED:
            self._in_parts.pop(next(iter(self._in_parts)))
        self._spread(place, texts, at_s, attempt_ok=True)

    def _spread(self, place: tuple[str, int], texts: int, at_s: float, *, attempt_ok: bool) -> None:
        """Count texts while the attempt that made them had the device."""
        span = self.attempts.last_of(place)
        if texts <= 0:
            return
        if span is None or not attempt_ok:
            self.texts.add(at_s, texts)
            return
        span.kind = Kind.DONE
        self.texts.spread(span.start_s, span.stop_s, texts)

    def _failed(self, event: of_attempt.FailureEvent, at_s: float) -> None:
        outcome, rule = event.outcome[:40], event.rule[:80]
        if outcome not in self.outcomes and len(self.outcomes) >= _FAILURES:
            outcome = "other"  # a damaged journal
        self.outcomes[outcome] += 1
        self.attempts.judged(_attempt_of(event), kind_of(outcome), outcome)
        if isinstance(event, of_attempt.AttemptInterrupted):
            return
        if len(self.failures) >= _FAILURES and (outcome, rule) not in self.failures:
            outcome, rule = "other", ""
        failure = self.failures.setdefault((outcome, rule), Failure(outcome, rule))
        failure.count += 1
        failure.reason, failure.phase = event.reason[:2000], event.phase[:40]
        failure.output, failure.at_s = event.output[:100], at_s
        failure.chunk, failure.attempt = event.chunk, event.attempt


def read_history(entries: Iterable[tuple[Entry, str]]) -> History:
    """The history of all events, each with its slice, of one journal, or of several, one after the other."""
    history = History()
    for entry, of_slice in entries:
        history.apply(entry, of_slice)
    history.finish()
    return history


def _attempt_of(event: of_attempt.AttemptEvent) -> AttemptKey:
    return AttemptKey(event.output[:100], event.chunk, event.attempt)
