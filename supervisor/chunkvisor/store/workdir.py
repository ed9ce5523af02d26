"""A workdir is known as ours by its hidden folder, which only we may enter, and one run at a time holds its lock."""

import contextlib
import errno
import fcntl
import itertools
import json
import os
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from chunkvisor.errors import ExitCode, Halt, config_error, no_workdir
from chunkvisor.store.disk import not_ours, user_name
from chunkvisor.store.layout import Layout
from chunkvisor.units import human_moment
from chunkvisor_worker.contract.files import AttemptFiles, make_folders, read_bounded, sync_folder, write_atomic
from chunkvisor_worker.contract.wire import from_json, read_batch_log

FORMAT = 1
"""Of all state in a workdir. It counts on with each change that another version would misread."""
_KEY = "workdir_format"

_NO_LOCKS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK})
_LOOK_S = 0.5
"""Whoever only looks whether a lock is held keeps it from being taken for less than this."""


def is_workdir(layout: Layout) -> bool:
    """Say whether a run has worked here.

    Raises Halt (78) if it was one of another version, whose state we cannot read, or if others could have changed it.
    """
    try:
        found = layout.hidden.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISDIR(found.st_mode):
        raise not_ours(layout.hidden, "choose another workdir", "it is not a folder", ours="chunkvisor")
    owner = user_name(found.st_uid)
    if found.st_uid != os.geteuid():
        raise _not_private(layout, f"it belongs to {owner}", f"run as {owner}")
    if found.st_mode & 0o077:
        remedy = f"if you are sure that it was not changed: chmod 700 {layout.hidden}"
        raise _not_private(layout, f"it is open to others ({stat.filemode(found.st_mode)})", remedy)
    try:
        written = json.loads(read_bounded(layout.mark) or b"").get(_KEY, FORMAT)
    except (ValueError, RecursionError, AttributeError):
        return True  # lost or damaged: that its folder is there says enough
    if isinstance(written, int) and written != FORMAT:
        raise config_error(
            f"{layout.workdir} was begun by another version of chunkvisor, whose state this version cannot read",
            why="its finished files are whole and stay",
            remedy="choose another folder as the workdir, or install that version again",
        )
    return True


def _not_private(layout: Layout, why: str, remedy: str) -> Halt:
    return config_error(
        f"the state in {layout.hidden} cannot be trusted: {why}",
        why="what is read from it decides which files are written and which processes are ended",
        remedy=f"{remedy}; or choose another workdir",
    )


def require_workdir(path: Path) -> Layout:
    """Return the layout of a folder that was given as a workdir. Raises Halt (78) if no run has worked there."""
    layout = Layout(path)
    if not is_workdir(layout):
        raise no_workdir(path)
    return layout


def claim(layout: Layout, outputs: Iterable[str]) -> None:
    """Make the folder if it is missing, and mark it as ours, on the disk before anything else of ours is there.

    Raises Halt (78) if it is not ours and something in it has a name that a run of these outputs needs; OSError.
    """
    try:
        str(layout.workdir).encode()
    except UnicodeEncodeError:
        raise config_error(
            f"the path of the workdir {layout.workdir} is not text in the encoding of this locale",
            why="DuckDB, which reads the sources, takes no other",
            remedy="rename the folder, choose another workdir, or set LC_ALL=C.UTF-8 (for umlauts and the like)",
        ) from None
    make_folders(layout.workdir, mode=0o755)  # results in it are for others; state is private
    if not is_workdir(layout):
        wanted = {layout.report, *(path for output in outputs for path in layout.output(output).visible)}
        for path in sorted(wanted):
            if os.path.lexists(path) and not _is_empty(path):
                why = f"a run in {layout.workdir} needs this name for itself"
                raise not_ours(path, "choose another workdir, best an empty folder", why, ours="chunkvisor")
    if not layout.mark.exists():
        mark(layout)


def mark(layout: Layout) -> None:
    """Make the hidden folder and write the mark. Raises OSError."""
    layout.hidden.mkdir(mode=0o700, exist_ok=True)
    sync_folder(layout.workdir)
    about = "the state of a workdir of chunkvisor, which alone writes here"
    write_atomic(layout.mark, json.dumps({"about": about, _KEY: FORMAT}).encode() + b"\n")


