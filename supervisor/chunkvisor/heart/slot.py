"""One worker under supervision: its process, its pulse, and how it is ended step by step."""

import contextlib
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from chunkvisor.devices.stations import Station
from chunkvisor.engine.engine import Worker
from chunkvisor.engine.process import trim_log
from chunkvisor.heart.scheduler import Gate
from chunkvisor.heart.work import Work
from chunkvisor.judge import EndedBy, Patience, Pulse, Verdict
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Limits, Phase, Spec
from chunkvisor_worker.contract.wire import read_beat

GRACE_S = 5.0
"""Between one signal and the next, stronger one."""

_LADDER = {
    EndedBy.STOP: (signal.SIGTERM, signal.SIGKILL),
    # SIGABRT first: faulthandler writes the Python stack of a hung worker to its log.
    EndedBy.HANG: (signal.SIGABRT, signal.SIGKILL),
}

_LOOK_S = 0.25


@dataclass(slots=True)
class Slot:
    """A running worker."""

    number: int
    """Its name with the scheduler."""
    work: Work
    station: Station
    attempt: int
    files: AttemptFiles
    spec: Spec
    worker: Worker
    pulse: Pulse
    limits: Limits
    gate: Gate = Gate.SHUT
    ended_by: EndedBy = EndedBy.ITSELF
    ended_why: str = ""
    leave_why: str = ""
    """Why it was asked to end after the batch under way, in words; empty where it was not."""
    go_s: float = 0.0
    freed_s: float | None = None
    """When it needed the device no longer."""
    idle_s: float = 0.0
    """How long the device had nothing to do before this worker's `go`."""
    verdict: Verdict | None = None
    """What became of it, once it has ended."""
    _started_s: float = field(default_factory=time.monotonic)
    _ready_s: float | None = None
    _looked_s: float = 0.0
    _told_ready: bool = False
    _told_freed: bool = False
    _signals: list[signal.Signals] = field(default_factory=list)
    _next_signal_s: float = 0.0

    def stirs(self, readable: frozenset[int]) -> bool:
        """Whether there may be news of it, as these descriptors are readable; of one on a node the engine hears."""
        watched = self.worker.watched()
        return not watched or not readable.isdisjoint(watched)

    def look(self, now_s: float, *, closely: bool) -> None:
        """Read the beat, at most four times a second unless `closely` or called; keep the log within its bounds.

        At the gate there is none to come.
        """
        told = self.worker.tells_beats or self.ready
        if not self.worker.has_called() and (told or (not closely and now_s - self._looked_s < _LOOK_S)):
            return
        self._looked_s = now_s
        self.pulse = self.pulse.seen(read_beat(self.files.beat), now_s)
        if self._ready_s is None and self.pulse.phase is Phase.READY:
            self._ready_s = now_s
        if self.gate is Gate.OPEN and self.pulse.freed and self.ended_by is EndedBy.ITSELF:
            self.gate = Gate.PASSED
            self.freed(now_s)
        trim_log(self.files.log)

    def freed(self, now_s: float) -> None:
        """The device has nothing to do from now on, if it has had something; a second time tells nothing new."""
        if self.gate is not Gate.SHUT and self.freed_s is None:
            self.freed_s = self.station.freed_s = now_s

    @property
    def ready(self) -> bool:
        """Whether it waits at the gate."""
        return self.gate is Gate.SHUT and self._ready_s is not None and self.ended_by is EndedBy.ITSELF

    def newly_ready(self) -> bool:
        """Whether it waits at the gate, and that was not told before."""
        newly, self._told_ready = self.ready and not self._told_ready, self._told_ready or self.ready
        return newly

    def newly_freed(self) -> bool:
        """Whether it has given its device back, and that was not told before."""
        freed = self.gate is Gate.PASSED
        newly, self._told_freed = freed and not self._told_freed, freed
        return newly

    @property
    def started_s(self) -> float:
        """When the worker was started."""
        return self._started_s

    @property
    def without_result(self) -> Verdict | None:
        """The verdict, if it has left no result: then what is taken over of it are its finished batches."""
        of_result = self.verdict is None or self.verdict.outcome in (Outcome.COMMITTED, Outcome.BAD_OUTPUT)
        return None if of_result else self.verdict

    @property
    def had_device(self) -> bool:
        """Whether it ever had its `go`."""
        return self.gate is not Gate.SHUT

    @property
    def unused(self) -> bool:
        """Whether it is a warm worker that never had the device: its end is its template's doing, not a text's."""
        return self.worker.warm and self.gate is Gate.SHUT and self.ended_by is EndedBy.ITSELF

    def figures(self, now_s: float) -> dict[str, Any]:
        """What the worker did with its time, for the journal; seconds and counts."""
        self.look(now_s, closely=True)
        beat = self.pulse.beat
        opening_s = beat.opening_s if beat and self.freed_s is not None else 0.0
        return {
            "device": self.station.number,
            "startup_s": round((self._ready_s or now_s) - self._started_s, 4),
            # The device computes from the first batch on: until then a context is made, and weights are copied.
            "opening_s": opening_s,
            "idle_s": round(self.idle_s + opening_s, 4),
            "busy_s": round(self.freed_s - self.go_s - opening_s, 4) if self.freed_s is not None else 0.0,
            "texts": beat.rows_done if beat else 0,
            "tokens": beat.tokens_done if beat else 0,
            "padded_tokens": beat.padded_tokens if beat else 0,
        }

    def go(self, limits: Limits) -> None:
        """Let it use the device, with the batch limits of the moment."""
        self.go_s = time.monotonic()
        freed_s = self.station.freed_s
        self.idle_s = self.go_s - freed_s if freed_s is not None else 0.0
        self.pulse = self.pulse.let_go(self.go_s, self.go_s - (self._ready_s or self.go_s))
        self.limits, self.gate = limits, Gate.OPEN
        self.worker.go(limits)

    def leave(self, why: str) -> None:
        """Ask it to end after the batch under way."""
        self.leave_why = why
        self.worker.leave()

    def left(self) -> None:
        """It has ended because it was asked to."""
        if self.ended_by is EndedBy.ITSELF:
            self.ended_by, self.ended_why = EndedBy.STOP, self.leave_why

    def left_s(self, now_s: float) -> float | None:
        """Seconds until it has its last vector, at the rate so far; None = it has done no batch yet."""
        beat = self.pulse.beat
        if beat is None or not beat.rows_done:
            return None
        in_tokens = beat.tokens_total and beat.tokens_done
        done, total = (beat.tokens_done, beat.tokens_total) if in_tokens else (beat.rows_done, beat.rows_total)
        return (now_s - self.go_s - beat.opening_s) * max(0, total - done) / done

    def overdue(self, now_s: float, patience: Patience) -> str:
        """Why it is to be ended, in words; empty where there is no reason, or its end has begun."""
        if self.ended_by is not EndedBy.ITSELF:
            return ""
        return self.pulse.overdue(now_s, patience, at_gate=self.ready)

    def end(self, by: EndedBy, why: str, now_s: float) -> None:
        """Begin to end it, politely first; or take the next step of an end that has begun."""
        if self.ended_by is EndedBy.ITSELF:
            self.ended_by, self.ended_why = by, why
            # Who was asked to leave, and has not, has had its politeness.
            self._signals = [signal.SIGKILL] if self.leave_why else list(_LADDER[by])
            self._next_signal_s = now_s
        self.next_signal(now_s)

    def stuck(self, now_s: float) -> bool:
        """Whether even SIGKILL has not ended it for long: it hangs in the kernel (D state)."""
        return self.ended_by is not EndedBy.ITSELF and not self._signals and now_s > self._next_signal_s + 12 * GRACE_S

    def next_signal(self, now_s: float) -> None:
        """Take the next step of an end that has begun, where it is due."""
        if self._signals and now_s >= self._next_signal_s:
            if self._signals[0] is signal.SIGABRT:
                self._announce_stack()
            self.worker.signal(self._signals.pop(0))
            self._next_signal_s = now_s + GRACE_S

    def _announce_stack(self) -> None:
        """The stack in the log begins with "Fatal Python error: Aborted", as if the worker had crashed."""
        with contextlib.suppress(OSError), open(self.files.log, "a", encoding="utf-8") as log:
            log.write(f"chunkvisor ends this worker: {self.ended_why}. It is asked for its stack, which follows.\n")
