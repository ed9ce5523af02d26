"""The devices of a run: which of them may get work, and since when one may not.

It never starts a worker, and never brings a device back that was dropped: the next run tries it again.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chunkvisor.decide.outcome import Verdict
from chunkvisor.devices.gate import GpuGate, Sensor, SmiSensor, is_watched
from chunkvisor.devices.gpu import Device
from chunkvisor.errors import ExitCode, Halt
from chunkvisor_worker.contract.exits import Outcome


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
        self.paused_until_s = 0.0
        self.freed_s: float | None = None
        """When the last worker that computed on it ended; None before the first."""

    def __str__(self) -> str:
        return f"{self.device} of {self.site.name}" if self.site.name else str(self.device)


class Stations:
    """All devices of a run; those of a cluster come and go."""

    def __init__(self, wait_timeout_s: float, emit: Callable[..., None]) -> None:
        self._all: list[Station] = []
        self._wait_timeout_s = wait_timeout_s
        self._emit = emit
        self._numbered = 0
        self._paused_until_s = 0.0
        """For all of them: what is waited for is not a device."""
        self.need_bytes = 0
        """GPU memory that a worker needs before its first batch; 0 = not known."""
        self._left_out: list[str] = []
        self.last_halt: Halt | None = None
        """Why the last machine of a cluster that was left out was so."""

    def add(
        self, devices: Sequence[Device], site: Site = HERE, sensor_of: Callable[[Device], Sensor] = SmiSensor
    ) -> None:
        """Take the devices of one machine, with a look at each. Raises Halt (69) where none of ours can be used."""
        first, self._numbered = self._numbered, self._numbered + len(devices)
        for number, device in enumerate(devices, first):
            gate = GpuGate(device, self._wait_timeout_s, self._emit, sensor_of, lambda: self.need_bytes)
            self._all.append(Station(number, device, site, gate))
        if site.node:
            self._emit("node_joined", node=site.name, device=", ".join(map(str, devices)), first=first)
        new = self._all[-len(devices) :]
        for station in new:
            if is_watched(station.device) and not site.node:
                self._emit("checking_device", device=str(station))
            station.gate.begin()
        for station in new:
            try:
                station.gate.open()
            except Halt as halt:
                self.drop(station, halt)
        if not site.node:
            self._emit("devices_checked", count=len(self.alive))

    def close(self) -> None:
        """Let go of the sensors."""
        for station in self._all:
            station.gate.close()

    @property
    def alive(self) -> list[Station]:
        """Those that are not dropped."""
        return [station for station in self._all if not station.dropped]

    def working(self, now_s: float) -> list[Station]:
        """Those that may get work now."""
        if now_s < self._paused_until_s:
            return []
        return [station for station in self.alive if now_s >= station.paused_until_s]

    def pause(self, station: Station | None, delay_s: float) -> None:
        """Start nothing for a while, on one device or (None) on all."""
        until_s = time.monotonic() + delay_s
        if station is None:
            self._paused_until_s = until_s
        else:
            station.paused_until_s = until_s

    def drop(self, station: Station, halt: Halt) -> None:
        """Do without a device from now on. Raises `halt` where it was the last, but of a cluster."""
        if station.dropped:
            return
        if len(self.alive) == 1 and not station.site.node:
            raise self._with_others(halt)
        self._leave_out(station)
        self._left_out.append(f"{station}: {halt.why or halt.what}")
        self._emit("device_dropped", device=str(station), left=len(self.alive), why=halt.why or halt.what)
        if station.site.node:
            self.last_halt = halt

    def drop_node(self, node: str, halt: Halt, name: str = "") -> None:
        """Do without a machine of the cluster from now on; `name` is for one that has never worked."""
        ours = self._of(node)
        for station in ours:
            self._leave_out(station)
        if ours or name:
            name = name or ours[0].site.name
            self._emit("node_set_aside", node=name, left=len(self.alive), why=halt.why or halt.what)
        self.last_halt = halt

    def lose(self, node: str, why: str) -> None:
        """A machine of the cluster is gone; should it come back, it comes as a new one."""
        ours = self._of(node)
        for station in ours:
            self._leave_out(station)
            self._all.remove(station)
        if ours:
            self._emit("node_lost", node=ours[0].site.name, left=len(self.alive), why=why)

    def learn_need(self, need_bytes: int) -> None:
        """A worker was seen to need so much before its first batch."""
        self.need_bytes = max(self.need_bytes, need_bytes)

    def succeeded(self, now_s: float) -> None:
        """Something was done on one of them: no wait for another has cost the run anything until now."""
        for station in self._all:
            station.gate.success_s = now_s

    def places(self, now_s: float) -> Callable[[Station], str]:
        """What attempts are compared by: their machine where several work, else their device where several do."""
        working = self.working(now_s)
        if len({each.site.node for each in working}) > 1:
            return lambda station: station.site.node
        return device_place if len(working) > 1 else lambda _station: ""

    def _with_others(self, halt: Halt) -> Halt:
        """The words of the last device's end, with those of the devices that were left out before."""
        if not self._left_out:
            return halt
        why = f"{halt.why}\nleft out before: " + "\nleft out before: ".join(self._left_out)
        return Halt(halt.code, halt.what, why=why, remedy=halt.remedy, log=halt.log)

    def _of(self, node: str) -> list[Station]:
        return [station for station in self.alive if station.site.node == node]

    def _leave_out(self, station: Station) -> None:
        station.dropped = True
        station.gate.close()


def device_place(station: Station) -> str:
    """The device's name among places; no machine of a cluster has such a one."""
    return f"device {station.number}"


def is_devices_own(exit_code: ExitCode, verdict: Verdict) -> bool:
    """Whether a halt may be the matter of one device alone: the others can go on."""
    return exit_code is ExitCode.MACHINE or verdict.outcome is Outcome.GPU_BUSY


def is_machines_own(exit_code: ExitCode, verdict: Verdict) -> bool:
    """Whether a halt may be the matter of one machine of a cluster: what is installed there, or its disk."""
    load = verdict.before_first_batch and exit_code is ExitCode.CONFIG
    return exit_code is ExitCode.DISK or verdict.outcome is Outcome.SETUP or load
