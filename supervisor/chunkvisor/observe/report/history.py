"""What the journals of a workdir tell over time, in bounded size: a journal can be long, damaged or a lie."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from chunkvisor.events import attempt as of_attempt
from chunkvisor.events import device as of_device
from chunkvisor.events import output as of_output
from chunkvisor.events import run as of_run
from chunkvisor.events.event import Event
from chunkvisor.events.journal import Entry
from chunkvisor.events.progress import AttemptKey, DeviceTimes
from chunkvisor.observe.pace import Pace
from chunkvisor.observe.report.attempts import Attempts, Kind, remember
from chunkvisor.observe.report.bins import Bins
from chunkvisor.observe.report.ceiling import Ceiling, ceiling_of
from chunkvisor.observe.report.costs import Costs

_RUNS = 200
_KINDS = 40
"""Of failures, and of phases."""
_QUARANTINED = 200
_CEILINGS = 400
_NOTES = 200
_NEWEST = 200
"""Failed attempts that are listed."""
_IN_PARTS = 200
_DAY_S = 86400.0

_Kept = of_attempt.PartCommitted | of_attempt.BatchesKept

_WORDS: dict[type[Event], str] = {
    of_run.Waiting: "waited {0.delay_s:.0f} s: {0.reason}",
    of_output.ReuseRefused: "{0.output}: nothing was taken over from {0.origin}: {0.problem}",
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
    ending: of_run.Halted | None = None
    """None: it said no last word."""
    number: int = 1
    """Of those that the journals have, in their order."""


@dataclass(slots=True)
class Failure:
    """Failed attempts of one kind."""

    last: of_attempt.FailureEvent
    at_s: float = 0.0
    """Of the last one."""
    count: int = 0


@dataclass(slots=True)
class History:
    """What is known of a workdir's runs."""

    runs: list[Run] = field(default_factory=list)
    runs_left_out: int = 0
    texts: Bins = field(default_factory=Bins)
    tokens: int = 0
    padded_tokens: int = 0
    texts_done: int = 0
    pace: Pace = field(default_factory=Pace)
    attempts: Attempts = field(default_factory=Attempts)
    ceilings: list[tuple[float, Ceiling]] = field(default_factory=list)
    """(from when on, limits)."""
    phase_s: dict[str, float] = field(default_factory=dict)
    times: DeviceTimes = field(default_factory=DeviceTimes)
    """Of all devices together."""
    costs: Costs = field(default_factory=Costs)
    failures: dict[tuple[str, str], Failure] = field(default_factory=dict)
    """By outcome and rule."""
    newest_failures: deque[Failure] = field(default_factory=lambda: deque(maxlen=_NEWEST))
    quarantined: dict[tuple[str, int], of_attempt.Quarantined] = field(default_factory=dict)
    notes: list[tuple[float, str]] = field(default_factory=list)
    """What was waited for, given up or left out, newest last."""
    _last_s: float = 0.0
    """When a chunk was committed last, or the last run began, in whichever journal."""
    _in_parts: dict[tuple[str, int], int] = field(default_factory=dict)
    """Texts of a chunk that is not committed, as far as they are counted already."""

    @property
    def failed(self) -> int:
        """Attempts, but for those that were interrupted."""
        return sum(failure.count for failure in self.failures.values())

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
                self.times.add(event)
                self.costs.ended(event)
                had_s = event.opening_s + event.busy_s
                self.attempts.ended(_attempt_of(event), at_s, had_s, well=event.returncode == 0)
            case of_attempt.ChunkCommitted():
                self._committed(event, at_s)
            case of_attempt.PartCommitted():
                self._keep(event, event.texts or event.stop - event.start, at_s, attempt_ok=True)
            case of_attempt.BatchesKept():
                self._keep(event, event.texts, at_s, attempt_ok=False)
            case of_attempt.FailureEvent():
                self._failed(event, at_s)
            case of_attempt.Quarantined() if len(self.quarantined) < _QUARANTINED:
                self.quarantined[event.output[:100], event.row] = event
            case of_output.GenerationBegun() | of_output.TextsReused():
                self.costs.took(event, at_s)
            case of_output.Assembling():
                self._began(at_s)
            case of_run.RunStarted():
                run.device = event.device[:200]
            case of_run.RunEnded() | of_run.Halted():
                run.ending = event if isinstance(event, of_run.Halted) else of_run.Halted(event.code)
                self.attempts.cut_off(run.stop_s)
            case _ if words := _WORDS.get(type(event)):
                self.notes = [*self.notes[1 - _NOTES :], (at_s, words.format(event)[:300])]

    def finish(self) -> None:
        """After the last event: what is still open was cut off, and what several journals told is put in order."""
        if self.runs:
            self.attempts.cut_off(self.runs[-1].stop_s)
        self.runs.sort(key=lambda run: run.start_s)
        self.notes.sort(key=lambda note: note[0])
        self.ceilings.sort(key=lambda ceiling: ceiling[0])
        self.pace.last_s = self._last_s or None

    def _run(self, run_id: str, at_s: float, of_slice: str) -> Run:
        if not self.runs or self.runs[-1].run_id != run_id:
            if self.runs:
                self.attempts.cut_off(self.runs[-1].stop_s)
            number = self.runs_left_out + len(self.runs) + 1
            self.runs.append(Run(run_id, at_s, at_s, of_slice, number=number))
            self._began(at_s)
            if len(self.runs) > _RUNS:
                self.runs.pop(0)
                self.runs_left_out += 1
        run = self.runs[-1]
        run.stop_s = max(run.stop_s, min(at_s, run.stop_s + 30 * _DAY_S))
        return run

    def _began(self, at_s: float) -> None:
        self.pace.began(at_s)
        self._last_s = max(at_s, self._last_s)

    def _go(self, event: of_attempt.Go, at_s: float) -> None:
        self.attempts.go(_attempt_of(event), at_s, self.runs[-1].number)
        ceiling = ceiling_of(event)
        if not self.ceilings or self.ceilings[-1][1] != ceiling:
            self.ceilings.append((at_s, ceiling))
            if len(self.ceilings) > _CEILINGS:
                self.ceilings = self.ceilings[:1] + self.ceilings[2::2]

    def _committed(self, event: of_attempt.ChunkCommitted, at_s: float) -> None:
        self.pace.committed(at_s)
        self._last_s = max(at_s, self._last_s)
        counted = max(self._in_parts.pop((event.output, event.chunk), 0), event.texts_before)
        self._computed(event, event.phase_s)
        self.costs.committed(event, at_s)
        self._count(event, event.texts - counted, at_s, event.attempt_ok)

    def _keep(self, event: _Kept, texts: int, at_s: float, *, attempt_ok: bool) -> None:
        place = event.output, event.chunk
        remember(self._in_parts, place, self._in_parts.get(place, 0) + texts, _IN_PARTS)
        self._computed(event, event.phase_s if isinstance(event, of_attempt.PartCommitted) else {})
        self._count(event, texts, at_s, attempt_ok)

    def _computed(self, event: of_attempt.ChunkCommitted | _Kept, phase_s: Mapping[str, float]) -> None:
        """Add up what the attempt behind it has done, as far as that is known."""
        self.tokens += event.tokens
        self.padded_tokens += event.padded_tokens
        for phase, seconds in phase_s.items():
            if len(self.phase_s) < _KINDS or phase in self.phase_s:
                self.phase_s[phase] = self.phase_s.get(phase, 0.0) + seconds

    def _count(self, event: of_attempt.ChunkEvent, texts: int, at_s: float, attempt_ok: bool) -> None:
        """Count texts, spread over the time in which the attempt that made them had the device."""
        span = self.attempts.last_of(event.output, event.chunk)
        if texts <= 0:
            return
        self.texts_done += texts
        if span is None or not attempt_ok:
            self.texts.add(at_s, texts)
            return
        span.kind = Kind.DONE
        self.texts.spread(span.start_s, span.stop_s, texts)

    def _failed(self, event: of_attempt.FailureEvent, at_s: float) -> None:
        self.attempts.judged(_attempt_of(event), event.outcome)
        if isinstance(event, of_attempt.AttemptInterrupted):
            return
        self.newest_failures.append(Failure(event, at_s, 1))
        kind = event.outcome, event.rule
        if len(self.failures) >= _KINDS and kind not in self.failures:
            kind = "other", ""  # a damaged journal
        failure = self.failures.setdefault(kind, Failure(event))
        failure.last, failure.at_s, failure.count = event, at_s, failure.count + 1


def read_history(entries: Iterable[tuple[Entry, str]]) -> History:
    """The history of all events, each with its slice, of one journal, or of several, one after the other."""
    history = History()
    for entry, of_slice in entries:
        history.apply(entry, of_slice)
    history.finish()
    return history


def _attempt_of(event: of_attempt.AttemptEvent) -> AttemptKey:
    return AttemptKey(event.output, event.chunk, event.attempt)
