"""A running attempt as the loop has it: its worker's gate, its signs of life, and its end.

The *gate* lies between a worker and its device. The worker loads the model, waits at the gate, and
touches the device only when the gate is opened: so the next worker is ready while one computes.
"""

import signal
from dataclasses import dataclass, field
from typing import Any

from chunkvisor.config.model import RecoveryConfig
from chunkvisor.core.instructions import Task
from chunkvisor.devices.handles import DeviceHandle
from chunkvisor.engine.engine import Worker
from chunkvisor.judge import EndedBy, Pulse
from chunkvisor.store.attempt import AttemptFolder
from chunkvisor_worker.contract.messages import Limits, Phase

GRACE_S = 5.0  # between one signal and the next, stronger one
_SUSPENDED = 0.25  # of stall_timeout: if no turn comes for longer, the run was suspended
_BEAT_PAUSE_S = 0.25  # between two readings of the beat file, if the worker does not call


@dataclass(slots=True)
class RunningAttempt:
    """An attempt from the start of its worker until all that follows from its end is done."""

    number: int  # by which the scheduler knows its worker
    task: Task
    handle: DeviceHandle
    folder: AttemptFolder
    worker: Worker
    limits: Limits
    started_s: float
    ended_by: EndedBy = EndedBy.ITSELF
    ended_why: str = ""
    asked_to_stop: bool = False  # to end after the current batch
    gate_opened_s: float | None = None  # when it got its device
    freed_s: float | None = None  # when it gave the device back
    has_result: bool = False  # it has left one, with good or bad vectors
    pulse: Pulse = field(init=False)
    _idle_s: float = 0.0  # how long the device had nothing to do before this worker got it
    _ready_s: float | None = None  # when it came to the gate
    _beat_read_s: float = 0.0
    _polled_s: float = 0.0
    _signals: list[signal.Signals] = field(default_factory=list)
    _next_signal_s: float = 0.0

    def __post_init__(self) -> None:
        self.pulse = Pulse(self.started_s, self.started_s)
        self._polled_s = self.started_s

    @property
    def names(self) -> tuple[str, int, int]:
        """Output, chunk and number of the attempt, as events have them."""
        spec = self.folder.spec
        return spec.output, spec.chunk, spec.attempt

    @property
    def has_device(self) -> bool:
        """Whether its gate was opened, and it has not given its device back."""
        return self.gate_opened_s is not None and self.freed_s is None

    @property
    def at_gate(self) -> bool:
        """Whether it waits for its gate to be opened."""
        return (
            self._ready_s is not None
            and self.gate_opened_s is None
            and self.ended_by is EndedBy.ITSELF
        )

    def listen(self, now_s: float) -> None:
        """Read its beat file if the worker has called, or from time to time.

        A worker calls when it comes to the gate and when it gives its device back. Other beats
        show progress alone; at the gate there is none.
        """
        if self.worker.has_called() or not (
            self.at_gate or now_s - self._beat_read_s < _BEAT_PAUSE_S
        ):
            self._read_beat(now_s)

    def _read_beat(self, now_s: float) -> None:
        self._beat_read_s = now_s
        self.pulse = self.pulse.with_beat(self.folder.beat(), now_s)
        if self._ready_s is None and self.pulse.phase is Phase.READY:
            self._ready_s = now_s
        beat = self.pulse.beat
        if beat and beat.freed and self.ended_by is EndedBy.ITSELF:
            self._free(now_s)

    def _free(self, now_s: float) -> None:
        """Note that the worker has given its device back, if it has one."""
        if self.has_device:
            self.freed_s = self.handle.freed_s = now_s

    def open_gate(self, limits: Limits, now_s: float) -> None:
        """Let it use the device, with these batch limits."""
        self.gate_opened_s = now_s
        self.limits = limits
        self._idle_s = now_s - (self.handle.freed_s or now_s)
        self.pulse = self.pulse.after_pause(now_s, now_s - (self._ready_s or now_s))
        self.worker.open_gate(limits)

    def poll(self, now_s: float, recovery: RecoveryConfig) -> None:
        """End it if it has made no progress for too long; if it is ending, send the next signal."""
        gap_s = now_s - self._polled_s
        self._polled_s = now_s
        if gap_s > recovery.stall_timeout * _SUSPENDED:
            # docker pause, scontrol suspend: the worker was stopped like the run itself.
            self.pulse = self.pulse.after_pause(now_s, gap_s)
        if self.ended_by is EndedBy.ITSELF and not self.at_gate:
            why = self.pulse.overdue(now_s, recovery)
            if why:
                self.end(EndedBy.HANG, why, now_s)
        self._next_signal(now_s)

    def end(self, by: EndedBy, why: str, now_s: float) -> None:
        """Begin to end it: SIGTERM first, SIGKILL after `GRACE_S`; or continue if it has begun."""
        if self.ended_by is EndedBy.ITSELF:
            self.ended_by = by
            self.ended_why = why
            self._next_signal_s = now_s
            # SIGABRT: faulthandler writes the Python stack of a hung worker to its log.
            first = signal.SIGABRT if by is EndedBy.HANG else signal.SIGTERM
            # One that was asked to stop, and has not, had its time to end well.
            self._signals = [signal.SIGKILL] if self.asked_to_stop else [first, signal.SIGKILL]
        self._next_signal(now_s)

    def _next_signal(self, now_s: float) -> None:
        if self._signals and now_s >= self._next_signal_s:
            number = self._signals.pop(0)
            if number is signal.SIGABRT:
                # The log will have "Fatal Python error: Aborted" and the stack, as after a crash;
                # this line says why.
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
        """Return the seconds and counts of a worker that has ended, for the event `WorkerEnded`."""
        self._free(now_s)
        self._read_beat(now_s)
        beat = self.pulse.beat
        busy_s = (self.freed_s or 0.0) - (self.gate_opened_s or 0.0)
        # The device computes from the first batch on: until then a context is made, and weights are
        # copied.
        opening_s = beat.opening_s if beat and self.gate_opened_s is not None else 0.0
        return {
            "device": self.handle.number,
            "startup_s": round((self._ready_s or now_s) - self.started_s, 4),
            "idle_s": round(self._idle_s + opening_s, 4),
            "busy_s": round(busy_s - opening_s, 4),
            "texts": beat.rows_done if beat else 0,
            "tokens": beat.tokens_done if beat else 0,
            "padded_tokens": beat.padded_tokens if beat else 0,
            "memory": beat.memory if beat else {},
            "batch_peaks": beat.batch_peaks if beat else {},
        }
