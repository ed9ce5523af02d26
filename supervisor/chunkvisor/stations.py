"""The devices of a run: which of them may get work, and since when one may not.

It never starts a worker, and never brings a device back that was dropped: the next run tries it again.
"""

import time
from collections.abc import Callable, Sequence

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.gpu import Device
from chunkvisor.gpugate import GpuGate


class Station:
    """One device."""

    def __init__(self, number: int, device: Device, wait_timeout_s: float, emit: Callable[..., None]) -> None:
        self.number = number
        self.device = device
        self.gate = GpuGate(device, wait_timeout_s, emit)
        self.dropped = False
        self.paused_until_s = 0.0
        self.freed_s: float | None = None
        """When the last worker that computed on it ended; None before the first."""


class Stations:
    """All devices of a run."""

    def __init__(self, devices: Sequence[Device], wait_timeout_s: float, emit: Callable[..., None]) -> None:
        self._all = [Station(number, device, wait_timeout_s, emit) for number, device in enumerate(devices)]
        self._emit = emit
        self._paused_until_s = 0.0
        """For all of them: what is waited for is not a device."""

    def open(self) -> None:
        """Look at each device once. Raises Halt (69) where none of them can be used."""
        for station in self._all:
            try:
                station.gate.open()
            except Halt as halt:
                self.drop(station, halt)

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
        """Do without a device from now on. Raises `halt` where it was the last one."""
        if station.dropped:
            return
        if len(self.alive) == 1:
            raise halt
        station.dropped = True
        self._emit("device_dropped", device=str(station.device), left=len(self.alive), why=halt.why or halt.what)


def is_devices_own(exit_code: ExitCode) -> bool:
    """Whether a halt with this code may be the matter of one device alone: the others can go on."""
    return exit_code is ExitCode.MACHINE
