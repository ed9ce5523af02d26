"""The devices of a run and the workers on them, as the scheduler sees them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from chunkvisor.supervise.task import Seat, Task


class Gate(Enum):
    """Where a worker stands before its device."""

    SHUT = "shut"
    """Still preparing, or waiting for `go`."""
    OPEN = "open"
    """It has its `go`: the device is its own."""
    PASSED = "passed"
    """It has given the device back, and writes its vectors."""


@dataclass(slots=True)
class Worker:
    """A worker process, from the order to start it to its judged end."""

    number: int
    task: Task
    device: "Device"
    gate: Gate = Gate.SHUT
    go_s: float = float("-inf")
    """When it got its device."""
    ready: bool = False
    ending: bool = False
    leaving: bool = False
    """Whether it has been asked to end after the batch under way."""

    @property
    def seat(self) -> Seat:
        """Where it runs."""
        return self.device.seat


@dataclass(slots=True)
class Device:
    """One device."""

    number: int
    node: str = ""
    kind: str = "cpu"
    name: str = "cpu"
    watched: bool = False
    """Whether somebody can look at it."""
    left: bool = False
    """Whether the run does without it."""
    paused_until_s: float = 0.0
    suspected_s: float | None = None
    """Since when it is to be looked at before the next worker gets it."""
    fresh_only: bool = False
    """Whether a worker from a template has failed here before its first batch: a new interpreter is to tell why."""
    looking: bool = False
    look_again_s: float = 0.0
    workers: list[Worker] = field(default_factory=list)

    @property
    def seat(self) -> Seat:
        """Where its workers run."""
        return Seat(self.number, self.node)

    @property
    def holding(self) -> int:
        """Workers that have it or wait for it."""
        return sum(worker.gate is not Gate.PASSED for worker in self.workers)

    @property
    def computing(self) -> int:
        """Workers that have it."""
        return sum(worker.gate is Gate.OPEN for worker in self.workers)

    def pause(self, until_s: float) -> None:
        """Nothing is started on it before that time; a longer pause that is on already stays."""
        self.paused_until_s = max(self.paused_until_s, until_s)

    def suspect(self, now_s: float) -> None:
        """A worker that had it failed: it is looked at before the next one gets it."""
        if self.watched and self.suspected_s is None:
            self.suspected_s = now_s


class Fleet:
    """All devices and workers of a run; those of a cluster come and go."""

    def __init__(self) -> None:
        self.devices: dict[int, Device] = {}
        self.workers: dict[int, Worker] = {}
        self.paused_until_s = 0.0
        """For all devices: what is waited for is not one of them."""
        self.success_s = float("-inf")
        """When something succeeded last, on any device: what is waited for since then has cost the run nothing."""
        self._started = 0
        self.alive: Sequence[Device] = ()
        """The devices that are left to the run."""
        self.nodes: frozenset[str] = frozenset()
        """The machines of those."""
        self.kinds: tuple[str, ...] = ()
        """The kinds of those."""

    def pause(self, until_s: float) -> None:
        """Nothing is started anywhere before that time; a longer pause that is on already stays."""
        self.paused_until_s = max(self.paused_until_s, until_s)

    def on_node(self, node: str) -> list[Device]:
        """The devices of a machine that are left to the run."""
        return [device for device in self.alive if device.node == node]

    def working(self, now_s: float) -> list[Device]:
        """The devices that may get work now."""
        return [each for each in self.alive if now_s >= each.paused_until_s] if now_s >= self.paused_until_s else []

    def join(self, device: Device) -> None:
        """The device may be worked on from now on."""
        self.devices[device.number] = device
        self._count()

    def add_worker(self, task: Task, device: Device) -> Worker:
        """A worker that is about to be started."""
        self._started += 1
        worker = Worker(self._started, task, device)
        self.workers[worker.number] = worker
        device.workers.append(worker)
        return worker

    def forget(self, worker: Worker) -> None:
        """The worker is gone, and so is its device once it was left and this was its last one."""
        del self.workers[worker.number]
        worker.device.workers.remove(worker)
        if worker.device.left and not worker.device.workers:
            self.devices.pop(worker.device.number, None)

    def leave(self, device: Device) -> None:
        """Do without the device from now on."""
        device.left = True
        if not device.workers:
            self.devices.pop(device.number, None)
        self._count()

    def _count(self) -> None:
        self.alive = [device for device in self.devices.values() if not device.left]
        self.nodes = frozenset(device.node for device in self.alive)
        self.kinds = tuple(dict.fromkeys(device.kind for device in self.alive))
