"""What the sensors noted, of all invocations, binned over time."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from chunkvisor.observe.readings import GpuReading, SensorLine, read_line
from chunkvisor.observe.report.bins import MOST, Bins
from chunkvisor_worker.contract.files import open_regular

_GPUS = 16
_LATEST_S = 1e11
"""No time of ours."""


@dataclass(slots=True)
class GpuCurves:
    """Of one GPU."""

    memory_bytes: Bins = field(default_factory=Bins)
    utilization: Bins = field(default_factory=Bins)
    total_bytes: float = 0.0
    hottest_c: float = 0.0
    """0 = it does not tell."""

    def take(self, at_s: float, gpu: GpuReading) -> None:
        """Take in one reading."""
        if gpu.memory_used_bytes is not None:
            self.memory_bytes.add(at_s, gpu.memory_used_bytes)
        if gpu.utilization is not None:
            self.utilization.add(at_s, gpu.utilization)
        self.total_bytes = max(self.total_bytes, min(gpu.memory_total_bytes or 0.0, MOST))
        self.hottest_c = max(self.hottest_c, gpu.temperature_c or 0.0)


@dataclass(slots=True)
class SensorCurves:
    """Of all sensors."""

    gpus: dict[int, GpuCurves] = field(default_factory=dict)
    workers_bytes: Bins = field(default_factory=Bins)
    parent_bytes: Bins = field(default_factory=Bins)
    least_available_bytes: float | None = None
    """That the host still had at any time."""
    peak_worker_bytes: float = 0.0
    """The most that one worker has held."""
    times: Bins = field(default_factory=Bins)
    """When there was a reading at all."""

    def take(self, line: SensorLine) -> None:
        """Take in one line."""
        if not 0 < line.t < _LATEST_S:
            return
        self.times.add(line.t, line.t)
        for gpu in line.gpus:
            if gpu.device in self.gpus or len(self.gpus) < _GPUS:
                self.gpus.setdefault(gpu.device, GpuCurves()).take(line.t, gpu)
        self.workers_bytes.add(line.t, sum(worker.rss_bytes for worker in line.workers))
        self.peak_worker_bytes = max(self.peak_worker_bytes, *(worker.peak_bytes for worker in line.workers), 0.0)
        self.parent_bytes.add(line.t, line.parent.rss_bytes)
        if (left := line.host.available_bytes) is not None:
            self.least_available_bytes = min(left, self.least_available_bytes or left)


def read_sensors(paths: Iterable[Path]) -> SensorCurves:
    """All that the files say; a torn or strange line is left out."""
    curves = SensorCurves()
    for path in paths:
        try:
            with open_regular(path) as file:
                for found in filter(None, map(read_line, file)):
                    curves.take(found)
        except OSError:
            continue
    return curves
