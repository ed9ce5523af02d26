"""The workdir: every path in it, named once; whose it is.

And the lock that one run at a time holds.

What can be seen of an output, its final file and manifest above all, is there only when it is
complete. All else is in the hidden folder, which only its owner may enter:
docs/reference/run-folder.md lists it.
"""

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
from dataclasses import asdict, replace
from pathlib import Path

import psutil

from chunkvisor.errors import ExitCode, Halt, config_error, no_workdir
from chunkvisor.store.disk import not_ours, user_name
from chunkvisor.units import human_moment
from chunkvisor_worker.contract.files import (
    AttemptFiles,
    FileIn,
    make_folders,
    read_bounded,
    sync_folder,
    write_atomic,
)
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.wire import from_json

HIDDEN = ".chunkvisor"
FORMAT = 6
"""Of all state in a workdir. It counts on with each change that another version would misread."""

CHUNKS_PER_FOLDER = 1000
"""Chunk files are spread over folders: listing and creating stay fast with 100,000 chunks."""

DIGEST_LENGTH = 32
"""Hex digits of the digest in a chunk file's name: 128 bits."""

# whoever only looks whether a lock is held keeps it from being taken for less than this
_LOCK_PATIENCE_S = 0.5


class PathIn:
    """An attribute of a layout: a path in the folder that another attribute gives.

    NAME stands for the output's.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._folder, self._name = folder, name

    def __get__(self, layout: "Layout | OutputLayout", _: type) -> Path:
        folder: Path = getattr(layout, self._folder)
        return folder / (
            self._name.replace("NAME", layout.name)
            if isinstance(layout, OutputLayout)
            else self._name
        )


class NextToFinal:
    """An attribute of an output's layout: its final file, or what lies next to it."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix

    def __get__(self, layout: "OutputLayout", _: type) -> Path:
        return layout.file(self._suffix)


def unfinished(folder: Path) -> Path:
    """Return where a folder is put together before it gets its name."""
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
    """0 = the next one, which gets its number once it is staged."""
    place: Path | None = None
    """Of the final file, if it is not in the workdir: `chunkvisor encode` names it."""
    kind: str = "outputs"

    # What people see.
    final = NextToFinal("npy")
    manifest = NextToFinal("json")
    truncated = NextToFinal("truncated.jsonl")
    quarantined = NextToFinal("quarantined.jsonl")
    rows_table = NextToFinal("rows.parquet")

    hidden = PathIn("workdir", HIDDEN)
    # in float32: a final of another form is made from them
    partial_rows = PathIn("hidden", "NAME.npy.rows")

    # Of all generations.
    done = PathIn("home", "final.json")  # of the final file that stands: manifest and stamp
    publishing = PathIn("home", "publishing.json")  # the manifest of one that is about to appear

    # Of this generation.
    # what the vectors depend on, and what the table was made from
    identity = PathIn("state", "identity.json")
    table = PathIn("state", "table")
    facts = PathIn("state", "facts.json")  # what the first worker found out about the model
    # int32, tokens before the cut of each row, 0 = whole
    cut_rows = PathIn("state", "cut_rows.bin")
    chunks = PathIn("state", "chunks")
    reuse = PathIn("chunks", "reuse")  # which texts have a vector elsewhere, and their vectors
    # by chunk: its texts without a vector; what is good of one that is taken apart
    parts = PathIn("state", "parts")
    attempts = PathIn("state", "attempts")
    truncated_kept = PathIn("state", "truncated.jsonl")
    quarantined_kept = PathIn("state", "quarantined.jsonl")

    @property
    def home(self) -> Path:
        """Everything of the output but its final files."""
        return self.hidden / self.kind / self.name

    @property
    def state(self) -> Path:
        """Everything of this generation."""
        return self.home / (f"{self.generation:04d}" if self.generation else "staging")

    def at_generation(self, generation: int) -> "OutputLayout":
        """Return the paths of another generation."""
        return replace(self, generation=generation)

    def generations(self) -> list[int]:
        """List those that are there, in order."""
        return numbers_in(self.home)

    @property
    def newest(self) -> "OutputLayout":
        """The last of them."""
        return self.at_generation(max(self.generations(), default=0))

    def file(self, suffix: str) -> Path:
        """Return the final file of the format with that suffix."""
        return (self.place or self.workdir / self.name).with_suffix(f".{suffix}")

    def partial(self, suffix: str) -> Path:
        """Return the final file while it is being made.

        On the same file system, so that one rename publishes it.
        """
        return self.hidden / f"{self.name}.{suffix}.partial"

    def cut_texts(self, fingerprint: str) -> Path:
        """Return the tokens before the cut of each text that is encoded under that fingerprint.

        See `keep_cut_lengths`.
        """
        return self.state / f"cut-{fingerprint[:DIGEST_LENGTH]}.bin"

    def chunk(self, number: int, digest: str) -> Path:
        """Return the file of a committed chunk.

        The digest in its name lets one rename commit file and record.
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
    """Paths of one invocation of `run`, written for people; nothing is resumed from here."""

    folder: Path

    log = FileIn("output.log")
    environment = FileIn("environment.json")
    notices = FileIn("notices.jsonl")

    @property
    def name(self) -> str:
        """Of the folder; begins with the invocation's number."""
        return self.folder.name


