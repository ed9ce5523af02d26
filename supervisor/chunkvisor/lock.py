"""One run per workdir: a lock that the kernel frees when its holder dies, however it dies.

It never waits, and never removes the file: a removed lock file would let two runs lock two inodes (flock(2)).
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor_worker.contract.files import read_bounded
from chunkvisor_worker.contract.messages import from_json


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds, or last held, a workdir."""

    run_id: str
    host: str
    pid: int
    started_at: float
    """Start of the process in seconds since the epoch; with the pid it names one process of one boot."""
    since: float
    """Start of the run, seconds since the epoch."""

    def alive(self) -> bool | None:
        """Whether the process still runs; None where it ran on another host, which cannot be seen from here."""
        if self.host != socket.gethostname():
            return None
        try:
            process = psutil.Process(self.pid)
            # The kernel gives the start time in clock ticks; two readings may differ by one.
            return abs(process.create_time() - self.started_at) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


def read_holder(path: Path) -> Holder | None:
    """The holder noted in the lock file, or None where there is none or it cannot be read."""
    # Strict about types: processes are killed by what stands here, see `orphans`.
    holder = from_json(Holder, read_bounded(path))
    return holder if holder and holder.pid > 0 else None


@contextlib.contextmanager
def hold(path: Path, run_id: str) -> Iterator[Holder | None]:
    """Hold the workdir while the context lasts; gives who held it before. Raises Halt (75) when another run holds it.

    Who holds it without a run of its own gives an empty `run_id`: the last run's stays noted, for `orphans`.
    The descriptor is close-on-exec, as every descriptor of Python is: a worker that inherited it would keep the
    workdir locked after our death (flock(2): the lock belongs to the open file description).
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ELOOP, errno.ENXIO):
            raise _no_file(path) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _no_file(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _taken(path) from None
        previous = read_holder(path)
        me = Holder(
            run_id or (previous.run_id if previous else ""),
            socket.gethostname(),
            os.getpid(),
            psutil.Process().create_time(),
            time.time(),
        )
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(asdict(me)).encode(), 0)
        yield previous
    finally:
        os.close(fd)


def _no_file(path: Path) -> Halt:
    # Not set aside as other files are: two runs that did so at the same time would hold two locks.
    return config_error(f"{path} is no file, so the workdir cannot be locked", remedy="move it away, then run again")


def _taken(path: Path) -> Halt:
    holder = read_holder(path)
    who = "another run"
    if holder:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.since))
        who = f"the run with pid {holder.pid} on {holder.host}, started {since},"
    return Halt(
        ExitCode.TRY_AGAIN,
        f"{who} already works in {path.parent}",
        why="one run at a time may write there",
        remedy=f"wait for it, stop it, or look at it with: chunkvisor status {path.parent}",
    )
