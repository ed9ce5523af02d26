"""Files of the folder of an attempt or of another child, and how a file is written all at once."""

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from chunkvisor_worker.contract.frozen import frozen

_COPY_BYTES = 1 << 20
# What is read of a model besides its weights.
SMALL_FILES = ["*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja", "*.py"]
# No record on the wire is larger; a larger file is damage or a lie. The largest is the batch log of
# a chunk of as many texts as the config allows, each in a batch by itself: 10 MB.
READ_LIMIT_BYTES = 32 << 20


class FileIn:
    """An attribute: the path of a file in the `folder` of the object that has it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: Any, _kind: type) -> Path:
        folder: Path = owner.folder
        return folder / self._name


@frozen
class AttemptFiles:
    """Every path in the folder of one attempt, or of another question to a child."""

    folder: Path

    spec = FileIn("spec.json")  # what to do; written by the parent
    # the chunk's texts, one JSON string a line; written by the parent
    texts = FileIn("texts.jsonl")
    # phase and progress; rewritten by the worker's own work loop, so that a hang shows
    beat = FileIn("beat.json")
    log = FileIn("worker.log")  # standard output and standard error of the worker
    vectors = FileIn("embeddings.npy")  # float32 array of shape (texts, dimension), by `numpy.save`
    # the same while it is written; `batches` says which rows are there
    partial = FileIn("embeddings.partial.npy")
    # a line for each batch that began, and one for each that is written
    batches = FileIn("batches.jsonl")
    # of texts that the model does not read whole: int32 pairs, position and tokens uncut
    cut = FileIn("cut.bin")
    result = FileIn("result.json")  # written last, and only when the vectors are on disk
    fault = FileIn("fault.json")  # why there is no result
    # what the parent made of the attempt; it is judged if this is there
    verdict = FileIn("verdict.json")


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable.

    Fsync of a file does not cover its name (fsync(2), NOTES).
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
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
        with contextlib.suppress(
            PermissionError
        ):  # one may write into a folder that one may not open
            sync_folder(each.parent)


def write_atomic(
    path: Path, data: bytes, *, durable: bool = True, made_in: Path | None = None
) -> None:
    """Replace `path` by `data` in one rename.

    With `durable` the file and its folder are synced. It is made in the same folder, or in
    `made_in` on the same file system. Raises OSError, and then leaves neither a half-written `path`
    nor a temporary file.
    """
    write_blocks(path, [data], durable=durable, made_in=made_in)


def copy_atomic(source: Path, target: Path, *, made_in: Path | None = None) -> None:
    """Copy a file into the place of another, as `write_atomic`, in bounded memory.

    Raises OSError.
    """
    with open(source, "rb") as file:
        write_blocks(target, iter(lambda: file.read(_COPY_BYTES), b""), made_in=made_in)


def write_blocks(
    path: Path, blocks: Iterable[bytes], *, durable: bool = True, made_in: Path | None = None
) -> None:
    """As `write_atomic`, of data that need not be in memory as a whole.

    Raises what the blocks raise, too.
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
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def set_aside(path: Path) -> Path | None:
    """Give what stands at the place of a final file another name, and return it.

    None if nothing is there.
    """
    if not os.path.lexists(path):
        return None
    names = (path.with_name(f"{path.name}.aside{number or ''}") for number in itertools.count())
    return path.rename(next(name for name in names if not os.path.lexists(name)))


def make_folder(folder: Path, *, durable: bool = True) -> None:
    """Make a folder if it is missing; with `durable`, its name as well. Raises OSError.

    The name is synced also if the folder is there: whoever made it may have died before. So call it
    once for each.
    """
    folder.mkdir(exist_ok=True)
    if durable:
        sync_folder(folder.parent)


def remove_folder(folder: Path) -> None:
    """Remove the folder with all that is in it, as far as that can be done."""
    shutil.rmtree(folder, ignore_errors=True)


def remove_at_once(folder: Path) -> None:
    """Remove the folder by one rename: after a kill or a power cut, all of it is there, or nothing.

    Raises OSError.
    """
    old = folder.with_name(f"{folder.name}.old")
    remove_folder(old)
    if folder.exists():
        folder.rename(old)
        sync_folder(folder.parent)
        remove_folder(old)


def read_bounded(path: Path) -> bytes | None:
    """Return the file's bytes, or None if there is no file of a sensible size that can be read."""
    try:
        # A worker may have put a pipe there: to open or read one must not hang the parent, and is
        # nothing to read.
        with open(
            path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
        ) as file:
            # Not room for the largest record: to map and unmap that costs more than to read a small
            # one.
            data = file.read(min(os.fstat(file.fileno()).st_size, READ_LIMIT_BYTES) + 1) or b""
    except OSError:
        return None
    return data if len(data) <= READ_LIMIT_BYTES else None


def read_json(path: Path, kind: type = dict) -> Any:
    """Return the content of a JSON file; empty if there is none of that kind."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(read_bounded(path) or b"")
        return found if isinstance(found, kind) else kind()
    return kind()