@frozen
class Layout:
    """Paths of a workdir."""

    workdir: Path

    report = PathIn("workdir", "report.html")
    hidden = PathIn("workdir", HIDDEN)
    mark = PathIn("hidden", "format.json")
    lock = PathIn("hidden", "lock")
    events = PathIn("hidden", "events.jsonl")
    lessons = PathIn("hidden", "lessons.json")
    model = PathIn("hidden", "model.json")
    fetch = PathIn("hidden", "fetch")
    hub = PathIn("hidden", "hub")
    template = PathIn("hidden", "template")
    ray = PathIn("hidden", "ray")
    runs = PathIn("hidden", "runs")
    latest = PathIn("runs", "latest")
    outputs = PathIn("hidden", "outputs")
    all_combined = PathIn("hidden", "combined")

    def owns(self, path: Path) -> bool:
        """Say whether the path is the report or one of the state's, links resolved.

        Final files are not state.
        """
        inside = path.resolve()
        return inside == self.report.resolve() or inside.is_relative_to(self.hidden.resolve())

    def output(self, name: str) -> OutputLayout:
        """Return the paths of one output, of the newest generation at the moment."""
        return OutputLayout(self.workdir, name).newest

    def combined(self, name: str) -> OutputLayout:
        """Return the paths of one combined final."""
        return OutputLayout(self.workdir, name, 1, kind=self.all_combined.name)


# --- whose it is


