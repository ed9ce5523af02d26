"""One worker under supervision: its process, its pulse, and how it is ended step by step."""

import contextlib
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from chunkvisor.config.model import RecoveryConfig
from chunkvisor.devices.stations import Station
from chunkvisor.engine.engine import Worker
from chunkvisor.engine.process import trim_log
from chunkvisor.heart.scheduler import GateState
from chunkvisor.heart.work import Work
from chunkvisor.judge import EndedBy, Pulse, Verdict
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Limits, Phase, Spec
from chunkvisor_worker.contract.wire import read_beat

GRACE_S = 5.0  # between one signal and the next, stronger one
_LOOK_S = 0.25  # between two looks at the beat of a worker that does not call for it

_LADDER = {
    EndedBy.STOP: (signal.SIGTERM, signal.SIGKILL),
    # SIGABRT first: faulthandler writes the Python stack of a hung worker to its log.
    EndedBy.HANG: (signal.SIGABRT, signal.SIGKILL),
}


@dataclass(slots=True)
class Slot:
    """A running worker, and until all that follows from its end is done, one that has ended."""

    number: int  # its name with the scheduler
    work: Work
    station: Station
    files: AttemptFiles
    spec: Spec
    worker: Worker
    limits: Limits
    started_s: float = field(default_factory=time.monotonic)
    gate: GateState = GateState.SHUT
    ended_by: EndedBy = EndedBy.ITSELF
    ended_why: str = ""
    leaving: bool = False  # it was asked to end after the batch under way
    go_s: float = 0.0
    freed_s: float | None = None  # when it needed the device no longer
    verdict: Verdict | None = None  # what became of it, once it has ended
    pulse: Pulse = field(init=False)
    _idle_s: float = 0.0  # how long the device had nothing to do before this worker's `go`
    _ready_s: float | None = None
    _looked_s: float = 0.0
    _reported: GateState | None = None  # what `heard` reported last
    _signals: list[signal.Signals] = field(default_factory=list)
    _next_signal_s: float = 0.0

    def __post_init__(self) -> None:
        self.pulse = Pulse(self.started_s, self.started_s)

    @property
    def names(self) -> tuple[str, int, int]:
        """Output, chunk and attempt, for the journal."""
        return self.spec.output, self.spec.chunk, self.spec.attempt

    @property
    def had_device(self) -> bool:
        """Whether it ever had its `go`."""
        return self.gate is not GateState.SHUT

    def heard(self, now_s: float) -> GateState | None:
        """Say, once each, that it waits at the gate (SHUT), or that it has given its device back (PASSED)."""
        quiet = self._ready or now_s - self._looked_s < _LOOK_S  # at the gate there is no beat to come
        if self.worker.has_called() or not quiet:
            self._look(now_s)
        state = GateState.SHUT if self._ready else GateState.PASSED if self.gate is GateState.PASSED else None
        if state is None or state is self._reported:
            return None
        self._reported = state
        return state

    @property
    def _ready(self) -> bool:
        return self.gate is GateState.SHUT and self._ready_s is not None and self.ended_by is EndedBy.ITSELF

    def _look(self, now_s: float) -> None:
        self._looked_s = now_s
        self.pulse = self.pulse.seen(read_beat(self.files.beat), now_s)
        if self._ready_s is None and self.pulse.phase is Phase.READY:
            self._ready_s = now_s
        freed = self.pulse.beat is not None and self.pulse.beat.freed
        if self.gate is GateState.OPEN and freed and self.ended_by is EndedBy.ITSELF:
            self.gate = GateState.PASSED
            self._free(now_s)
        trim_log(self.files.log)

    def _free(self, now_s: float) -> None:
        """Note that the device has nothing to do from now on, if it has had something."""
        if self.had_device and self.freed_s is None:
            self.freed_s = self.station.freed_s = now_s

    def go(self, limits: Limits) -> None:
        """Let it use the device, with the batch limits of the moment."""
        self.go_s = time.monotonic()
        # Idle time is the device's, between one worker and the next: the figure that warm workers are there for.
        freed_s = self.station.freed_s
        self._idle_s = self.go_s - freed_s if freed_s is not None else 0.0
        self.pulse = self.pulse.let_go(self.go_s, self.go_s - (self._ready_s or self.go_s))
        self.limits, self.gate = limits, GateState.OPEN
        self.worker.go(limits)

    def attend(self, now_s: float, recovery: RecoveryConfig) -> None:
        """End it if it has made no progress for too long; take the next step of an end that has begun."""
        if self.ended_by is EndedBy.ITSELF and not self._ready and (why := self.pulse.overdue(now_s, recovery)):
            self.end(EndedBy.HANG, why, now_s)
        self._next_signal(now_s)

    def end(self, by: EndedBy, why: str, now_s: float) -> None:
        """Begin to end it, politely first; or take the next step of an end that has begun."""
        if self.ended_by is EndedBy.ITSELF:
            self.ended_by, self.ended_why = by, why
            # One that was asked to leave, and has not, has had its politeness.
            self._signals = [signal.SIGKILL] if self.leaving else list(_LADDER[by])
            self._next_signal_s = now_s
        self._next_signal(now_s)

    def _next_signal(self, now_s: float) -> None:
        if self._signals and now_s >= self._next_signal_s:
            number = self._signals.pop(0)
            if number is signal.SIGABRT:
                # The stack in the log begins with "Fatal Python error: Aborted", as if the worker had crashed.
                with contextlib.suppress(OSError), open(self.files.log, "a", encoding="utf-8") as log:
                    log.write(f"chunkvisor ends this worker: {self.ended_why}. It is asked for its stack.\n")
            self.worker.signal(number)
            self._next_signal_s = now_s + GRACE_S

    def stuck(self, now_s: float) -> bool:
        """Whether even SIGKILL has not ended it for long: it hangs in the kernel (D state)."""
        return self.ended_by is not EndedBy.ITSELF and not self._signals and now_s > self._next_signal_s + 12 * GRACE_S

    def figures(self, now_s: float) -> dict[str, Any]:
        """Say what the worker, which has ended, did with its time, for the journal; seconds and counts."""
        self._free(now_s)
        self._look(now_s)
        beat = self.pulse.beat
        opening_s = beat.opening_s if beat and self.freed_s is not None else 0.0
        return {
            "device": self.station.number,
            "startup_s": round((self._ready_s or now_s) - self.started_s, 4),
            # The device computes from the first batch on: until then a context is made, and weights are copied.
            "opening_s": opening_s,
            "idle_s": round(self._idle_s + opening_s, 4),
            "busy_s": round(self.freed_s - self.go_s - opening_s, 4) if self.freed_s is not None else 0.0,
            "texts": beat.rows_done if beat else 0,
            "tokens": beat.tokens_done if beat else 0,
            "padded_tokens": beat.padded_tokens if beat else 0,
        }
