"""Sealed JSON: state files that know whether they are whole.

A damaged file is reported as such, and the caller decides.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, TypeVar

from chunkvisor_worker.contract.files import write_atomic
from chunkvisor_worker.contract.wire import from_json

_SEAL = "seal"
_LIMIT_BYTES = 256 << 20
"""No record is larger: the largest is a manifest with a line for each quarantined row."""
_Record = TypeVar("_Record")


class DamagedError(Exception):
    """The file is there, but it is not what was written."""


def digest_of(value: Any) -> str:
    """sha256 of the value's canonical JSON form, as hex."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def write_sealed(path: Path, content: dict[str, Any], *, made_in: Path | None = None) -> None:
    """Write `content` and its digest, under the key `seal`, atomically, as `write_atomic`. Raises OSError."""
    sealed = {**content, _SEAL: digest_of(content)}
    write_atomic(path, json.dumps(sealed, indent=1, ensure_ascii=True).encode() + b"\n", made_in=made_in)


def read_sealed(path: Path) -> dict[str, Any] | None:
    """The content, or None where the file does not exist.

    Raises DamagedError if it is torn or altered, or is not a file; OSError if it cannot be read.
    """
    if path.exists() and not path.is_file():  # a pipe in the place of a manifest would be waited for
        raise DamagedError(str(path))
    try:
        with open(path, "rb") as file:
            data = file.read(_LIMIT_BYTES + 1)
    except FileNotFoundError:
        return None
    try:
        content = json.loads(data if len(data) <= _LIMIT_BYTES else b"")
        seal = content.pop(_SEAL)
        whole = seal == digest_of(content)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise DamagedError(str(path))
    assert isinstance(content, dict)
    return content


def read_record(kind: type[_Record], path: Path) -> _Record | None:
    """The record of a dataclass's shape, or None where the file does not exist.

    Raises as `read_sealed`; DamagedError also if the file is whole but of another shape.
    """
    content = read_sealed(path)
    if content is None:
        return None
    record = from_json(kind, json.dumps(content))
    if record is None:
        raise DamagedError(str(path))
    return record


def read_if_whole(kind: type[_Record], path: Path) -> _Record | None:
    """The record, or None if it cannot be had, for whatever reason."""
    try:
        return read_record(kind, path)
    except (DamagedError, OSError):
        return None
