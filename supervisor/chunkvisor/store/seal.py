"""Sealed JSON: state files that know whether they are whole.

A damaged file is reported as such, and the caller decides. A file of a newer version of chunkvisor is refused: what it
says, an older one could only guess.
"""

import errno
import hashlib
import json
from pathlib import Path
from typing import Any, TypeVar

from chunkvisor.errors import config_error
from chunkvisor.version import __version__
from chunkvisor_worker.contract.files import PRIVATE, open_regular, write_atomic
from chunkvisor_worker.contract.wire import from_json

_SEAL = "seal"
_VERSION = "record_version"
"""Of the record's own shape; records from before there were versions have none, and count as 0."""
_LIMIT_BYTES = 256 << 20
"""No record is larger: the largest is a manifest with a line for each quarantined row."""
_Record = TypeVar("_Record")

_NO_FILE = frozenset({errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.ENOTDIR, errno.ENXIO})
"""Errors of opening what is a folder, a loop of links, a pipe or a socket."""


class DamagedError(Exception):
    """The file is there, but it is not what was written."""


def digest_of(value: Any) -> str:
    """sha256 of the value's canonical JSON form, as hex."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def write_sealed(path: Path, content: dict[str, Any], *, version: int = 1, mode: int = PRIVATE) -> None:
    """Write `content`, its version and the digest of both under the key `seal`, atomically. Raises OSError.

    `version` is one more as soon as an older chunkvisor could misread a record of this kind; what is only added does
    not count, since readers pass over keys that they do not know (tests/versions holds the shapes).
    """
    versioned = {**content, _VERSION: version}
    sealed = {**versioned, _SEAL: digest_of(versioned)}
    write_atomic(path, json.dumps(sealed, indent=1, ensure_ascii=True).encode() + b"\n", mode=mode)


def read_sealed(path: Path, *, version: int = 1) -> dict[str, Any] | None:
    """The content, or None where the file does not exist; `version` is the newest that the caller can read.

    Raises DamagedError where it is torn or altered, or is no file, OSError where it cannot be read; Halt (78) where a
    newer version of chunkvisor has written it.
    """
    try:
        with open_regular(path) as file:
            data = file.read(_LIMIT_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in _NO_FILE:
            raise DamagedError(str(path)) from None
        raise
    try:
        content = json.loads(data if len(data) <= _LIMIT_BYTES else b"")
        seal = content.pop(_SEAL)
        whole = seal == digest_of(content)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise DamagedError(str(path))
    assert isinstance(content, dict)
    written = content.pop(_VERSION, 0)
    if not isinstance(written, int) or written > version:
        raise config_error(
            f"{path} was written by a newer version of chunkvisor",
            why=f"it has version {written} of its kind of record, and chunkvisor {__version__} reads up to {version}",
            remedy="install the newer version again (pip install -U chunkvisor), or choose another workdir",
        )
    return content


def read_record(kind: type[_Record], path: Path, *, version: int = 1) -> _Record | None:
    """The record of a dataclass's shape, or None where the file does not exist.

    Raises as `read_sealed`; DamagedError also where the file is whole but of another shape, such as an older version's.
    """
    content = read_sealed(path, version=version)
    if content is None:
        return None
    record = from_json(kind, json.dumps(content))
    if record is None:
        raise DamagedError(str(path))
    return record


def read_if_whole(kind: type[_Record], path: Path) -> _Record | None:
    """The record, or None where it is not to be had, for whatever reason but a newer version (Halt)."""
    try:
        return read_record(kind, path)
    except (DamagedError, OSError):
        return None
