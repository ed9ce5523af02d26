"""Places with little room: a small file system, and a cgroup with a memory limit, gone when the context ends."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


class NotPossibleError(Exception):
    """The machine does not let us; the message says why."""


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[None]:
    """Mount a tmpfs of the size over the folder while the context lasts. Raises NotPossibleError."""
    options = f"size={size_bytes},mode=0700"
    try:
        _call("mount", "-t", "tmpfs", "-o", options, "chunkvisor-drill", str(folder))
    except NotPossibleError as error:
        raise NotPossibleError(f"no file system can be mounted here: {error}") from None
    try:
        yield
    finally:
        _call("umount", str(folder))


@contextlib.contextmanager
def limited_memory(limit_bytes: int) -> Iterator[None]:
    """Put this process, and what it starts, into a new cgroup with the limit. Raises NotPossibleError.

    cgroup v2 only: memory.max, and no swap (kernel documentation, admin-guide/cgroup-v2). Beside or below our own
    cgroup, whichever the machine allows: a cgroup with processes in it can limit no child of its own.
    """
    home = _own_cgroup()
    cgroup = next((made for parent in (home, home.parent) if (made := _make(parent)) is not None), None)
    if cgroup is None:
        raise NotPossibleError("no cgroup with a memory limit can be made here: not root, or not delegated to us")
    pid = str(os.getpid())
    try:
        try:
            (cgroup / "memory.max").write_text(str(limit_bytes))
            with contextlib.suppress(OSError):  # a kernel without swap accounting
                (cgroup / "memory.swap.max").write_text("0")
            (cgroup / "cgroup.procs").write_text(pid)
        except OSError as error:
            raise NotPossibleError(f"the new cgroup cannot be used: {error.strerror}") from None
        try:
            yield
        finally:
            (home / "cgroup.procs").write_text(pid)
    finally:
        with contextlib.suppress(OSError):  # somebody else's process has moved in: an empty limit harms nobody
            cgroup.rmdir()


def _own_cgroup() -> Path:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        raise NotPossibleError("there is no cgroup to be seen") from None
    groups = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    if not groups or not (_CGROUP / "cgroup.controllers").exists():
        raise NotPossibleError("this machine has no cgroup v2")
    return _CGROUP / groups[0].lstrip("/")


def _make(parent: Path) -> Path | None:
    cgroup = parent / f"chunkvisor-drill-{os.getpid()}"
    try:
        cgroup.mkdir()
    except OSError:
        return None
    if (cgroup / "memory.max").exists():
        return cgroup
    cgroup.rmdir()
    return None


def _call(*command: str) -> None:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise NotPossibleError(f"{command[0]}: {error.strerror}") from None
    if ended.returncode:
        raise NotPossibleError(ended.stderr.strip().splitlines()[0] if ended.stderr.strip() else f"{command[0]} failed")
