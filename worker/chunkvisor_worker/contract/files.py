"""The files in an attempt's folder, and ways to write and read a file that survive a kill."""

import errno
import itertools
import json
import os
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from chunkvisor_worker.contract.frozen import frozen

_COPY_BYTES = 1 << 20
# What is read of a model besides its weights.
SMALL_FILES = ["*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja", "*.py"]
# A larger record is damaged or forged. The largest is the batch log of the largest chunk with each
# text in a batch by itself: 10 MB.
READ_LIMIT_BYTES = 32 << 20


class PathIn:
    """A descriptor: the path of this name in a folder, which another attribute has."""

    def __init__(self, name: str, folder: str = "folder") -> None:
        self._name = name
        self._folder = folder

    def __get__(self, owner: Any, _kind: type) -> Path:
        folder: Path = getattr(owner, self._folder)
        return folder / self._name


@frozen
class AttemptFiles:
    """Every path in the folder of an attempt, or of another request to a child process."""

    folder: Path

    spec = PathIn("spec.json")  # what to do; written by the parent
    # the chunk's texts, one JSON string a line; written by the parent
    texts = PathIn("texts.jsonl")
    # phase and progress; rewritten by the worker's own work loop, so that a hang shows
    beat = PathIn("beat.json")
    log = PathIn("worker.log")  # standard output and standard error of the worker
    vectors = PathIn("embeddings.npy")  # float32 array of shape (texts, dimension), by `numpy.save`
    # the same while it is written; `batches` says which rows are there
    partial = PathIn("embeddings.partial.npy")
    # a line for each batch that began, and one for each that is written
    batches = PathIn("batches.jsonl")
    # of texts that the model does not read whole: int32 pairs, position and tokens uncut
    cut = PathIn("cut.bin")
    result = PathIn("result.json")  # written last, and only when the vectors are on disk
    fault = PathIn("fault.json")  # why there is no result
    # what the parent made of the attempt; it is judged if this is there
    verdict = PathIn("verdict.json")


def sync(path: Path) -> None:
    """Make the content of a file durable, or the entries of a folder. Raises OSError.

    Fsync of a file does not cover its name, which is an entry of its folder (fsync(2), NOTES).
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folders(folder: Path, *, mode: int = 0o777) -> None:
    """Make a folder, of this mode, and those above it if they are missing, their names durable.

    Raises OSError.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    for each in missing:
        # A folder that may be written may be closed to reading.
        with suppress(PermissionError):
            sync(each.parent)


def copy_atomic(source: Path, target: Path, *, made_in: Path | None) -> None:
    """Copy a file as `write_atomic` writes one, in bounded memory. Raises OSError."""
    with open(source, "rb") as file:
        write_atomic(target, iter(lambda: file.read(_COPY_BYTES), b""), made_in=made_in)


def write_atomic(
    path: Path, blocks: Iterable[bytes], *, durable: bool = True, made_in: Path | None = None
) -> None:
    """Replace `path` by these blocks of data in one rename.

    With `durable` the file and its folder are synced. The temporary file is in the same folder, or
    in `made_in` on the same file system. Raises OSError, and what the iterable raises; then nothing
    has changed.
    """
    # Without the pid: what a killed process left there is replaced by the next write. Every path
    # has one writer.
    temporary = (made_in or path.parent) / f".{path.name}.tmp"
    try:
        # A new file: where others may write, the name could be a link of theirs to a file of the
        # person's.
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb") as file:
            file.writelines(blocks)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync(path.parent)


def set_aside(path: Path) -> Path | None:
    """Rename what is at `path` to `NAME.aside`, and return its new path; None if nothing is."""
    if not os.path.lexists(path):
        return None
    names = (path.with_name(f"{path.name}.aside{number or ''}") for number in itertools.count())
    return path.rename(next(name for name in names if not os.path.lexists(name)))


def make_folder(folder: Path) -> None:
    """Make a folder if it is missing, its name durable. Raises OSError.

    The name is synced also if the folder exists: the process that made it may have died before.
    """
    folder.mkdir(exist_ok=True)
    sync(folder.parent)


def remove_folder(folder: Path) -> None:
    """Remove the folder and what is in it, as far as possible."""
    shutil.rmtree(folder, ignore_errors=True)


def remove_at_once(folder: Path) -> None:
    """Remove the folder by one rename, so that a kill or a power cut leaves all of it or nothing.

    Raises OSError.
    """
    old = folder.with_name(f"{folder.name}.old")
    remove_folder(old)
    if folder.exists():
        folder.rename(old)
        sync(folder.parent)
        remove_folder(old)


def open_regular(path: Path | str, flags: int) -> int:
    """Open a regular file; the opener of `open` for a file that may be a pipe, which would hang us.

    Raises OSError.
    """
    fd = os.open(path, flags | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileExistsError(errno.EEXIST, "it is not a regular file", str(path))
    return fd


def read_bounded(path: Path) -> bytes | None:
    """Return the file's bytes; None if it is missing, unreadable or too large."""
    try:
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            # A buffer for the largest record would take longer to map than a small one to read.
            data = file.read(min(os.fstat(file.fileno()).st_size, READ_LIMIT_BYTES) + 1) or b""
    except OSError:
        return None
    return data if len(data) <= READ_LIMIT_BYTES else None


def read_json(path: Path, kind: type = dict) -> Any:
    """Return the dictionary or list in a JSON file; an empty one if there is none."""
    with suppress(ValueError, RecursionError):
        found = json.loads(read_bounded(path) or b"")
        return found if isinstance(found, kind) else kind()
    return kind()
