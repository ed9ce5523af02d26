"""The workdir: every path in it, whether it is ours, and the lock that one run at a time holds.

What people see of an output, its final file and manifest above all, is there only when it is
complete. All else is in the hidden folder, which only its owner may enter:
docs/reference/run-folder.md lists it.
"""

import errno
import fcntl
import itertools
import json
import os
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import psutil

from chunkvisor.child import require_proc
from chunkvisor.errors import ExitCode, Halt, config_error, no_workdir
from chunkvisor.store.disk import not_ours, user_name
from chunkvisor.units import human_moment
from chunkvisor_worker.contract.files import (
    AttemptFiles,
    PathIn,
    make_folders,
    open_regular,
    read_json,
    sync,
    write_atomic,
)
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.wire import read_message

HIDDEN = ".chunkvisor"
FORMAT = 6
"""Version of the state in a workdir; raised by a change that an older version would misread."""

CHUNKS_PER_FOLDER = 1000
"""Chunk files are spread over folders, so that listing stays fast with 100,000 chunks."""

DIGEST_LENGTH = 32
"""Hex digits of the digest in a chunk file's name: 128 bits."""

# `is_held` takes the lock for a moment to test it: a run waits this long before it gives up.
_LOCK_PATIENCE_S = 0.5


class NextToFinal:
    """An attribute of an output's layout: its final file, or a file with another suffix."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix

    def __get__(self, layout: "OutputLayout", _: type) -> Path:
        return layout.file(self._suffix)


def unfinished(folder: Path) -> Path:
    """Return the path under which a folder is filled before a rename gives it its own."""
    return folder.with_name(f"{folder.name}.partial")


def numbers_in(folder: Path) -> list[int]:
    """List the names in the folder that are numbers, in order."""
    names = os.listdir(folder) if folder.is_dir() else ()  # noqa: PTH208 - names will do
    return sorted(int(name) for name in names if name.isdecimal())


@frozen
class OutputLayout:
    """Paths of one generation of an output, or of a combined final."""

    workdir: Path
    name: str
    generation: int = 0
    """From 1; 0 = one whose texts are being staged, which gets its number once they all are."""
    place: Path | None = None
    """Path of the final file if it is not in the workdir: `encode -o` names it."""
    kind: str = "outputs"

    # What people see, in the workdir.
    final = NextToFinal("npy")
    manifest = NextToFinal("json")
    truncated = NextToFinal("truncated.jsonl")
    quarantined = NextToFinal("quarantined.jsonl")
    rows_table = NextToFinal("rows.parquet")

    hidden = PathIn(HIDDEN, "workdir")

    # Of all generations.
    done = PathIn("final.json", "home")  # manifest and stamp of the final file that is in place
    publishing = PathIn("publishing.json", "home")  # the manifest of one that is about to be

    # Of this generation.
    # what the vectors depend on, and what the table was made from
    identity = PathIn("identity.json", "state")
    table = PathIn("table", "state")
    facts = PathIn("facts.json", "state")  # what the first worker found out about the model
    # int32 for each row: tokens before the cut, 0 = not cut
    cut_rows = PathIn("cut_rows.bin", "state")
    chunks = PathIn("chunks", "state")
    reuse = PathIn("reuse", "chunks")  # which texts have a vector elsewhere, and copies of those
    # by chunk that no attempt has completed: the vectors of some of its texts, and its bad texts
    parts = PathIn("parts", "state")
    attempts = PathIn("attempts", "state")
    truncated_kept = PathIn("truncated.jsonl", "state")
    quarantined_kept = PathIn("quarantined.jsonl", "state")

    @property
    def home(self) -> Path:
        """The folder of the output's state, of all generations."""
        return self.hidden / self.kind / self.name

    @property
    def state(self) -> Path:
        """The folder of this generation."""
        return self.home / (f"{self.generation:04d}" if self.generation else "staging")

    def at_generation(self, generation: int) -> "OutputLayout":
        """Return the paths of that generation."""
        return replace(self, generation=generation)

    def generations(self) -> list[int]:
        """List the numbers of the generations that exist, in order."""
        return numbers_in(self.home)

    @property
    def newest(self) -> "OutputLayout":
        """The paths of the last generation."""
        return self.at_generation(max(self.generations(), default=0))

    def file(self, suffix: str) -> Path:
        """Return the final file of the format with that suffix."""
        return (self.place or self.workdir / self.name).with_suffix(f".{suffix}")

    @property
    def visible(self) -> tuple[Path, ...]:
        """Every path of the output outside the hidden folder, in any format."""
        final = (self.final, self.file("parquet"), self.manifest)
        return (*final, self.truncated, self.quarantined, self.rows_table)

    def partial(self, suffix: str) -> Path:
        """Return the path of the final file while it is being made.

        It is on the same file system, so that one rename publishes it.
        """
        return self.hidden / f"{self.name}.{suffix}.partial"

    @property
    def partial_rows(self) -> Path:
        """All rows in float32, from which a final file of another form is made."""
        return self.hidden / f"{self.name}.npy.rows"

    def cut_texts(self, fingerprint: str) -> Path:
        """Return the file with the tokens before the cut of each text; see `keep_cut_lengths`."""
        return self.state / f"cut-{fingerprint[:DIGEST_LENGTH]}.bin"

    def chunk(self, number: int, digest: str) -> Path:
        """Return the file of a committed chunk, `digest` being its `chunk_key`.

        With the digest in the name, one rename commits the vectors and the record of them.
        """
        folder = self.chunks / f"{number // CHUNKS_PER_FOLDER:03d}"
        return folder / f"{number:06d}-{digest[:DIGEST_LENGTH]}.npy"

    def attempts_of(self, chunk: int) -> Path:
        """Return the folder of all attempts at one chunk."""
        return self.attempts / f"{chunk:06d}"

    def attempt(self, chunk: int, attempt: int) -> AttemptFiles:
        """Return the files of one attempt; attempts count from 1."""
        return AttemptFiles(self.attempts_of(chunk) / f"{attempt:03d}")


