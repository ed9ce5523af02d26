"""The devices of a run, and how they are looked at; what follows from it the scheduler decides."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from chunkvisor.devices.gpu import Device
from chunkvisor.devices.health import Health, Opinion, Reading, View, judge_gpu, looks_at
from chunkvisor.errors import Halt
from chunkvisor.events.event import (
    STARTING,
    DeviceDropped,
    Doing,
    Emit,
    NodeJoined,
    NodeLost,
    NodeSetAside,
    Note,
    Warned,
)


@dataclass(frozen=True, slots=True)
class Site:
    """The machine that a device belongs to."""

    node: str = ""  # its number in the cluster; empty = the parent's machine, without a cluster
    name: str = ""  # for people
    threads: int = 0  # of a worker there; 0 = as many as here
    model_path: str | None = None  # where the model's files are on it; None = as here


class Station:
    """One device. Only a GPU of this machine that nvidia-smi knows can be looked at."""

    def __init__(self, number: int, device: Device, site: Site = Site()) -> None:
        self.number, self.device, self.site = number, device, site
        self.dropped = False
        self.freed_s: float | None = None  # when the last worker that computed on it ended; None before the first
        self._look = looks_at(device) if device.watched and not site.node else None
        self._asked: Future[Reading] | None = None
        self._told: Health | None = None
        self.view = View(blind=self._look is None) if device.kind == "cuda" else None  # None = it is not a GPU

    def __str__(self) -> str:
        return f"{self.device} of {self.site.name}" if self.site.name else str(self.device)

    def ask(self) -> None:
        """Begin a look, unless one is under way."""
        if self._look is not None and self._asked is None:
            self._asked = self._look()

    def answer(self, ours: frozenset[int], emit: Emit, *, first: bool = False) -> Opinion | None:
        """Say what the look under way says; None until it does, and if the device cannot be looked at.

        `ours` are the pids of our workers on it. The `first` one, before our first worker, is waited for.
        """
        if self._asked is None or self.view is None or not (first or self._asked.done()):
            return None
        reading, self._asked = self._asked.result(), None
        if first:
            self.view.before_bytes = reading.used_bytes or 0
        self.view.alone = not first and reading.is_alone(ours)
        # What is in use before our first worker is not waited for.
        opinion = judge_gpu(reading, ours, 0 if first else self.device.memory_bytes)
        self.view.blind = opinion.health is Health.BLIND
        news = {
            Health.BUSY: Warned(f"{self.device}: waiting, {opinion.why}"),
            Health.BLIND: Note(
                f"{self.device}: {opinion.why}; going on without its readings, CUDA may work all the same"
            ),
        }
        if opinion.health in news and opinion.health is not self._told:  # once, not every two seconds
            self._told = opinion.health
            emit(news[opinion.health])
        return opinion

    def worker_ended(self) -> None:
        """Note that a worker that had the device has ended: what is on it may have changed since the last look."""
        if self.view is not None:
            self.view.alone = False

    def get_used_to(self, others_bytes: int) -> None:
        """Note that others stay, and so they are not waited for any more."""
        if self.view is not None:
            self.view.before_bytes = max(self.view.before_bytes, others_bytes)


class Stations:
    """All devices of a run; those of a cluster come and go."""

    def __init__(self, seen: Callable[[Station, Opinion | None, bool], None], emit: Emit) -> None:
        """`seen(station, opinion, gone)` hears that a device may be worked on, was looked at, or is gone."""
        self._seen, self._emit = seen, emit
        self._all: list[Station] = []
        self._asked: set[int] = set()
        self._left_out: list[str] = []
        self.last_halt: Halt | None = None  # why the last machine of a cluster that was left out was so

    def __getitem__(self, number: int) -> Station:
        return self._all[number]

    @property
    def alive(self) -> list[Station]:
        """Those that are not left out."""
        return [station for station in self._all if not station.dropped]

    def add(self, devices: Sequence[Device], site: Site = Site()) -> None:
        """Take the devices of one machine, with a look at each."""
        added = [Station(number, each, site) for number, each in enumerate(devices, len(self._all))]
        self._all += added
        if site.node:
            self._emit(NodeJoined(site.name, ", ".join(map(str, devices)), added[0].number))
        # All are asked before the first is waited for: nvidia-smi may take its whole time limit.
        for station in added:
            if station.device.watched and not site.node:
                self._emit(Doing(f"asking nvidia-smi how {station} is"))
            station.ask()
        for station in added:
            self._seen(station, station.answer(frozenset(), self._emit, first=True), False)
        if not site.node:
            self._emit(Doing(STARTING))

    def ask(self, number: int) -> None:
        """Begin a look at the device."""
        self._asked.add(number)
        self._all[number].ask()

    def attend(self, pids: Callable[[], Mapping[int, frozenset[int]]]) -> None:
        """Report looks that have an answer; `pids()` are our workers on each device, by its number."""
        for number in list(self._asked):
            station = self._all[number]
            opinion = station.answer(pids().get(number, frozenset()), self._emit)
            if opinion is not None:
                self._asked.discard(number)
                self._seen(station, opinion, False)

    def leave(self, number: int, halt: Halt) -> None:
        """Do without a device from now on."""
        station = self._all[number]
        self._drop(station)
        self._left_out.append(f"{station}: {halt.why or halt.what}")
        self._emit(DeviceDropped(str(station), len(self.alive), halt.why or halt.what))
        if station.site.node:
            self.last_halt = halt

    def drop_node(self, node: str, halt: Halt, name: str = "") -> None:
        """Do without a machine of the cluster from now on; `name` is for one that has never worked."""
        if ours := self._leave_node(node) or name:
            self._emit(NodeSetAside(ours, len(self.alive), halt.why or halt.what))
        self.last_halt = halt

    def lose(self, node: str, why: str) -> None:
        """Note that a machine of the cluster is gone; should it come back, it comes as a new one."""
        if name := self._leave_node(node):
            self._emit(NodeLost(name, len(self.alive), why))

    def _leave_node(self, node: str) -> str:
        """Return its name; empty if it had no device left."""
        ours = [station for station in self.alive if station.site.node == node]
        for station in ours:
            self._drop(station)
            self._seen(station, None, True)
        return ours[0].site.name if ours else ""

    def _drop(self, station: Station) -> None:
        station.dropped = True
        self._asked.discard(station.number)

    def with_others(self, halt: Halt) -> Halt:
        """Add the devices that were left out before to the words of the last device's end."""
        if self._left_out:
            halt.why = "\nleft out before: ".join([halt.why, *self._left_out])
        return halt
