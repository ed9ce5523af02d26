"""Reads the machine: memory, limits of the container and of the user, folders, and where the hub's files would go.

Of a token it keeps only whether there is one.
"""

import os
import resource
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from chunkvisor.commands.doctor.readings import FolderReading, HostReading, HubReading

_SHM = Path("/dev/shm")  # noqa: S108 - its size is read, nothing is put there
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_UNLIMITED = 1 << 60
"""cgroup v1 writes "no limit" of memory as a number near 2**63."""
_MEMORY_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""(limit, in use), of cgroup v2 and of v1."""


def read_host() -> HostReading:
    """Memory and limits of the machine, or of the container where that has less."""
    machine = psutil.virtual_memory()
    memory_bytes, available_bytes = int(machine.total), int(machine.available)
    if (share := memory_limit()) is not None:
        memory_bytes, available_bytes = min(memory_bytes, share[0]), min(available_bytes, share[1])
    left, limit = _tasks()
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    shm_bytes = None
    with suppress(OSError):
        shm = os.statvfs(_SHM)
        shm_bytes = shm.f_blocks * shm.f_frsize
    return HostReading(
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=memory_bytes,
        memory_available_bytes=available_bytes,
        shm_bytes=shm_bytes,
        tasks_left=left,
        tasks_limit=limit,
        files=None if files == resource.RLIM_INFINITY else files,
    )


def read_folder(path: Path) -> FolderReading:
    """The folder; where it does not exist yet, what holds of the nearest one above it."""
    wanted = str(path)
    while not path.exists() and path != path.parent:
        path = path.parent
    writable = path.is_dir() and os.access(path, os.W_OK | os.X_OK)
    try:
        stat = os.statvfs(path)
    except OSError:
        return FolderReading(wanted, writable=writable)
    # btrfs and others have no fixed number of inodes, and say 0.
    free_files = stat.f_favail if stat.f_files else None
    return FolderReading(wanted, stat.f_bavail * stat.f_frsize, free_files, writable)


def read_hub(environment: Mapping[str, str]) -> HubReading:
    """The cache and the token, found as huggingface_hub finds them (its constants.py)."""
    cache_home = environment.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    home = Path(environment.get("HF_HOME") or Path(cache_home) / "huggingface").expanduser()
    cache = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE") or home / "hub"
    has_token = any(environment.get(name) for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"))
    with suppress(OSError):
        has_token |= Path(environment.get("HF_TOKEN_PATH") or home / "token").expanduser().stat().st_size > 0
    # The first of the two that is not empty decides (huggingface_hub reads both as one).
    offline = environment.get("HF_HUB_OFFLINE") or environment.get("TRANSFORMERS_OFFLINE") or ""
    folder = read_folder(Path(cache).expanduser())
    return HubReading(folder, has_token, offline.upper() in ("1", "ON", "YES", "TRUE"))


def tasks_left(root: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int | None:
    """Processes and threads that our cgroup, or one above it, still admits; None = no limit."""
    left = [
        limit - (_number(folder / "pids.current") or 0)
        for folder in _cgroups("pids", root, own)
        if (limit := _number(folder / "pids.max")) is not None
    ]
    return max(0, min(left)) if left else None


def memory_limit(root: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> tuple[int, int] | None:
    """(limit, what of it is free) in bytes, of the tightest cgroup; None = no limit.

    Pages of files that were read and are not in use count as free, as the kernel takes them back first.
    """
    found = []
    for folder in _cgroups("memory", root, own):
        for limit_name, used_name in _MEMORY_FILES:
            limit = _number(folder / limit_name)
            if limit is not None and limit < _UNLIMITED:
                used = (_number(folder / used_name) or 0) - _reclaimable(folder / "memory.stat")
                found.append((max(0, limit - max(0, used)), limit))
    return min(found)[::-1] if found else None


def _cgroups(controller: str, root: Path, own: Path) -> Iterator[Path]:
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
    with suppress(OSError, ValueError):
        pairs = dict(line.split(" ", 1) for line in path.read_text().splitlines() if " " in line)
        return int(pairs.get("total_inactive_file", pairs.get("inactive_file", "0")))
    return 0


def _number(path: Path) -> int | None:
    with suppress(OSError, ValueError):  # no such file, or `max`: no limit
        return int(path.read_text())
    return None


def _tasks() -> tuple[int | None, str]:
    """(how many more may be started, where the limit stands): the tighter one of cgroup and ulimit."""
    found = []
    if (left := tasks_left()) is not None:
        found.append((left, "pids.max of the container or unit"))
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    # Root is not held to it (setrlimit(2)).
    if limit != resource.RLIM_INFINITY and os.geteuid() != 0:
        user, count = os.getuid(), 0
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                count += process.num_threads() if process.uids().real == user else 0
        found.append((max(0, limit - count), "ulimit -u"))
    return min(found) if found else (None, "")