@frozen
class InvocationFiles:
    """Files of one invocation of `run`, for people to read; no later run needs them."""

    folder: Path

    log = PathIn("output.log")
    environment = PathIn("environment.json")
    notices = PathIn("notices.jsonl")

    @property
    def name(self) -> str:
        """Name of the folder; begins with the invocation's number."""
        return self.folder.name


@frozen
class Layout:
    """Paths of a workdir."""

    workdir: Path

    report = PathIn("report.html", "workdir")
    hidden = PathIn(HIDDEN, "workdir")
    mark = PathIn("format.json", "hidden")
    lock = PathIn("lock", "hidden")
    events = PathIn("events.jsonl", "hidden")
    lessons = PathIn("lessons.json", "hidden")
    model = PathIn("model.json", "hidden")
    fetch = PathIn("fetch", "hidden")
    hub = PathIn("hub", "hidden")
    template = PathIn("template", "hidden")
    ray = PathIn("ray", "hidden")
    runs = PathIn("runs", "hidden")
    latest = PathIn("latest", "runs")
    outputs = PathIn("outputs", "hidden")
    all_combined = PathIn("combined", "hidden")

    def owns(self, path: Path) -> bool:
        """Say whether the path, links resolved, is the report or in the hidden folder."""
        inside = path.resolve()
        return inside == self.report.resolve() or inside.is_relative_to(self.hidden.resolve())

    def output(self, name: str) -> OutputLayout:
        """Return the paths of one output, of its newest generation."""
        return OutputLayout(self.workdir, name).newest

    def combined(self, name: str) -> OutputLayout:
        """Return the paths of one combined final file."""
        return OutputLayout(self.workdir, name, 1, kind=self.all_combined.name)


# --- who owns it


