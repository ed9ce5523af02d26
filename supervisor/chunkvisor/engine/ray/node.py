"""A node of the cluster as the supervisor knows it: its devices, its workers, and the looks at its GPUs.

Nothing here asks the node and waits: what is known of it has been told.
"""

import signal
from collections.abc import Callable
from concurrent.futures import Future

from chunkvisor.decide.outcome import NODE_LOST
from chunkvisor.devices.gate import is_watched
from chunkvisor.devices.gpu import Device
from chunkvisor.devices.health import Reading
from chunkvisor.engine.ray.wire import Launch, NodeState, NodeUp, Order, Report
from chunkvisor_worker.contract.messages import Limits


class Node:
    """A node that can work."""

    def __init__(self, number: str, up: NodeUp, send: Callable[[Order], None]) -> None:
        self.number = number
        self.up = up
        self.state: NodeState | None = None
        """None before it is known whether a template gets ready."""
        self.released = False
        self._send = send
        self._workers: dict[int, RayWorker] = {}
        self._looks: dict[int, Future[Reading]] = {}

    def start(self, number: int, folder: str, device: Device, *, fresh: bool, blocking_launches: bool) -> "RayWorker":
        """Start a worker; what goes wrong is heard of later."""
        warm = not fresh and self.state is not None and self.state.warm
        self._workers[number] = worker = RayWorker(self._send, self.number, number, warm)
        launch = Launch(folder, self.up.devices.index(device), fresh, blocking_launches)
        self._send(Order(self.number, number, launch=launch))
        return worker

    def sensor(self, device: Device) -> "NodeSensor":
        """Of one of its GPUs that are watched."""
        watched = [each for each in self.up.devices if is_watched(each)]
        return NodeSensor(self.look, self.up.devices.index(device), self.up.readings[watched.index(device)])

    def look(self, device: int) -> Future[Reading]:
        """Have the GPU at this position looked at."""
        look = self._looks.setdefault(device, Future())
        self._send(Order(self.number, look=device))
        return look

    def hear(self, report: Report) -> None:
        """Take in what the node says of itself, or of a worker."""
        if report.state is not None:
            self.state = report.state
        elif report.looked is not None and (look := self._looks.pop(report.looked.device, None)) is not None:
            look.set_result(report.looked.reading)
        elif (worker := self._workers.get(report.worker)) is not None:
            worker.hear(report)
            if report.ended is not None:
                del self._workers[report.worker]

    def lose(self) -> None:
        """Nothing more will be heard of it, nor of its workers."""
        for worker in self._workers.values():
            worker.lose()
        for look in self._looks.values():
            look.cancel()


class NodeSensor:
    """A Sensor of a node's GPU: nvidia-smi runs there."""

    def __init__(self, look: Callable[[int], Future[Reading]], position: int, first: Reading) -> None:
        """`first` was read before the first worker."""
        self._look = look
        self._position = position
        self._first = first

    def first(self) -> Future[Reading]:
        """See Sensor."""
        known: Future[Reading] = Future()
        known.set_result(self._first)
        return known

    def ask(self) -> Future[Reading]:
        """See Sensor."""
        return self._look(self._position)

    def close(self) -> None:
        """See Sensor."""


class RayWorker:
    """A Worker on a node."""

    tells_beats = True

    def __init__(self, send: Callable[[Order], None], node: str, number: int, warm: bool) -> None:
        """`warm` is what is expected of its start."""
        self.pid = 0
        self.warm = warm
        self._send = send
        self._node = node
        self._number = number
        self._called = False
        self._returncode: int | None = None
        self._kills = 0

    def hear(self, report: Report) -> None:
        """Take in what is said of it; when it has ended its files are here, the last beat among them."""
        if report.started is not None:
            self.pid, self.warm = report.started.pid, report.started.warm
        if report.ended is not None:
            self._kills, self._returncode = report.ended.oom_kills, report.ended.returncode
        self._called |= report.heard or report.ended is not None

    def lose(self) -> None:
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
        self._send(Order(self._node, self._number, gate=limits))

    def leave(self) -> None:
        """See Worker."""
        self._send(Order(self._node, self._number, leave=True))

    def poll(self) -> int | None:
        """See Worker."""
        return self._returncode

    def oom_kills(self) -> int:
        """See Worker."""
        return self._kills

    def signal(self, number: signal.Signals) -> None:
        """See Worker."""
        if self._returncode is None:
            self._send(Order(self._node, self._number, signal=int(number)))
