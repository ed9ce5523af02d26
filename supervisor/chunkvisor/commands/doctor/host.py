"""Reads the machine: memory, limits, folders, and where the hub's files would go.

It never judges, and never shows or keeps a token: only whether there is one.
"""

import os
import resource
from collections.abc import Mapping
from pathlib import Path

import psutil

from chunkvisor.commands.doctor import cgroup
from chunkvisor.commands.doctor.readings import FolderReading, HostReading, HubReading

_SHM = Path("/dev/shm")  # noqa: S108 - its size is read, nothing is put there


def read_host() -> HostReading:
    """Memory and limits of the machine, or of the container where that has less."""
    machine = psutil.virtual_memory()
    memory_bytes, available_bytes = int(machine.total), int(machine.available)
    if (share := cgroup.memory()) is not None:
        memory_bytes, available_bytes = min(memory_bytes, share[0]), min(available_bytes, share[1])
    left, limit = _tasks()
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HostReading(
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=memory_bytes,
        memory_available_bytes=available_bytes,
        shm_bytes=_size_bytes(_SHM),
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
    token_file = Path(environment.get("HF_TOKEN_PATH") or home / "token").expanduser()
    has_token = any(environment.get(name) for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"))
    # The first of the two that is not empty decides (huggingface_hub reads both as one).
    offline = environment.get("HF_HUB_OFFLINE") or environment.get("TRANSFORMERS_OFFLINE") or ""
    return HubReading(
        read_folder(Path(cache).expanduser()),
        has_token or _has_content(token_file),
        offline.upper() in ("1", "ON", "YES", "TRUE"),
    )


def _tasks() -> tuple[int | None, str]:
    """(how many more may be started, where the limit stands): the tighter one of cgroup and ulimit."""
    found = []
    if (left := cgroup.tasks_left()) is not None:
        found.append((left, "pids.max of the container or unit"))
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    # Root is not held to it (setrlimit(2)).
    if limit != resource.RLIM_INFINITY and os.geteuid() != 0:
        found.append((max(0, limit - _own_tasks()), "ulimit -u"))
    return min(found) if found else (None, "")


def _own_tasks() -> int:
    user, count = os.getuid(), 0
    for process in psutil.process_iter():
        try:
            if process.uids().real == user:
                count += process.num_threads()
        except (psutil.Error, OSError):
            continue
    return count


def _size_bytes(path: Path) -> int | None:
    try:
        stat = os.statvfs(path)
    except OSError:
        return None
    return stat.f_blocks * stat.f_frsize


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False
