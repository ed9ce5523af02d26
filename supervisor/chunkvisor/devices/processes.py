"""Memory and processor time of the supervisor and of what it has started.

A process that is gone is left out.
"""

import contextlib
from pathlib import Path
from typing import Any

import psutil


class Processes:
    """The processes of a run; `cpu` is how many cores one has kept busy since the reading before."""

    def __init__(self) -> None:
        self._parent = psutil.Process()
        self._workers: dict[int, psutil.Process] = {}
        self._measured: set[int] = set()

    def add(self, pid: int) -> None:
        """A process was started."""
        with contextlib.suppress(psutil.Error):
            self._workers[pid] = psutil.Process(pid)

    def drop(self, pid: int) -> None:
        """A process has ended."""
        self._workers.pop(pid, None)
        self._measured.discard(pid)

    def read(self) -> dict[str, Any]:
        """`workers`, `parent` and `host`, as a line of the sensors has them."""
        workers = []
        for pid in list(self._workers):
            try:
                workers.append({"pid": pid, **self._figures(self._workers[pid]), **_peak(pid)})
            except (psutil.Error, OSError):
                self.drop(pid)
        return {
            "workers": workers,
            "parent": self._figures(self._parent),
            "host": {"available_bytes": int(psutil.virtual_memory().available)},
        }

    def _figures(self, process: psutil.Process) -> dict[str, Any]:
        with process.oneshot():
            figures: dict[str, Any] = {"rss_bytes": int(process.memory_info().rss)}
            cpu = process.cpu_percent() / 100
        # The first call of psutil's cpu_percent has nothing to compare with, and gives 0.
        if process.pid in self._measured:
            figures["cpu"] = round(cpu, 3)
        self._measured.add(process.pid)
        return figures


def _peak(pid: int) -> dict[str, int]:
    """The most memory that the process has held: VmHWM of proc(5), which misses nothing between two readings."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return {"peak_bytes": int(line.split()[1]) << 10}
    return {}