def anything_kept(layout: Layout) -> bool:
    """Say whether a text of any output has its vector, be it in the finished batches of an attempt that was stopped."""
    with contextlib.suppress(OSError):
        for output in [layout.output(folder.name) for folder in layout.outputs.iterdir()]:
            files = itertools.chain(output.chunks.glob("*/*.npy"), output.parts.glob("*/*.npy"))
            if output.done.exists() or next(files, None) is not None:
                return True
            stopped = (AttemptFiles(folder) for folder in output.attempts.glob("*/*/"))
            if any(read_batch_log(files.batches).written for files in stopped if not files.verdict.exists()):
                return True
    return False


def _is_empty(path: Path) -> bool:
    """Say whether it is an empty file or folder, as an interrupted start may leave it."""
    if path.is_dir() and not path.is_symlink():
        return not any(path.iterdir())
    found = path.lstat()
    return stat.S_ISREG(found.st_mode) and not found.st_size


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Who holds, or last held, a workdir."""

    run_id: str
    host: str
    pid: int
    started_at: float
    """Start of the process in seconds since the epoch; with the pid it names one process of one boot."""
    since: float
    """Start of the run, seconds since the epoch."""
    file: tuple[int, ...] = ()
    """Device and inode of the lock file: in a copy of the folder the note is not about its lock."""

    @property
    def over(self) -> bool:
        """Whether it was a process of this machine, at this very lock file, and has ended.

        What has the id of its run may then be ended.
        """
        # Our own process has held it before: a second run of one Python program.
        ended = self.pid == os.getpid() or self.alive() is False
        return bool(self.file) and self.host == socket.gethostname() and ended

    def alive(self) -> bool | None:
        """Say whether the process still runs; None if it ran on another host, which cannot be seen from here."""
        if self.host != socket.gethostname():
            return None
        try:
            process = psutil.Process(self.pid)
            # The kernel gives the start time in clock ticks; two readings may differ by one.
            return abs(process.create_time() - self.started_at) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


def read_holder(path: Path) -> LockHolder | None:
    """Return the holder noted in the lock file; None if there is none, or the note was copied with the folder."""
    # Strict about types: processes are killed by what stands here, see `orphans`.
    holder = from_json(LockHolder, read_bounded(path))
    if holder is None or holder.pid <= 0:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    # Other hosts have other numbers for the device of a shared disk.
    copied = holder.file and holder.host == socket.gethostname() and holder.file != (found.st_dev, found.st_ino)
    return None if copied else holder


@contextlib.contextmanager
def hold(path: Path, run_id: str) -> Iterator[LockHolder | None]:
    """Hold the workdir while the context lasts; gives who held it before. Raises Halt (75) if another run holds it.

    The kernel frees the lock when its holder dies. The file is not removed: two runs would then lock two inodes. Give
    an empty `run_id` to hold it without a run: the last run's id stays noted, for `orphans`.
    """
    # Close-on-exec, as every descriptor of Python is: a worker that inherited it would keep the workdir locked after
    # our death (flock(2)). Open for writing, which the byte-range locks that NFS makes of it need.
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not _take(fd, fcntl.LOCK_EX, _LOOK_S):
            raise _taken(path)
        previous = read_holder(path)
        here = os.fstat(fd)
        me = LockHolder(
            run_id or (previous.run_id if previous is not None and previous.over else ""),
            socket.gethostname(),
            os.getpid(),
            psutil.Process().create_time(),
            time.time(),
            (here.st_dev, here.st_ino),
        )
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(asdict(me)).encode(), 0)
        yield previous
    finally:
        os.close(fd)


def is_held(path: Path) -> bool:
    """Say whether any process, on whatever machine, holds the lock."""
    try:
        with open(path, "rb") as file:
            return not _take(file.fileno(), fcntl.LOCK_SH)
    except (OSError, Halt):  # no file, or a file system without locks
        return False


def _take(fd: int, operation: int, patience_s: float = 0.0) -> bool:
    """Say whether the lock could be taken, as LOCK_EX or LOCK_SH; tries at least once. Raises Halt (69), OSError."""
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


def _taken(path: Path) -> Halt:
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
