"""Files of an attempt folder, and how a file is written so that a reader sees all of it or nothing."""

import contextlib
import errno
import itertools
import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import Any

_COPY_BYTES = 1 << 20
READ_LIMIT_BYTES = 8 << 20
"""No record on the wire is larger; a larger file is damage or a lie, and is not read into the parent."""


PRIVATE = 0o600
"""Mode of all state."""
RESULT = 0o666
"""Mode of what is made for others to read, such as final files; the umask takes from it what a person wants."""


class FileIn:
    """An attribute: the path of a file in the `folder` of the object that has it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: Any, _kind: type) -> Path:
        folder: Path = owner.folder
        return folder / self._name


@dataclass(frozen=True, slots=True)
class AttemptFiles:
    """Every path in the folder of one attempt, named once."""

    folder: Path

    spec = FileIn("spec.json")
    """What to do; written by the supervisor."""
    texts = FileIn("texts.jsonl")
    """The chunk's texts, one JSON string a line; written by the supervisor."""
    beat = FileIn("beat.json")
    """Phase and progress; rewritten by the worker's own work loop, so that a hang shows."""
    log = FileIn("worker.log")
    """Standard output and standard error of the worker."""
    vectors = FileIn("embeddings.npy")
    """float32 array of shape (texts, dimension), by `numpy.save`."""
    partial = FileIn("embeddings.partial.npy")
    """The same file while it is written, batch by batch; which of its rows are there, `batches` says."""
    batches = FileIn("batches.jsonl")
    """A line for each batch that began, and one for each that is written."""
    cut = FileIn("cut.bin")
    """Texts of more tokens than the model reads: int32 pairs of a position and the tokens before the cut. Missing if
    there is none."""
    result = FileIn("result.json")
    """Written last, and only when the vectors are on disk."""
    fault = FileIn("fault.json")
    """Why there is no result."""
    verdict = FileIn("verdict.json")
    """What the supervisor made of the attempt; its presence says that the attempt is judged."""


def umask() -> int:
    """Of this process."""
    # os.umask would have to change it for a moment, in which another thread may make a file (proc(5), since Linux 4.7).
    with open("/proc/self/status", "rb") as status:
        return next((int(line.split()[1], 8) for line in status if line.startswith(b"Umask:")), 0o077)


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable; fsync of a file does not cover its name (fsync(2), NOTES)."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folders(folder: Path, *, mode: int = 0o777) -> None:
    """Make a folder and those above it where they are missing, and the names of new ones durable. Raises OSError.

    `mode` is that of the folder itself, as `Path.mkdir` has it.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    for each in missing:
        with contextlib.suppress(PermissionError):  # one may write into a folder that one may not open
            sync_folder(each.parent)


def write_atomic(
    path: Path, data: bytes, *, durable: bool = True, mode: int = PRIVATE, made_in: Path | None = None
) -> None:
    """Replace `path` by `data` in one rename; the file is private to the user unless `mode` says otherwise.

    With `durable` the file and its folder are synced, so that it survives a power cut, and a folder or a pipe that
    stands in the way is set aside. It is made in the same folder, or in `made_in` on the same file system. Raises
    OSError, and then leaves neither a half-written `path` nor a temporary file.
    """
    write_blocks(path, [data], durable=durable, mode=mode, made_in=made_in)


def copy_atomic(source: Path, target: Path, *, mode: int = PRIVATE, made_in: Path | None = None) -> None:
    """Copy a file into the place of another, as `write_atomic`, in bounded memory. Raises OSError."""
    with open_regular(source) as file:
        write_blocks(target, iter(lambda: file.read(_COPY_BYTES), b""), mode=mode, made_in=made_in)


def write_blocks(
    path: Path,
    blocks: Iterable[bytes],
    *,
    durable: bool = True,
    mode: int = PRIVATE,
    made_in: Path | None = None,
) -> None:
    """As `write_atomic`, of data that need not be in memory as a whole. Raises what the blocks raise, too."""
    # Without the pid: what a killed process left there is replaced by the next write. Every path has one writer.
    temporary = (made_in or path.parent) / f".{path.name}.tmp"
    try:
        if durable:
            set_aside(path)
        with open_new(temporary, mode) as file:
            file.writelines(blocks)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def open_new(path: Path, mode: int = PRIVATE) -> BufferedWriter:
    """A new, empty file, private to the user unless `mode` says otherwise (less the umask, as everywhere).

    A file or a link that bears the name goes, what else does is set aside. Nothing is ever written through a link:
    where others may write, one could lead to a file of the person's. Raises OSError.
    """
    try:
        return open(_descriptor(path, os.O_WRONLY | os.O_EXCL, mode), "wb")
    except FileExistsError:
        if path.is_symlink() or set_aside(path) is None:
            path.unlink(missing_ok=True)
    return open(_descriptor(path, os.O_WRONLY | os.O_EXCL, mode), "wb")


def open_kept(path: Path, flags: int = os.O_WRONLY | os.O_APPEND) -> int:
    """Descriptor of a file that keeps what is in it, made where it is missing, private to the user.

    Raises OSError, also where a link, a pipe or a device bears the name: through those nothing is written.
    """
    return _regular(_descriptor(path, flags), path)


def _regular(fd: int, path: Path) -> int:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd


def _descriptor(path: Path, flags: int, mode: int = PRIVATE) -> int:
    # O_NONBLOCK: to open a pipe for writing is to wait for a reader (fifo(7)); to files it means nothing.
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)


def open_log(path: Path) -> BufferedWriter:
    """A log, opened for appending, so that it can be cut while a child writes to it. Raises OSError.

    What bears the name and is no file is set aside.
    """
    set_aside(path)
    return open(open_kept(path), "wb")


def set_aside(path: Path, *, files_too: bool = False) -> Path | None:
    """Give what stands at the path another name beside it; a regular file only with `files_too`.

    Such a thing (a folder, a pipe, a link) is somebody's mistake, or somebody's: it is in the way, and not ours to
    remove. Returns the new name, None where nothing had to be moved. Raises OSError.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None
    if not files_too and stat.S_ISREG(mode):
        return None
    names = (path.with_name(f"{path.name}.aside{number or ''}") for number in itertools.count())
    return path.rename(next(name for name in names if not os.path.lexists(name)))


