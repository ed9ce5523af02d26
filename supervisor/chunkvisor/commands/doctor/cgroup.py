"""Limits that a container or a systemd unit puts on us, from the kernel's cgroup files.

It never guesses: a file that is not there or says `max` is no limit.
"""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
_UNLIMITED = 1 << 60
"""cgroup v1 writes "no limit" of memory as a number near 2**63."""


def tasks_left(root: Path = ROOT, own: Path = OWN) -> int | None:
    """Processes and threads that may still be started; None = no limit."""
    left = [
        limit - (_number(folder / "pids.current") or 0)
        for folder in _folders("pids", root, own)
        if (limit := _number(folder / "pids.max")) is not None
    ]
    return max(0, min(left)) if left else None


def memory(root: Path = ROOT, own: Path = OWN) -> tuple[int, int] | None:
    """(limit, what of it is free) in bytes, of the tightest group; None = no limit.

    Pages of files that were read and are not in use count as free, as the kernel takes them back first.
    """
    found = []
    for folder in _folders("memory", root, own):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit = _number(folder / limit_name)
            if limit is not None and limit < _UNLIMITED:
                used = (_number(folder / used_name) or 0) - _reclaimable(folder / "memory.stat")
                found.append((max(0, limit - max(0, used)), limit))
    if not found:
        return None
    free, limit = min(found)
    return limit, free


def _folders(controller: str, root: Path, own: Path) -> Iterator[Path]:
    """Our group and all above it: each may have a limit. In a container, /proc may name a group that is not mounted."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / controller if controllers else root
        folder = top / group.lstrip("/")
        while folder != top and top in folder.parents:
            yield folder
            folder = folder.parent
        yield top


def _reclaimable(path: Path) -> int:
    try:
        pairs = dict(line.split(" ", 1) for line in path.read_text().splitlines() if " " in line)
        return int(pairs.get("total_inactive_file", pairs.get("inactive_file", "0")))
    except (OSError, ValueError):
        return 0


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
