"""What the parts of one run share: the signals and the time that end it, and where it reports.

The first SIGINT or SIGTERM *drains* the run: it starts nothing new, and finishes what is in
progress. The second stops it at once. SIGINT comes from a person, who can wait and send another.
SIGTERM comes from a system that may send SIGKILL soon, so the run then ends within
`recovery.grace`.

This module is imported before the model begins to load. So that the load begins early, it imports
neither numpy nor what works on outputs.
"""

import contextlib
import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from chunkvisor.errors import KEPT, ExitCode, Halt
from chunkvisor.events.event import Emit, Waiting
from chunkvisor.store.layout import Layout
from chunkvisor.units import human_time
from chunkvisor_worker.contract.frozen import frozen


class Signals:
    """Signals received while the context of `listen` lasts."""

    def __init__(
        self,
        grace_s: float,
        stop_after_s: float | None,
        *,
        drains: bool,
    ) -> None:
        """Begin to count `stop_after_s`, after which the run has to be over; None = never.

        `grace_s` is `recovery.grace`. Without `drains` the first signal stops the run.
        """
        self.first: signal.Signals | None = None
        self.count = 0
        self.stop_after_s = stop_after_s
        self._patience = 2 if drains else 1
        self._first_s = 0.0
        self._grace_s = grace_s
        self._over_s = self._drain_s = math.inf
        if stop_after_s is not None:
            self._over_s = time.monotonic() + stop_after_s
            self._drain_s = self._over_s - min(grace_s, stop_after_s / 2)
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def draining(self) -> bool:
        """Whether nothing new is to be started."""
        return self.count >= 1 or time.monotonic() >= self._drain_s

    @property
    def stopping(self) -> bool:
        """Whether everything is to end at once."""
        return self.count >= self._patience

    @property
    def why(self) -> str:
        """What ends the run: the name of the first signal, or the option."""
        return self.first.name if self.first else "--stop-after"

    @property
    def until_s(self) -> float | None:
        """When a run that drains has to be over, by `time.monotonic`; None = never."""
        until_s = self._over_s
        if self.first is signal.SIGTERM:
            until_s = min(until_s, self._first_s + self._grace_s)
        return None if until_s == math.inf else until_s

    def wake(self) -> None:
        """End the current `sleep`; may be called from any thread."""
        with contextlib.suppress(
            OSError
        ):  # a full pipe wakes it as well; a closed one has no sleeper
            os.write(self._writer, b"\0")

    def sleep(self, seconds: float, watched: list[int]) -> None:
        """Sleep until a signal comes, watched descriptors are readable, or the time is over."""
        poll = select.poll()
        for fd in (self._reader, *watched):
            poll.register(fd, select.POLLIN)
        if any(fd == self._reader for fd, _ in poll.poll(max(0.0, seconds) * 1000)):
            os.read(self._reader, 1024)

    @contextlib.contextmanager
    def listen(self) -> Iterator["Signals"]:
        """Catch SIGINT, SIGTERM and SIGHUP; none outside the main thread, as Python wants it.

        SIGHUP, which a closed terminal sends, is ignored: a run must outlive the ssh session that
        started it.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, self._reader)
            stack.callback(os.close, self._writer)
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGINT, signal.SIGTERM):
                    stack.callback(signal.signal, number, signal.signal(number, self._on_signal))
                # A handler of ours and not SIG_IGN, which the workers would inherit.
                before = signal.signal(signal.SIGHUP, lambda _number, _frame: None)
                stack.callback(signal.signal, signal.SIGHUP, before)
                wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
                stack.callback(signal.set_wakeup_fd, wakeup)
            yield self

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # The handler only notes: anything else could run in the middle of a write.
        if not self.first:
            self.first = signal.Signals(number)
            self._first_s = time.monotonic()
        self.count += 1


def stopped(signals: Signals) -> Halt:
    """The end of a run that was asked to stop, by a signal or because its time is over."""
    remedy = f"Run the same command again to continue{KEPT}."
    if not signals.first:
        after = human_time(signals.stop_after_s or 0.0)
        return Halt(ExitCode.TRY_AGAIN, f"stopped after {after}, as --stop-after asks", remedy)
    code = ExitCode.INTERRUPTED if signals.first.name == "SIGINT" else ExitCode.TERMINATED
    return Halt(code, f"stopped by {signals.first.name}", remedy)


@frozen
class Run:
    """What the parts of one run share."""

    layout: Layout
    run_id: str
    signals: Signals
    emit: Emit
    tick: Callable[[], None]  # updates the display; to be called several times a second
    texts_per_s_before: float | None = None  # of the last run in this workdir
    clock: Callable[[], float] = time.monotonic


class WaitReporter:
    """Reports that a run waits for something: at once, and then about once a minute."""

    def __init__(self, emit: Emit, limit_s: float) -> None:
        """`limit_s` is how long the run waits at most."""
        self._emit = emit
        self._limit_s = limit_s
        # By device (None = all): how long the wait had lasted when it was last shown.
        self._told_s: dict[int | None, float] = {}

    def report(
        self, delay_s: float, waited_s: float, reason: str, outcome: str, device: int | None = None
    ) -> None:
        """Report that the next try comes after `delay_s`.

        The wait has lasted `waited_s` so far; 0 = it begins.
        """
        told_s = self._told_s.get(device)
        # An event within a minute of the one before is for the journal alone.
        again = waited_s > 0 and told_s is not None and told_s <= waited_s < told_s + 60
        if not again:
            self._told_s[device] = waited_s
        self._emit(Waiting(delay_s, reason, outcome, round(waited_s, 1), self._limit_s, again))
