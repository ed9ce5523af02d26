"""Records on the disk: JSON files with a digest of their content.

Those of models, of files (stamps) and of batch limits are here as well.
"""

import contextlib
import hashlib
import json
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, TypeVar

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.store.disk import rule_of
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import open_regular, write_atomic
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.wire import from_plain

_LIMIT_BYTES = 256 << 20  # no record is longer: what grows with the rows is in other files
_Record = TypeVar("_Record")


class DamagedError(Halt):
    """A file of the workdir is not what was written. As text, it is the file and what is wrong.

    Whoever can make the file again catches it; any other command ends with it.
    """

    def __init__(self, why: str) -> None:
        super().__init__(
            ExitCode.DISK,
            "a file of the workdir was changed or damaged",
            "Run the job again: it makes again what it can.",
            why=why,
        )

    def __str__(self) -> str:
        return self.why


def digest_of(value: Any) -> str:
    """Return the sha256 of the value's canonical JSON form, as hex."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def write_sealed(path: Path, content: dict[str, Any], *, made_in: Path | None = None) -> None:
    """Write `content` as JSON, with its digest under the key `seal`; see `write_atomic`.

    Raises OSError; ValueError if it is longer than what `read_sealed` reads.
    """
    sealed = {**content, "seal": digest_of(content)}
    data = json.dumps(sealed, indent=1, ensure_ascii=True).encode() + b"\n"
    if len(data) > _LIMIT_BYTES:
        raise ValueError(f"{path} would have {len(data):,} bytes, more than are read")
    write_atomic(path, [data], made_in=made_in)


def read_sealed(path: Path) -> dict[str, Any] | None:
    """Return the content, or None if the file does not exist.

    Raises DamagedError if it is torn or altered, or is not a file; OSError if it cannot be read.
    """
    if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
        raise DamagedError(str(path))
    try:
        with open(path, "rb") as file:
            content: dict[str, Any] = json.loads(file.read(_LIMIT_BYTES))
        whole = content.pop("seal") == digest_of(content)
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise DamagedError(str(path))
    return content


def read_record(kind: type[_Record], path: Path) -> _Record | None:
    """Return the record as that dataclass, or None if the file does not exist.

    Raises as `read_sealed`, also if the content does not fit the dataclass.
    """
    content = read_sealed(path)
    if content is None:
        return None
    record = from_plain(kind, content)
    if not record:
        raise DamagedError(str(path))
    return record


def write_record(path: Path, record: Any) -> None:
    """Write a dataclass, sealed. Raises OSError."""
    write_sealed(path, asdict(record))


def read_if_whole(kind: type[_Record], path: Path) -> _Record | None:
    """Return the record, or None if it is missing, damaged or cannot be read."""
    try:
        return read_record(kind, path)
    except (DamagedError, OSError):
        return None


@frozen
class Stamp:
    """A file's digest, with its size, times and inode when the digest was computed."""

    digest: str
    """sha256, hex."""
    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    def untouched(self, path: Path) -> bool:
        """Say whether size, times and inode of the file are those of the stamp."""
        try:
            return (self.size_bytes, self.mtime_ns, self.ctime_ns, self.inode) == state_of(path)
        except OSError:
            return False

    def holds(self, path: Path) -> bool:
        """Say whether the file has the stamped content; reads it only if it was touched.

        Raises OSError if it may not be read, or the machine lacks memory or open files: that says
        nothing of the content.
        """
        if self.untouched(path):
            return True
        try:
            return path.stat().st_size == self.size_bytes and digest_file(path) == self.digest
        except OSError as error:
            rule = rule_of(error)
            if rule and rule.outcome is not Outcome.DISK_FULL:
                raise
            return False


def stamp_file(path: Path) -> Stamp:
    """Digest and stamp the file. Raises OSError."""
    before = state_of(path)
    return Stamp(digest_file(path), *before)


def stamp_as(path: Path, digest: str) -> Stamp:
    """Stamp a file whose digest (sha256, hex) has just been computed. Raises OSError."""
    return Stamp(digest, *state_of(path))


def digest_file(path: Path) -> str:
    """Return the sha256 of the file's bytes, hex, in bounded memory. Raises OSError."""
    with open(path, "rb", opener=open_regular) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def has_digest(path: Path, digest: str) -> bool:
    """Say whether there is such a file, with this sha256, hex. Raises OSError."""
    return path.is_file() and digest_file(path) == digest


def state_of(path: Path) -> tuple[int, int, int, int]:
    """Return the file's size in bytes, modification time and change time in ns, and inode.

    Raises OSError.
    """
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


@frozen
class Pin:
    """The commit of a repository on the hub that a workdir has fixed."""

    name: str
    asked: str | None
    """Branch, tag or commit of the config."""
    path: str
    revision: str


@frozen
class ModelRecord:
    """What a workdir remembers of its models."""

    pins: tuple[Pin, ...] = ()
    stamps: dict[str, Stamp] = field(default_factory=dict)
    """Of the files of local models that were used last, by full path."""


def read_models(path: Path) -> ModelRecord:
    """Read the record; an empty one if it is missing or damaged: the models are looked up again.

    Raises OSError.
    """
    try:
        return read_record(ModelRecord, path) or ModelRecord()
    except DamagedError:
        return ModelRecord()


class LessonFile:
    """Batch limits that runs have learned for one model, by kind of device (`Device.model`)."""

    def __init__(self, path: Path, key: str) -> None:
        """`key` names the model."""
        self._path = path
        self._key = key

    def get(self, kind: str) -> tuple[int, int | None] | None:
        """Return (rows, padded tokens or None) that a batch may have on that kind of device.

        None if nothing was learned.
        """
        found = self._lessons().get(f"{kind}|{self._key}")
        return (found[0], found[1]) if found else None

    def save(self, kind: str, rows: int, tokens: int | None) -> None:
        """Keep the limits for later runs; on a full disk they are lost."""
        with contextlib.suppress(OSError):
            write_sealed(self._path, {**self._lessons(), f"{kind}|{self._key}": [rows, tokens]})

    def _lessons(self) -> dict[str, Any]:
        try:
            return read_sealed(self._path) or {}
        except (DamagedError, OSError):
            return {}
