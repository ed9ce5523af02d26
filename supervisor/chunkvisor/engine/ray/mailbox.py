"""Orders to the thread of a node's workers, which wake it, and what it reports."""

import contextlib
import os
import queue
from collections.abc import Iterator

from chunkvisor.engine.ray import wire


class Mailbox:
    """Between that thread and all others."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[wire.Order] = queue.SimpleQueue()
        self._reports: queue.SimpleQueue[wire.Report] = queue.SimpleQueue()
        self.waker, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def order(self, order: wire.Order) -> None:
        """Have it obeyed; from any thread."""
        self._orders.put(order)
        with contextlib.suppress(OSError):  # full: it is awake
            os.write(self._wake, b"\0")

    def orders(self) -> Iterator[wire.Order]:
        """Those that have come; `waker` can be read from where there may be some."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.waker, 4096)
        while not self._orders.empty():
            yield self._orders.get()

    def report(self, report: wire.Report) -> None:
        """Have it told."""
        self._reports.put(report)

    def news(self, wait_s: float) -> list[wire.Report]:
        """What there is to tell, in order; waits for the first."""
        try:
            first = self._reports.get(timeout=wait_s)
        except queue.Empty:
            return []
        return [first, *(self._reports.get() for _ in range(self._reports.qsize()))]
