"""Signals to the supervisor: the first SIGINT or SIGTERM drains the run, the second stops it at once.

It never does anything inside a handler but note the signal.
"""

import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Signals:
    """Signals received while the context of `listen` lasts."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.count = 0
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def draining(self) -> bool:
        """Whether nothing new is to be started."""
        return self.count >= 1

    @property
    def stopping(self) -> bool:
        """Whether everything is to end at once."""
        return self.count >= 2

    def wake(self) -> None:
        """End the sleep under way, from any thread."""
        with contextlib.suppress(OSError):  # full: it is awake; closed: it is over
            os.write(self._writer, b"\0")

    def sleep(self, seconds: float, watched: list[int]) -> None:
        """Sleep until a signal comes, one of the watched descriptors is readable, or the time is over."""
        poll = select.poll()
        for fd in (self._reader, *watched):
            poll.register(fd, select.POLLIN)
        if any(fd == self._reader for fd, _ in poll.poll(max(0.0, seconds) * 1000)):
            os.read(self._reader, 1024)

    @contextlib.contextmanager
    def listen(self) -> Iterator["Signals"]:
        """Catch SIGINT, SIGTERM and SIGHUP; outside the main thread, where Python allows no handlers, catch none.

        SIGHUP, which a closed terminal sends, is ignored: a run must outlive the ssh session that started it.
        """
        try:
            if threading.current_thread() is threading.main_thread():
                with self._caught():
                    yield self
            else:
                yield self
        finally:
            os.close(self._reader)
            os.close(self._writer)

    @contextlib.contextmanager
    def _caught(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        # A handler of our own and not SIG_IGN, which the workers would inherit.
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda _number, _frame: None)
        wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.first = self.first or signal.Signals(number)
        self.count += 1
