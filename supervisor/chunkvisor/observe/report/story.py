"""What the journal tells, folded into what a report shows.

It never keeps more than a bounded part of it, and takes nothing for granted: a journal can be torn, damaged or a lie.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from chunkvisor.observe.pace import Pace
from chunkvisor.observe.report.bands import Kind, kind_of
from chunkvisor.observe.report.bins import Bins
from chunkvisor.observe.report.fields import integer, number, text
from chunkvisor.observe.report.lanes import Lanes, attempt_of
from chunkvisor_worker.contract.exits import Outcome

_RUNS = 200
_FAILURES = 40
_QUARANTINED = 200
_CEILINGS = 400
_NOTED = 200
_DAY_S = 86400.0


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


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The batch limits from one time on."""

    at_s: float
    texts: int
    """In a batch of short texts."""
    tokens: int | None
    texts_long: int
    """In a batch of the longest texts, for which lessons were learnt."""
    tokens_long: int | None


@dataclass(slots=True)
class Story:
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
    lanes: Lanes = field(default_factory=Lanes)
    ceilings: list[Ceiling] = field(default_factory=list)
    phase_s: Counter[str] = field(default_factory=Counter)
    startup_s: float = 0.0
    idle_s: float = 0.0
    busy_s: float = 0.0
    failures: dict[tuple[str, str], Failure] = field(default_factory=dict)
    quarantined: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    notes: list[tuple[float, str]] = field(default_factory=list)
    """What was waited for, given up or left out, newest last."""
    outputs: list[str] = field(default_factory=list)
    """Of the last run's config."""
    _last_s: float | None = None
    """When a chunk was committed last, or the last run began, in whichever journal."""
    _in_parts: dict[tuple[str, int], int] = field(default_factory=dict)
    """Texts of a chunk that was taken apart, as far as they are counted already."""

    def take(self, event: dict[str, Any]) -> None:
        """Take in one event of the journal."""
        at_s = number(event.get("t"))
        if at_s is None or not 0 < at_s < 1e11:
            return
        run = self._run(str(event.get("run")), at_s, text(event.get("slice"), 20))
        match event["event"]:
            case "run_started":
                run.device = text(event.get("device"), 200)
                wanted = event.get("outputs")
                self.outputs = [text(name, 100) for name in wanted] if isinstance(wanted, list) else []
            case "attempt_started":
                device = str(integer(event.get("device")))
                self.lanes.started(attempt_of(event), f"{device} of slice {run.slice}" if run.slice else device)
            case "go":
                self._go(event, at_s)
            case "worker_ended":
                self._worker_ended(event, at_s)
            case "chunk_committed":
                self._committed(event, at_s)
            case "assembling":
                self._began(at_s)
            case "part_committed":
                self._part_committed(event, at_s)
            case "attempt_failed" | "part_failed" | "attempt_interrupted":
                self._failed(event, at_s)
            case "quarantined":
                if len(self.quarantined) < _QUARANTINED:
                    self.quarantined[text(event.get("output"), 100), integer(event.get("row"))] = event
            case "run_ended" | "halted":
                run.code = integer(event.get("code"))
                run.what, run.why, run.remedy, run.log = (
                    text(event.get(key), 2000) for key in ("what", "why", "remedy", "log")
                )
                self.lanes.cut_off(run.stop_s)
            case name if name in _NOTES:
                self.notes = [*self.notes[-_NOTED:], (at_s, text(_NOTES[name](event), 300))]

    def finish(self) -> None:
        """After the last event: what is still open was cut off, and what several journals told is put in order."""
        if self.runs:
            self.lanes.cut_off(self.runs[-1].stop_s)
        self.runs.sort(key=lambda run: run.start_s)
        self.notes.sort(key=lambda note: note[0])
        self.ceilings.sort(key=lambda ceiling: ceiling.at_s)
        self.pace.last_s = self._last_s

    def _run(self, run_id: str, at_s: float, of_slice: str) -> Run:
        if not self.runs or self.runs[-1].run_id != run_id:
            if self.runs:
                self.lanes.cut_off(self.runs[-1].stop_s)
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

    def _go(self, event: dict[str, Any], at_s: float) -> None:
        self.lanes.go(attempt_of(event), at_s)
        ceiling = _ceiling(event, at_s)
        if not self.ceilings or replace(self.ceilings[-1], at_s=at_s) != ceiling:
            self.ceilings.append(ceiling)
            if len(self.ceilings) > _CEILINGS:
                self.ceilings = self.ceilings[:1] + self.ceilings[2::2]

    def _worker_ended(self, event: dict[str, Any], at_s: float) -> None:
        self.startup_s += number(event.get("startup_s")) or 0.0
        self.idle_s += number(event.get("idle_s")) or 0.0
        busy_s = number(event.get("busy_s")) or 0.0
        self.busy_s += busy_s
        had_s = busy_s + (number(event.get("opening_s")) or 0.0)
        self.lanes.ended(attempt_of(event), at_s, had_s, event.get("returncode") == 0)

    def _committed(self, event: dict[str, Any], at_s: float) -> None:
        self.outcomes[Outcome.COMMITTED] += bool(event.get("attempt_ok"))
        texts = integer(event.get("texts"))
        self.texts_done, self.chunks_done = self.texts_done + texts, self.chunks_done + 1
        self.pace.committed(at_s)
        self._last_s = max(at_s, self._last_s or at_s)
        self.tokens += integer(event.get("tokens"))
        self.padded_tokens += integer(event.get("padded_tokens"))
        phases = event.get("phase_s")
        for phase, seconds in phases.items() if isinstance(phases, dict) else ():
            if len(self.phase_s) < _FAILURES or phase in self.phase_s:
                self.phase_s[text(phase, 40)] += number(seconds) or 0.0  # type: ignore[assignment]  # seconds, not counts
        place = (text(event.get("output"), 100), integer(event.get("chunk")))
        self._spread(place, texts - self._in_parts.pop(place, 0), at_s, attempt_ok=bool(event.get("attempt_ok")))

    def _part_committed(self, event: dict[str, Any], at_s: float) -> None:
        self.outcomes[Outcome.COMMITTED] += 1
        texts = integer(event.get("stop")) - integer(event.get("start"))
        place = (text(event.get("output"), 100), integer(event.get("chunk")))
        self._in_parts[place] = self._in_parts.get(place, 0) + texts
        while len(self._in_parts) > _NOTED:
            self._in_parts.pop(next(iter(self._in_parts)))
        self._spread(place, texts, at_s, attempt_ok=True)

    def _spread(self, place: tuple[str, int], texts: int, at_s: float, *, attempt_ok: bool) -> None:
        """Count texts while the attempt that made them had the device."""
        band = self.lanes.last_of(place)
        if texts <= 0:
            return
        if band is None or not attempt_ok:
            self.texts.add(at_s, texts)
            return
        band.kind = Kind.DONE
        self.texts.spread(band.start_s, band.stop_s, texts)

    def _failed(self, event: dict[str, Any], at_s: float) -> None:
        outcome, rule = text(event.get("outcome"), 40), text(event.get("rule") or "", 80)
        if outcome not in self.outcomes and len(self.outcomes) >= _FAILURES:
            outcome = "other"  # a damaged journal
        self.outcomes[outcome] += 1
        self.lanes.judged(attempt_of(event), kind_of(outcome), outcome)
        if event["event"] == "attempt_interrupted":
            return
        if len(self.failures) >= _FAILURES and (outcome, rule) not in self.failures:
            outcome, rule = "other", ""
        failure = self.failures.setdefault((outcome, rule), Failure(outcome, rule))
        failure.count += 1
        failure.reason, failure.phase = text(event.get("reason"), 2000), text(event.get("phase") or "", 40)
        failure.output, failure.at_s = text(event.get("output"), 100), at_s
        failure.chunk, failure.attempt = integer(event.get("chunk")), integer(event.get("attempt"))