def is_workdir(layout: Layout) -> bool:
    """Say whether a run has worked here.

    Raises Halt (78) if its state is of another version, or could have been changed by others.
    """
    try:
        found = layout.hidden.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISDIR(found.st_mode):
        raise not_ours(
            layout.hidden, "choose another workdir", "it is not a folder", ours="chunkvisor"
        )
    untrusted = ""
    if found.st_uid != os.geteuid():
        owner = user_name(found.st_uid)
        untrusted = f"it belongs to {owner}"
        remedy = f"Run as {owner}"
    elif found.st_mode & 0o077:
        untrusted = f"it is open to others ({stat.filemode(found.st_mode)})"
        remedy = f"If it was not changed: chmod 700 {layout.hidden}"
    if untrusted:
        raise config_error(
            f"the state in {layout.hidden} cannot be trusted: {untrusted}",
            f"{remedy}; or choose another workdir.",
            why="what is read from it decides which files are written and which processes are "
            "ended",
        )
    # If the mark is lost or damaged, it is ours all the same: only a run makes such a folder.
    if read_json(layout.mark).get("workdir_format", FORMAT) != FORMAT:
        raise config_error(
            f"{layout.workdir} was made by another version of chunkvisor, whose state this version "
            f"cannot read",
            "Choose another folder as the workdir, or install that version again.",
            why="its finished files are whole and stay",
        )
    return True


def require_workdir(path: Path) -> Layout:
    """Return the layout of a folder that was given as a workdir.

    Raises Halt (78) if no run has worked there.
    """
    layout = Layout(path)
    if not is_workdir(layout):
        raise no_workdir(path)
    return layout


def anything_kept(layout: Layout) -> bool:
    """Say whether any text of the workdir may have its vector, also in an unfinished attempt."""
    patterns = (
        "*/final.json",
        "*/*/chunks/*/*.npy",
        "*/*/parts/*/*.npy",
        "*/*/attempts/*/*/batches.jsonl",
    )
    return any(next(layout.outputs.glob(pattern), None) for pattern in patterns)


# --- the lock


@frozen
class LockHolder:
    """Who holds, or last held, a workdir."""

    run_id: str
    host: str
    pid: int
    started_at: float
    """Start of the process in seconds since the epoch; with the pid it names one process of one
    boot."""
    since: float
    """Start of the run, seconds since the epoch."""

    @property
    def has_ended(self) -> bool:
        """Whether it was a process of this machine and has ended; its workers may be ended then."""
        # With our own pid, it was an earlier run of this program, which is over.
        return self.host == socket.gethostname() and (
            self.pid == os.getpid() or self.alive() is False
        )

    def alive(self) -> bool | None:
        """Say whether the process still runs.

        None if it ran on another host, which cannot be seen from here.
        """
        if self.host != socket.gethostname():
            return None
        try:
            process = psutil.Process(self.pid)
            # The kernel gives the start time in clock ticks; two readings may differ by one.
            return (
                abs(process.create_time() - self.started_at) < 1
                and process.status() != psutil.STATUS_ZOMBIE
            )
        except (psutil.Error, ValueError):
            return False


def read_holder(path: Path) -> LockHolder | None:
    """Return the holder that the lock file names; None if it names none in the right types.

    They are checked since the record decides which processes are killed.
    """
    holder = read_message(LockHolder, path)
    return holder if holder and holder.pid > 0 else None


