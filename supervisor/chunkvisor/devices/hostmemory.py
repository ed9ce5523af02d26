"""Memory of this machine: processes killed for lack of it, and what a process holds.

It never takes a SIGKILL alone for an out-of-memory kill: only a rise of this count is evidence.
"""

from collections.abc import Iterable
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def oom_kills() -> int:
    """Processes of our cgroup killed by the kernel's OOM killer so far; 0 where no counter can be read.

    cgroup v2: `oom_kill` of memory.events, which counts global kills too; v1: of memory.oom_control
    (kernel documentation, admin-guide/cgroup-v2 and cgroup-v1/memory).
    """
    for path in _counters():
        try:
            for line in path.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
        except (OSError, ValueError):
            continue
    return 0


def resident_bytes(pid: int) -> int:
    """Memory that a process holds; 0 where it is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except (psutil.Error, OSError):  # OSError: no descriptor is left to read it with
        return 0


def room_for_one_more(pids: Iterable[int]) -> bool:
    """Whether this machine has room for one more process like the largest of these."""
    return psutil.virtual_memory().available > 1.5 * max(map(resident_bytes, pids), default=0)


class KillCount:
    """How many processes of our cgroup the OOM killer has killed since this was made."""

    def __init__(self) -> None:
        self._before = oom_kills()

    def rise(self) -> int:
        """So many."""
        return oom_kills() - self._before


def _counters() -> list[Path]:
    paths = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            paths += [_CGROUP / group.lstrip("/") / "memory.events", _CGROUP / "memory.events"]
        elif "memory" in controllers.split(","):
            root = _CGROUP / "memory"
            paths += [root / group.lstrip("/") / "memory.oom_control", root / "memory.oom_control"]
    return paths
