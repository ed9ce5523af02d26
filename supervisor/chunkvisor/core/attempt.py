"""A running attempt as the loop has it: its worker's gate, its signs of life, and its end."""

import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chunkvisor.config.model import RecoveryConfig
from chunkvisor.core.instructions import Task
from chunkvisor.devices.handles import DeviceHandle
from chunkvisor.engine.engine import Worker
from chunkvisor.judge import EndedBy, Pulse
from chunkvisor_worker.contract.messages import Limits, Phase

if TYPE_CHECKING:
    from chunkvisor.store.attempt import AttemptFolder

GRACE_S = 5.0  # between one signal and the next, stronger one
_LOOK_S = 0.25  # between two looks at the beat of a worker that does not call for it


@dataclass(slots=True)
class RunningAttempt:
    """An attempt from the start of its worker until all that follows from its end is done."""

    number: int  # its name with the scheduler
    task: Task
    handle: DeviceHandle
    folder: "AttemptFolder"
    worker: Worker
    limits: Limits
    started_s: float
    ended_by: EndedBy = EndedBy.ITSELF
    ended_why: str = ""
    leaving: bool = False  # it was asked to end after the current batch
    go_s: float | None = None  # when it got its device
    freed_s: float | None = None  # when it needed the device no longer
    has_result: bool = False  # it has left one, right or wrong
    pulse: Pulse = field(init=False)
    _idle_s: float = 0.0  # how long the device had nothing to do before this worker's `go`
    _ready_s: float | None = None
    _looked_s: float = 0.0
    _signals: list[signal.Signals] = field(default_factory=list)
    _next_signal_s: float = 0.0

    def __post_init__(self) -> None:
        self.pulse = Pulse(self.started_s, self.started_s)

    @property
    def names(self) -> tuple[str, int, int]:
        """Output, chunk and number of the attempt, as events have them."""
        spec = self.folder.spec
        return spec.output, spec.chunk, spec.attempt

    @property
    def has_device(self) -> bool:
        """Whether it had its `go`, and has not given its device back."""
        return self.go_s is not None and self.freed_s is None

    @property
    def at_gate(self) -> bool:
        """Whether it waits for its `go`."""
        return self._ready_s is not None and self.go_s is None and self.ended_by is EndedBy.ITSELF

    def listen(self, now_s: float) -> None:
        """Read its beat if it has called, or may have one that it does not call for."""
        # At the gate there is no beat to come.
        if self.worker.has_called() or not (self.at_gate or now_s - self._looked_s < _LOOK_S):
            self._read_beat(now_s)

    def _read_beat(self, now_s: float) -> None:
        self._looked_s = now_s
        self.pulse = self.pulse.with_beat(self.folder.beat(), now_s)
        if self._ready_s is None and self.pulse.phase is Phase.READY:
            self._ready_s = now_s
        beat = self.pulse.beat
        if beat and beat.freed and self.ended_by is EndedBy.ITSELF:
            self._free(now_s)

    def _free(self, now_s: float) -> None:
        """Note that the worker has given its device back, if it had it."""
        if self.has_device:
            self.freed_s = self.handle.freed_s = now_s

    def open_gate(self, limits: Limits, now_s: float) -> None:
        """Let it use the device, with the batch limits of the moment."""
        self.go_s = now_s
        self.limits = limits
        # How long the device had nothing to do between two workers; warm workers make it short.
        self._idle_s = now_s - (self.handle.freed_s or now_s)
        self.pulse = self.pulse.after_gate(now_s, now_s - (self._ready_s or now_s))
        self.worker.open_gate(limits)

    def poll(self, now_s: float, recovery: RecoveryConfig) -> None:
        """End it if it has made no progress for too long; send the next signal if it is ending."""
        if self.ended_by is EndedBy.ITSELF and not self.at_gate:
            why = self.pulse.overdue(now_s, recovery)
            if why:
                self.end(EndedBy.HANG, why, now_s)
        self._next_signal(now_s)

    def end(self, by: EndedBy, why: str, now_s: float) -> None:
        """Begin to end it, politely first; or send the next signal if that has begun."""
        if self.ended_by is EndedBy.ITSELF:
            self.ended_by = by
            self.ended_why = why
            self._next_signal_s = now_s
            # SIGABRT: faulthandler writes the Python stack of a hung worker to its log.
            first = signal.SIGABRT if by is EndedBy.HANG else signal.SIGTERM
            # One that was asked to leave, and has not, has had its politeness.
            self._signals = [signal.SIGKILL] if self.leaving else [first, signal.SIGKILL]
        self._next_signal(now_s)

    def _next_signal(self, now_s: float) -> None:
        if self._signals and now_s >= self._next_signal_s:
            number = self._signals.pop(0)
            if number is signal.SIGABRT:
                # The stack in the log begins with "Fatal Python error: Aborted", as if the worker
                # had crashed.
                self.folder.add_log_line(
                    f"chunkvisor ends this worker: {self.ended_why}. It is asked for its stack."
                )
            self.worker.signal(number)
            self._next_signal_s = now_s + GRACE_S

    def stuck(self, now_s: float) -> bool:
        """Whether even SIGKILL has not ended it for long: it hangs in the kernel (D state)."""
        return (
            self.ended_by is not EndedBy.ITSELF
            and not self._signals
            and now_s > self._next_signal_s + 12 * GRACE_S
        )

    def figures(self, now_s: float) -> dict[str, Any]:
        """Give the seconds and counts of a worker that has ended, for the journal."""
        self._free(now_s)
        self._read_beat(now_s)
        beat = self.pulse.beat
        busy_s = (self.freed_s or 0.0) - (self.go_s or 0.0)
        # The device computes from the first batch on: until then a context is made, and weights are
        # copied.
        opening_s = beat.opening_s if beat and self.go_s is not None else 0.0
        return {
            "device": self.handle.number,
            "startup_s": round((self._ready_s or now_s) - self.started_s, 4),
            "idle_s": round(self._idle_s + opening_s, 4),
            "busy_s": round(busy_s - opening_s, 4),
            "texts": beat.rows_done if beat else 0,
            "tokens": beat.tokens_done if beat else 0,
            "padded_tokens": beat.padded_tokens if beat else 0,
        }