def is_workdir(layout: Layout) -> bool:
    """Say whether a run has worked here.

    Raises Halt (78) if it was one of another version, whose state we cannot read, or if others
    could have changed it.
    """
    try:
        found = layout.hidden.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISDIR(found.st_mode):
        raise not_ours(
            layout.hidden, "choose another workdir", "it is not a folder", ours="chunkvisor"
        )
    owner, mode = user_name(found.st_uid), stat.filemode(found.st_mode)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        why, remedy = f"it belongs to {owner}", f"Run as {owner}"
        if found.st_uid == os.geteuid():
            why, remedy = (
                f"it is open to others ({mode})",
                f"If it was not changed: chmod 700 {layout.hidden}",
            )
        raise config_error(
            f"the state in {layout.hidden} cannot be trusted: {why}",
            f"{remedy}; or choose another workdir.",
            why="what is read from it decides which files are written and which processes are "
            "ended",
        )
    try:
        written = json.loads(read_bounded(layout.mark) or b"")["workdir_format"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return True  # lost or damaged: that its folder is there says enough
    if written != FORMAT:
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


def claim(layout: Layout, outputs: Iterable[str]) -> None:
    """Make the folder if it is missing, and mark it as ours before anything else.

    Raises Halt (78) if it is not ours and something in it has a name that a run of these outputs
    needs; OSError.
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
        names = ("final", "manifest", "truncated", "quarantined", "rows_table")
        ours = [
            (each.file("parquet"), *(getattr(each, name) for name in names))
            for each in map(layout.output, outputs)
        ]
        for path in filter(os.path.lexists, (layout.report, *itertools.chain(*ours))):
            raise not_ours(
                path,
                "choose another workdir, best an empty folder",
                f"a run in {layout.workdir} needs this name for itself",
                ours="chunkvisor",
            )
    if not layout.mark.exists():
        layout.hidden.mkdir(mode=0o700, exist_ok=True)
        sync_folder(layout.workdir)
        about = "the state of a workdir of chunkvisor, which alone writes here"
        write_atomic(
            layout.mark, json.dumps({"about": about, "workdir_format": FORMAT}).encode() + b"\n"
        )


def anything_kept(layout: Layout) -> bool:
    """Say whether any text may have its vector, also in batches of a stopped attempt."""
    kept = ("chunks/*/*.npy", "parts/*/*.npy", "attempts/*/*/batches.jsonl")
    places = ("*/final.json", *(f"*/*/{each}" for each in kept))
    return any(next(layout.outputs.glob(each), None) for each in places)


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
        """Whether it was a process of this machine and has ended.

        What has the id of its run may then be ended.
        """
        # Our own process has held it before: a second run of one Python program.
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
    """Return the holder noted in the lock file, if there is one.

    Strict about types: it decides what is killed.
    """
    holder = from_json(LockHolder, read_bounded(path))
    return holder if holder is not None and holder.pid > 0 else None


@contextlib.contextmanager
def hold_lock(path: Path, run_id: str) -> Iterator[LockHolder | None]:
    """Hold the workdir while the context lasts; gives who held it before.

    Raises Halt (75) if another run holds it.

    The kernel frees the lock when its holder dies. The file is not removed: two runs would then
    lock two inodes. Give an empty `run_id` to hold it without a run: the last run stays noted, for
    `end_orphans`.
    """
    # Close-on-exec, as every descriptor of Python is: a worker that inherited it would keep the
    # workdir locked after our death (flock(2)). Open for writing, which the byte-range locks that
    # NFS makes of it need.
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while not _try_lock(fd, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                raise _held_by_another(path)
            time.sleep(0.05)
        previous = read_holder(path)
        if run_id:
            started_at = psutil.Process().create_time()
            me = LockHolder(run_id, socket.gethostname(), os.getpid(), started_at, time.time())
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(asdict(me)).encode(), 0)
        yield previous
    finally:
        os.close(fd)


def is_held(path: Path) -> bool:
    """Say whether any process, on whatever machine, holds the lock."""
    try:
        with open(path, "rb") as file:
            return not _try_lock(file.fileno(), fcntl.LOCK_SH)
    except (OSError, Halt):  # no file, or a file system without locks
        return False


def _try_lock(fd: int, operation: int) -> bool:
    """Say whether the lock could be taken, as LOCK_EX or LOCK_SH. Raises Halt (69), OSError."""
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
            raise
        raise Halt(
            ExitCode.MACHINE,
            f"no file can be locked on the disk of {Path(f'/proc/self/fd/{fd}').readlink().parent}",
            "Mount it with locks (on Lustre the option flock, on NFS not nolock), or move the "
            "workdir.",
            why=f"flock says: {error.strerror}",
        ) from None
    return True


def _held_by_another(path: Path) -> Halt:
    holder, name, workdir = read_holder(path), "another run", path.parent.parent
    # One that is over was noted before: whoever has taken the lock since has not said so yet.
    if holder and holder.alive() is not False:
        name += f" (pid {holder.pid} on {holder.host}, started {human_moment(holder.since)})"
    return Halt(
        ExitCode.TRY_AGAIN,
        f"{name} is using {workdir}",
        f"Wait for it, stop it, or look at it with: chunkvisor status {workdir}",
        why="one run at a time may write there",
    )


def workdir_gone(layout: Layout) -> Halt | None:
    """Return the end of a run whose workdir is not there any more, or None.

    Call it while the lock is held.
    """
    if layout.lock.exists():
        return None
    return Halt(
        ExitCode.DISK,
        f"{layout.workdir} was moved or removed while the run worked in it",
        "Move it back, or write its new place as workdir; then run the same command again. If it "
        "was removed, "
        "the same command starts over.",
        why=f"{layout.lock} is no longer there",
    )
