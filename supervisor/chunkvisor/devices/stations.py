"""The devices of a run, and how they are looked at; what follows from it the scheduler decides."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from chunkvisor.devices.gpu import Device, is_watched
from chunkvisor.devices.health import GpuGate, Look, Opinion
from chunkvisor.errors import Halt
from chunkvisor.events.event import (
    DeviceDropped,
    Doing,
    Emit,
    NodeJoined,
    NodeLost,
    NodeSetAside,
)
from chunkvisor.events.state import STARTING


@dataclass(frozen=True, slots=True)
class Site:
    """The machine that a device belongs to."""

    node: str = ""  # its number in the cluster; empty = the parent's machine, without a cluster
    name: str = ""  # for people
    threads: int = 0  # of a worker there; 0 = as many as here
    model_path: str | None = None  # where the model's files are on it; None = as here


class Station:
    """One device."""

    def __init__(self, number: int, device: Device, site: Site, gate: GpuGate) -> None:
        self.number, self.device, self.site, self.gate = number, device, site, gate
        self.dropped = False
        self.freed_s: float | None = None  # when the last worker that computed on it ended; None before the first

    def __str__(self) -> str:
        return f"{self.device} of {self.site.name}" if self.site.name else str(self.device)


class Listener(Protocol):
    """Hears what becomes of devices."""

    def joined(self, station: Station, opinion: Opinion | None) -> None:
        """It may be worked on; the opinion is that of a first look."""

    def looked(self, station: Station, opinion: Opinion) -> None:
        """A look that was asked for has an answer."""

    def node_left(self, node: str) -> None:
        """Nothing can be done on the machine any more."""


class Stations:
    """All devices of a run; those of a cluster come and go."""

    def __init__(self, listener: Listener, emit: Emit) -> None:
        self._listener, self._emit = listener, emit
        self._all: dict[int, Station] = {}
        self._asked: set[int] = set()
        self._left_out: list[str] = []
        self._need_bytes = 0
        self.last_halt: Halt | None = None  # why the last machine of a cluster that was left out was so

    def __getitem__(self, number: int) -> Station:
        return self._all[number]

    @property
    def alive(self) -> list[Station]:
        """Those that are not left out."""
        return [station for station in self._all.values() if not station.dropped]

    def add(
        self,
        devices: Sequence[Device],
        site: Site = Site(),
        look_of: Callable[[Device], Look | None] = lambda _: None,
    ) -> None:
        """Take the devices of one machine, with a look at each; `look_of` says how, unless as on this machine."""
        added = []
        for number, device in enumerate(devices, len(self._all)):
            gate = GpuGate(device, self._emit, look_of(device), lambda: self._need_bytes)
            self._all[number] = station = Station(number, device, site, gate)
            added.append(station)
        if site.node:
            self._emit(NodeJoined(site.name, ", ".join(map(str, devices)), added[0].number))
        # All are asked before the first is waited for: nvidia-smi may take its whole time limit.
        for station in added:
            if is_watched(station.device) and not site.node:
                self._emit(Doing(f"asking nvidia-smi how {station} is"))
            station.gate.ask()
        for station in added:
            self._listener.joined(station, station.gate.open())
        if not site.node:
            self._emit(Doing(STARTING))

    def ask(self, number: int) -> None:
        """Begin a look at the device."""
        self._asked.add(number)
        self._all[number].gate.ask()

    def attend(self, pids: Callable[[], Mapping[int, frozenset[int]]]) -> None:
        """Report looks that have an answer; `pids()` are our workers on each device, by its number."""
        for number in list(self._asked):
            station = self._all[number]
            opinion = station.gate.answer(pids().get(number, frozenset()), time.monotonic())
            if opinion is not None:
                self._asked.discard(number)
                self._listener.looked(station, opinion)

    def leave(self, number: int, halt: Halt) -> None:
        """Do without a device from now on."""
        station = self._all[number]
        self._leave_out([station])
        self._left_out.append(f"{station}: {halt.why or halt.what}")
        self._emit(DeviceDropped(str(station), len(self.alive), halt.why or halt.what))
        if station.site.node:
            self.last_halt = halt

    def drop_node(self, node: str, halt: Halt, name: str = "") -> None:
        """Do without a machine of the cluster from now on; `name` is for one that has never worked."""
        ours = self._leave_out(station for station in self.alive if station.site.node == node)
        if ours or name:
            self._emit(NodeSetAside(name or ours[0].site.name, len(self.alive), halt.why or halt.what))
        self.last_halt = halt
        self._listener.node_left(node)

    def lose(self, node: str, why: str) -> None:
        """Note that a machine of the cluster is gone; should it come back, it comes as a new one."""
        ours = self._leave_out(station for station in self.alive if station.site.node == node)
        if ours:
            self._emit(NodeLost(ours[0].site.name, len(self.alive), why))
        self._listener.node_left(node)

    def learn_need(self, need_bytes: int) -> None:
        """Note what a worker needs before its first batch, by its files, or as one was seen to."""
        self._need_bytes = max(self._need_bytes, need_bytes)

    def with_others(self, halt: Halt) -> Halt:
        """Add the devices that were left out before to the words of the last device's end."""
        if self._left_out:
            halt.why = "\nleft out before: ".join([halt.why, *self._left_out])
        return halt

    def _leave_out(self, stations: Iterable[Station]) -> list[Station]:
        found = list(stations)
        for station in found:
            station.dropped = True
            self._asked.discard(station.number)
        return found
