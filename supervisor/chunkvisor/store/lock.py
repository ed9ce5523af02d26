"""One run per workdir: a lock that the kernel frees when its holder dies, however it dies.

The file is not removed: two runs would then lock two inodes (flock(2)). On NFS the kernel makes byte-range locks of
these, which hold across machines (flock(2), NFS details); they need a file that is open for writing.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.units import human_moment
from chunkvisor_worker.contract.files import read_bounded
from chunkvisor_worker.contract.wire import from_json

_NO_LOCKS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK})
_LOOK_S = 0.5
"""Somebody who only looks whether a lock is held keeps it from being taken for less than this."""


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
    file: tuple[int, ...] = ()
    """Device and inode of the lock file: a copy of the folder has a note that is not about it."""

    @property
    def over(self) -> bool:
        """Whether it was a process of this machine, at this very lock file, and has ended.

        What bears the id of its run may then be ended.
        """
        # Our own process has held it before: a second run of one Python program.
        ended = self.pid == os.getpid() or self.alive() is False
        return bool(self.file) and self.host == socket.gethostname() and ended

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


def read_note(path: Path) -> Holder | None:
    """What is noted in the lock file, be it of this file or of one that it is a copy of; None where nothing is."""
    # Strict about types: processes are killed by what stands here, see `orphans`.
    holder = from_json(Holder, read_bounded(path))
    return holder if holder and holder.pid > 0 else None


def read_holder(path: Path) -> Holder | None:
    """The holder noted in the lock file; None where there is none, or the note has been copied with the folder."""
    holder = read_note(path)
    # Other hosts have other numbers for the device of a shared disk.
    copied = holder and holder.file and holder.host == socket.gethostname() and holder.file != _place_of(path)
    return None if copied else holder


def _place_of(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino


@contextlib.contextmanager
def hold(path: Path, run_id: str) -> Iterator[Holder | None]:
    """Hold the workdir while the context lasts; gives who held it before. Raises Halt (75) when another run holds it.

    Who holds it without a run of its own gives an empty `run_id`: the last run's stays noted, for `orphans`.
    """
    with _opened(path) as fd:
        if not _take(fd, fcntl.LOCK_EX, _LOOK_S):
            raise _taken(path)
        previous = read_holder(path)
        me = Holder(
            run_id or (previous.run_id if previous is not None and previous.over else ""),
            socket.gethostname(),
            os.getpid(),
            psutil.Process().create_time(),
            time.time(),
            (os.fstat(fd).st_dev, os.fstat(fd).st_ino),
        )
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(asdict(me)).encode(), 0)
        yield previous


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """The descriptor of a lock file, which is made if it is missing. Raises OSError.

    The descriptor is close-on-exec, as every descriptor of Python is: a worker that inherited it would keep the
    workdir locked after our death (flock(2): the lock belongs to the open file description).
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield fd
    finally:
        os.close(fd)


def _take(fd: int, operation: int, patience_s: float = 0.0) -> bool:
    """Whether the lock could be taken, as LOCK_EX or LOCK_SH say; tries at least once. Raises Halt (69), OSError."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            path = Path(f"/proc/self/fd/{fd}").readlink()
            raise Halt(
                ExitCode.MACHINE,
                f"no file can be locked on the disk of {path.parent}",
                why=f"flock says: {error.strerror}",
                remedy="mount it with locks (on Lustre the option flock, on NFS not nolock), or move the workdir",
            ) from None
        else:
            return True


def is_held(path: Path) -> bool:
    """Whether somebody, on whatever machine, holds the lock alone."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _take(fd, fcntl.LOCK_SH)
    except (OSError, Halt):  # a file system without locks
        return False
    finally:
        os.close(fd)


def _taken(path: Path) -> Halt:
    """The words where another run holds the workdir of this lock."""
    holder, name = read_holder(path), "another run"
    # One that is over was noted before: whoever has taken the lock since has not said so yet.
    if holder and holder.alive() is not False:
        name = f"the run with pid {holder.pid} on {holder.host}, started {human_moment(holder.since)},"
    return Halt(
        ExitCode.TRY_AGAIN,
        f"{name} already works in {path.parent.parent}",
        why="one run at a time may write there",
        remedy=f"wait for it, stop it, or look at it with: chunkvisor status {path.parent.parent}",
    )