def make_folder(folder: Path, *, durable: bool = True) -> None:
    """Make a folder, private to the user, where it is missing; with `durable`, its name as well. Raises OSError.

    What else bears its name is set aside. What is synced in a folder is lost all the same if the folder's own name is.
    The name is synced also where the folder is there: whoever made it may have died before, or not yet come to it. So a
    process calls it once for each. The folder above has to be there: `mode` would not hold for it.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        set_aside(folder, files_too=True)
        folder.mkdir(mode=0o700)
    if durable:
        sync_folder(folder.parent)


def remove_folder(folder: Path) -> None:
    """Remove the folder with all that is in it, as far as that can be done; what else bears its name is set aside."""
    with contextlib.suppress(OSError):
        # Told to remove a pipe, rmtree opens it, and waits for whoever writes there.
        if stat.S_ISDIR(folder.lstat().st_mode):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            set_aside(folder, files_too=True)


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading. Raises OSError, also where it is a pipe or a device: reading those can last for ever."""
    return open(descriptor_of(path), "rb")


def descriptor_of(path: Path, flags: int = os.O_RDONLY) -> int:
    """The same as a descriptor; to be written to, too, with other `flags`, and then not through a link."""
    # Without O_NONBLOCK the open of a pipe waits until somebody writes to it (fifo(7)); to files it means nothing.
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | (os.O_NOFOLLOW if flags else 0)
    return _regular(os.open(path, flags), path)


def read_bounded(path: Path) -> bytes | None:
    """The file's bytes, or None where there is no regular file of a sensible size that can be read."""
    try:
        with open(descriptor_of(path), "rb", buffering=0) as file:
            # Room for what is there: to map and unmap that for the largest record costs more than to read a small one.
            there_bytes = os.fstat(file.fileno()).st_size
            data = file.read(min(there_bytes, READ_LIMIT_BYTES) + 1)
            if len(data) > there_bytes:  # it grows
                data += file.read(max(0, READ_LIMIT_BYTES + 1 - len(data)))
    except OSError:
        return None
    return data if len(data) <= READ_LIMIT_BYTES else None
