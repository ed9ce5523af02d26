"""What one run has for itself.

The signals and the time that end it, where it reports, and how it says that it waits.

A run imports it before its model begins to load: neither numpy nor what works on outputs comes with
it.

The first SIGINT or SIGTERM drains the run, the second stops it at once. SIGINT comes from a person,
who can wait and send another; after SIGTERM something stronger may follow, so the run has ended
within `recovery.grace`. It never does anything inside a handler but note the signal.
"""

import contextlib
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
        grace_s: float | None = None,
        stop_after_s: float | None = None,
        *,
        drains: bool = True,
    ) -> None:
        """`stop_after_s` counts from now. None: nothing has to be over at any time.

        Not `drains`: the first stops.
        """
        self.first: signal.Signals | None = None
        self.count = 0
        self.stop_after_s = stop_after_s
        self._patience = 2 if drains else 1
        self._first_s = 0.0
        self._grace_s = grace_s
        self._over_s = self._drain_s = float("inf")
        if stop_after_s is not None:
            self._over_s = time.monotonic() + stop_after_s
            self._drain_s = self._over_s - min(grace_s or 0.0, stop_after_s / 2)
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
        return self.first.name if self.first is not None else "--stop-after"

    @property
    def until_s(self) -> float | None:
        """When a run that drains has to be over, by the clock that never jumps.

        None = whenever it is.
        """
        graceful = self.first is signal.SIGTERM and self._grace_s is not None
        until_s = (
            min(self._over_s, self._first_s + (self._grace_s or 0.0)) if graceful else self._over_s
        )
        return None if until_s == float("inf") else until_s

    def wake(self) -> None:
        """End the current sleep, from any thread."""
        with contextlib.suppress(OSError):  # full: it is awake; closed: it is over
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
        """Catch SIGINT, SIGTERM and SIGHUP.

        Outside the main thread, where Python allows no handlers, catch none.

        SIGHUP, which a closed terminal sends, is ignored: a run must outlive the ssh session that
        started it.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, self._reader)
            stack.callback(os.close, self._writer)
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGINT, signal.SIGTERM):
                    stack.callback(signal.signal, number, signal.signal(number, self._note))
                # A handler of ours and not SIG_IGN, which the workers would inherit.
                before = signal.signal(signal.SIGHUP, lambda _number, _frame: None)
                stack.callback(signal.signal, signal.SIGHUP, before)
                wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
                stack.callback(signal.set_wakeup_fd, wakeup)
            yield self

    def _note(self, number: int, _frame: FrameType | None) -> None:
        # The handler only notes: anything else could run in the middle of a write.
        if self.first is None:
            self.first, self._first_s = signal.Signals(number), time.monotonic()
        self.count += 1


def stopped(signals: Signals) -> Halt:
    """The end of a run that was asked to stop, by a signal or because its time is over."""
    remedy = f"Run the same command again to continue{KEPT}."
    if signals.first is None:
        after = human_time(signals.stop_after_s or 0.0)
        return Halt(ExitCode.TRY_AGAIN, f"stopped after {after}, as --stop-after asks", remedy)
    code = ExitCode.INTERRUPTED if signals.first.name == "SIGINT" else ExitCode.TERMINATED
    return Halt(code, f"stopped by {signals.first.name}", remedy)


@frozen
class Run:
    """What one run has for itself."""

    layout: Layout
    run_id: str
    signals: Signals
    emit: Emit
    tick: Callable[[], None]  # to be called several times a second, however long something takes
    texts_per_s_before: float | None = None  # of the last run in this workdir, or of a trial
    clock: Callable[[], float] = time.monotonic


class WaitTeller:
    """Reports that a run waits for something: at once, and then about once a minute."""

    def __init__(self, emit: Emit, limit_s: float) -> None:
        """`limit_s` is how long the run waits at most."""
        self._emit = emit
        self._limit_s = limit_s
        # by device (None = all), how long it had lasted when last reported
        self._told_s: dict[int | None, float] = {}

    def tell(
        self, delay_s: float, waited_s: float, reason: str, outcome: str, device: int | None = None
    ) -> None:
        """Report that the next try comes after `delay_s`.

        The wait has lasted `waited_s` so far; 0 = it begins.
        """
        told_s = self._told_s.get(device)
        again = waited_s > 0 and told_s is not None and told_s <= waited_s < told_s + 60
        if not again:
            self._told_s[device] = waited_s
        self._emit(Waiting(delay_s, reason, outcome, round(waited_s, 1), self._limit_s, again))