def read_story(events: Iterable[dict[str, Any]]) -> Story:
    """The story of all events of one journal, or of several, one after the other."""
    story = Story()
    for event in events:
        story.take(event)
    story.finish()
    return story


def _ceiling(event: dict[str, Any], at_s: float) -> Ceiling:
    """The limits of a `go`: its own, and those of the narrowest of its tiers."""
    tiers = event.get("tiers")
    known = [event, *(tier for tier in tiers if isinstance(tier, dict))] if isinstance(tiers, list) else [event]
    general = [limits for limits in known if not integer(limits.get("min_length"))]

    def least(of: list[dict[str, Any]], name: str) -> int | None:
        return min((value for each in of if (value := integer(each.get(name)))), default=None)

    texts, texts_long = least(general, "rows") or 1, least(known, "rows") or 1
    return Ceiling(at_s, texts, least(general, "tokens"), texts_long, least(known, "tokens"))


_NOTES = {
    "waiting": lambda event: f"waited {number(event.get('delay_s')) or 0:.0f} s: {event.get('reason')}",
    "waiting_to_join": lambda event: f"waited for disk space: {event.get('reason')}",
    "warm_given_up": lambda event: f"warm starts were given up: {event.get('reason')}",
    "device_dropped": lambda event: f"{event.get('device')} was left out: {event.get('why')}",
    "gpu_busy": lambda event: f"{event.get('device')}: waited, {event.get('why')}",
    "gpu_blind": lambda event: f"{event.get('device')}: {event.get('why')}",
    "chunk_set_aside": lambda event: f"{event.get('output')} chunk {event.get('chunk')} was set aside",
    "chunk_damaged": lambda event: f"{event.get('output')} chunk {event.get('chunk')} was damaged: {event.get('why')}",
}
