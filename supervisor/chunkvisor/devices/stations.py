"""The devices of a run, and how they are looked at.

It decides nothing: what happens to a device is told to the scheduler, which says what to do without.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from chunkvisor.devices.gate import GpuGate, Sensor, SmiSensor, is_watched
from chunkvisor.devices.gpu import Device
from chunkvisor.devices.health import Opinion
from chunkvisor.errors import Halt
from chunkvisor.events.device import (
    CheckingDevice,
    DeviceDropped,
    DevicesChecked,
    NodeJoined,
    NodeLost,
    NodeSetAside,
)
from chunkvisor.events.event import Emit


@dataclass(frozen=True, slots=True)
class Site:
    """The machine that a device belongs to."""

    node: str = ""
    """Its number in the cluster; empty = the supervisor's own machine, without a cluster."""
    name: str = ""
    """For people."""
    threads: int = 0
    """Of a worker there; 0 = as many as here."""
    model_path: str | None = None
    """Where the model's files are on it; None = as here."""


HERE = Site()


class Station:
    """One device."""

    def __init__(self, number: int, device: Device, site: Site, gate: GpuGate) -> None:
        self.number = number
        self.device = device
        self.site = site
        self.gate = gate
        self.dropped = False
        self.freed_s: float | None = None
        """When the last worker that computed on it ended; None before the first."""

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
        self._all: dict[int, Station] = {}
        self._listener = listener
        self._emit = emit
        self._numbered = 0
        self._asked: set[int] = set()
        self.need_bytes = 0
        """GPU memory that a worker needs before its first batch; 0 = not known."""
        self._left_out: list[str] = []
        self.last_halt: Halt | None = None
        """Why the last machine of a cluster that was left out was so."""

    def __getitem__(self, number: int) -> Station:
        return self._all[number]

    def add(
        self, devices: Sequence[Device], site: Site = HERE, sensor_of: Callable[[Device], Sensor] = SmiSensor
    ) -> None:
        """Take the devices of one machine, with a look at each."""
        first, self._numbered = self._numbered, self._numbered + len(devices)
        added = []
        for number, device in enumerate(devices, first):
            gate = GpuGate(device, self._emit, sensor_of, lambda: self.need_bytes)
            self._all[number] = station = Station(number, device, site, gate)
            added.append(station)
        if site.node:
            self._emit(NodeJoined(site.name, ", ".join(map(str, devices)), first))
        for station in added:
            if is_watched(station.device) and not site.node:
                self._emit(CheckingDevice(str(station)))
            station.gate.begin()
        for station in added:
            self._listener.joined(station, station.gate.open())
        if not site.node:
            self._emit(DevicesChecked(len(self.alive)))

    def attend(self, pids: Callable[[], Mapping[int, frozenset[int]]]) -> None:
        """Tell of looks that have an answer; `pids()` are our workers on each device, by its number."""
        for number in list(self._asked):
            station = self._all[number]
            opinion = station.gate.answer(pids().get(number, frozenset()), time.monotonic())
            if opinion is not None:
                self._asked.discard(number)
                self._listener.looked(station, opinion)

    def ask(self, number: int) -> None:
        """Begin a look at the device."""
        self._asked.add(number)
        self._all[number].gate.ask()

    def close(self) -> None:
        """Let go of the sensors."""
        for station in self._all.values():
            station.gate.close()

    @property
    def alive(self) -> list[Station]:
        """Those that are not left out."""
        return [station for station in self._all.values() if not station.dropped]

    def leave(self, number: int, halt: Halt) -> None:
        """Do without a device from now on."""
        station = self._all[number]
        self._leave_out(station)
        self._left_out.append(f"{station}: {halt.why or halt.what}")
        self._emit(DeviceDropped(str(station), len(self.alive), halt.why or halt.what))
        if station.site.node:
            self.last_halt = halt

    def drop_node(self, node: str, halt: Halt, name: str = "") -> None:
        """Do without a machine of the cluster from now on; `name` is for one that has never worked."""
        ours = self._of(node)
        for station in ours:
            self._leave_out(station)
        if ours or name:
            name = name or ours[0].site.name
            self._emit(NodeSetAside(name, len(self.alive), halt.why or halt.what))
        self.last_halt = halt
        self._listener.node_left(node)

    def lose(self, node: str, why: str) -> None:
        """A machine of the cluster is gone; should it come back, it comes as a new one."""
        ours = self._of(node)
        for station in ours:
            self._leave_out(station)
        if ours:
            self._emit(NodeLost(ours[0].site.name, len(self.alive), why))
        self._listener.node_left(node)

    def learn_need(self, need_bytes: int) -> None:
        """A worker needs so much before its first batch, by its files, or as one was seen to."""
        self.need_bytes = max(self.need_bytes, need_bytes)

    def with_others(self, halt: Halt) -> Halt:
        """The words of the last device's end, with those of the devices that were left out before."""
        if not self._left_out:
            return halt
        why = f"{halt.why}\nleft out before: " + "\nleft out before: ".join(self._left_out)
        return Halt(halt.code, halt.what, why=why, remedy=halt.remedy, log=halt.log, see=halt.see)

    def _of(self, node: str) -> list[Station]:
        return [station for station in self.alive if station.site.node == node]

    def _leave_out(self, station: Station) -> None:
        station.dropped = True
        self._asked.discard(station.number)
        station.gate.close()