@contextmanager
def hold_lock(path: Path, run_id: str = "") -> Iterator[LockHolder | None]:
    """Hold the workdir's lock while the context lasts; gives who held it before.

    Raises Halt (75) if another run holds it. The kernel frees the lock when its holder dies. The
    file is never removed: two runs would then lock two inodes. With an empty `run_id` the file
    keeps naming the last run, for `end_orphans`.
    """
    require_proc()
    # Close-on-exec, as every descriptor of Python is: a worker that inherited it would keep the
    # workdir locked after our death (flock(2)). Open for writing, which the byte-range locks that
    # NFS makes of it need.
    fd = open_regular(path, os.O_RDWR | os.O_CREAT)
    try:
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while not _try_lock(fd, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                raise _held_by_another(path)
            time.sleep(0.05)
        if not path.exists():  # the run that held it has finished, and removed its state
            raise _held_by_another(path)
        previous = read_holder(path)
        if run_id:
            started_at = psutil.Process().create_time()
            me = LockHolder(run_id, socket.gethostname(), os.getpid(), started_at, time.time())
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(asdict(me)).encode(), 0)
        yield previous
    finally:
        os.close(fd)


@contextmanager
def claim(layout: Layout, outputs: Iterable[str], run_id: str) -> Iterator[LockHolder | None]:
    """Hold the workdir for a run of these outputs while the context lasts; as `hold_lock`.

    A missing workdir is made: its folders, then the lock, and only under the lock the mark that
    makes it ours. Raises Halt also (78) if no run has worked there, and a file has a name that a
    run of these outputs needs; OSError.
    """
    try:
        str(layout.workdir).encode()
    except UnicodeEncodeError:
        raise config_error(
            f"the path of the workdir {layout.workdir} is not text in the encoding of this locale",
            "Choose another workdir, or set LC_ALL=C.UTF-8.",
        ) from None
    make_folders(layout.workdir, mode=0o755)  # results in it are for others; state is private
    if not is_workdir(layout):
        needed = itertools.chain(*(layout.output(name).visible for name in outputs))
        taken = next(filter(os.path.lexists, (layout.report, *needed)), None)
        # Another first run may have begun, and made it, since the workdir was looked at.
        if taken and not is_workdir(layout):
            raise not_ours(
                taken,
                "choose another workdir, best an empty folder",
                f"a run in {layout.workdir} needs this name for itself",
                ours="chunkvisor",
            )
        layout.hidden.mkdir(mode=0o700, exist_ok=True)
        sync(layout.workdir)
    with hold_lock(layout.lock, run_id) as previous:
        if not layout.mark.exists():
            about = "the state of a workdir of chunkvisor, which alone writes here"
            mark = {"about": about, "workdir_format": FORMAT}
            write_atomic(layout.mark, [json.dumps(mark).encode(), b"\n"])
        yield previous


def is_held(path: Path) -> bool:
    """Say whether any process, on whatever machine, holds the lock."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            return not _try_lock(file.fileno(), fcntl.LOCK_SH)
    except OSError:  # no file, or a file system without locks
        return False


def _try_lock(fd: int, operation: int) -> bool:
    """Say whether the lock could be taken, as LOCK_EX or LOCK_SH.

    Raises OSError: ENOLCK on a disk without locks.
    """
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
            raise
        path = Path(f"/proc/self/fd/{fd}").readlink()
        raise OSError(errno.ENOLCK, error.strerror, str(path)) from None
    return True


def _held_by_another(path: Path) -> Halt:
    holder = read_holder(path)
    name = "another run"
    workdir = path.parent.parent
    # If the named holder has ended, the new one has not yet written its name.
    if holder and holder.alive() is not False:
        name += f" (pid {holder.pid} on {holder.host}, started {human_moment(holder.since)})"
    return Halt(
        ExitCode.TRY_AGAIN,
        f"{name} is using {workdir}",
        f"Wait for it, stop it, or look at it with: chunkvisor status {workdir}",
        why="one run at a time may write there",
    )


def workdir_gone(layout: Layout) -> Halt | None:
    """Return the Halt (74) of a run whose workdir is gone, or None.

    Call it while the lock is held.
    """
    if layout.lock.exists():
        return None
    return Halt(
        ExitCode.DISK,
        f"{layout.workdir} was moved or removed while the run worked in it",
        "Move it back, or write its new place as workdir; then run the same command again. If it "
        "was removed, the same command starts over.",
        why=f"{layout.lock} is no longer there",
    )
