"""A worker on a node of a cluster, as the loop sees it.

It never asks the node: what is known of the worker has been told.
"""

import signal
from collections.abc import Callable

from chunkvisor.decide.outcome import NODE_LOST
from chunkvisor.engine.ray.wire import Ended, Gate, Order, Signal, Started
from chunkvisor_worker.contract.messages import Limits


class RayWorker:
    """A Worker on a node."""

    tells_beats = True

    def __init__(self, send: Callable[[Order], None], number: int, node: str, warm: bool) -> None:
        """`warm` is what is expected of its start."""
        self.pid = 0
        self.warm = warm
        self.node = node
        self._number = number
        self._send = send
        self._called = False
        self._returncode: int | None = None
        self._kills = 0

    def started(self, started: Started) -> None:
        """It runs."""
        self.pid, self.warm = started.pid, started.warm

    def heard(self) -> None:
        """It has called, or its beat has changed."""
        self._called = True

    def ended(self, ended: Ended) -> None:
        """It has ended, and its files are here, the last beat among them."""
        self._called, self._kills, self._returncode = True, ended.oom_kills, ended.returncode

    def lost(self) -> None:
        """Nothing more will be heard of it."""
        self._returncode = NODE_LOST

    def watched(self) -> list[int]:
        """See Worker; all of them are heard of by the engine's one descriptor."""
        return []

    def has_called(self) -> bool:
        """See Worker."""
        called, self._called = self._called, False
        return called

    def go(self, limits: Limits) -> None:
        """See Worker."""
        self._send(Order(gate=Gate(self.node, self._number, limits)))

    def poll(self) -> int | None:
        """See Worker."""
        return self._returncode

    def oom_kills(self) -> int:
        """See Worker."""
        return self._kills

    def signal(self, number: signal.Signals) -> None:
        """See Worker."""
        if self._returncode is None:
            self._send(Order(signal=Signal(self.node, self._number, int(number))))
