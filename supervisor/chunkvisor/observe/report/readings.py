"""What the sensors noted, of all invocations, binned over time.

It never holds more than the bins, whatever the files hold; a torn or strange line is left out.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chunkvisor.observe.report.bins import Bins
from chunkvisor.observe.report.fields import integer, number

_DEVICES = 16


@dataclass(slots=True)
class GpuReadings:
    """Of one GPU."""

    memory_bytes: Bins = field(default_factory=Bins)
    utilization: Bins = field(default_factory=Bins)
    total_bytes: float = 0.0
    hottest_c: float | None = None
    most_w: float | None = None

    def take(self, at_s: float, values: dict[str, Any]) -> None:
        """Take in one reading."""
        if (used := number(values.get("memory_used_bytes"))) is not None:
            self.memory_bytes.add(at_s, used)
        if (busy := number(values.get("utilization"))) is not None:
            self.utilization.add(at_s, busy)
        self.total_bytes = max(self.total_bytes, number(values.get("memory_total_bytes")) or 0.0)
        self.hottest_c = _larger(self.hottest_c, values.get("temperature_c"))
        self.most_w = _larger(self.most_w, values.get("power_w"))


@dataclass(slots=True)
class Readings:
    """Of all sensors."""

    gpus: dict[int, GpuReadings] = field(default_factory=dict)
    workers_bytes: Bins = field(default_factory=Bins)
    parent_bytes: Bins = field(default_factory=Bins)
    least_available_bytes: float | None = None
    """That the host still had at any time."""
    peak_worker_bytes: float = 0.0
    """The most that one worker has held."""
    times: Bins = field(default_factory=Bins)
    """When there was a reading at all."""

    def take(self, line: dict[str, Any]) -> None:
        """Take in one line."""
        at_s = number(line.get("t"))
        if at_s is None or not 0 < at_s < 1e11:
            return
        self.times.add(at_s, at_s)
        for gpu in _dicts(line.get("gpus")):
            device = integer(gpu.get("device"))
            if device in self.gpus or len(self.gpus) < _DEVICES:
                self.gpus.setdefault(device, GpuReadings()).take(at_s, gpu)
        workers = _dicts(line.get("workers"))
        self.workers_bytes.add(at_s, sum(number(worker.get("rss_bytes")) or 0.0 for worker in workers))
        peaks = (number(worker.get("peak_bytes")) or 0.0 for worker in workers)
        self.peak_worker_bytes = max(self.peak_worker_bytes, *peaks, 0.0)
        if (held := _value(line.get("parent"), "rss_bytes")) is not None:
            self.parent_bytes.add(at_s, held)
        if (left := _value(line.get("host"), "available_bytes")) is not None:
            self.least_available_bytes = min(left, self.least_available_bytes or left)


def read_readings(paths: Iterable[Path]) -> Readings:
    """All that the files say."""
    readings = Readings()
    for path in paths:
        for line in _lines(path):
            readings.take(line)
    return readings


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            for line in file:
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(value, dict):
                    yield value
    except OSError:
        return


def _dicts(values: object) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _value(section: object, name: str) -> float | None:
    return number(section.get(name)) if isinstance(section, dict) else None


def _larger(known: float | None, value: object) -> float | None:
    new = number(value)
    return known if new is None else new if known is None else max(known, new)
