"""Digests of files that need not be computed again while the file is untouched: its size, times and inode are the same.

The change time cannot be set back by any call (inode(7)), so a rewritten file does not pass as the old one; bit rot
beneath the file system does, and `chunkvisor verify` is there for that.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from chunkvisor.store.refusal import FORBIDDEN_ERRNOS, LIMIT_ERRNOS

State: TypeAlias = tuple[int, int, int, int]
"""Of a file: size in bytes, modification time and change time in ns, inode."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """A file's digest, and the state of the file when it was computed."""

    digest: str
    """sha256, hex."""
    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    def untouched(self, path: Path) -> bool:
        """Whether the file is still in the state in which it was stamped."""
        try:
            return self.state == state_of(path)
        except OSError:
            return False

    @property
    def state(self) -> State:
        """That in which it was stamped."""
        return self.size_bytes, self.mtime_ns, self.ctime_ns, self.inode

    def holds(self, path: Path) -> bool:
        """Whether the file has the stamped content; reads it only when it was touched.

        Raises OSError where the machine refuses that: it says nothing of the file.
        """
        if self.untouched(path):
            return True
        try:
            return path.stat().st_size == self.size_bytes and digest_file(path) == self.digest
        except OSError as error:
            if error.errno in LIMIT_ERRNOS | FORBIDDEN_ERRNOS:
                raise
            return False


def stamp_file(path: Path) -> Stamp:
    """Digest and stamp the file. Raises OSError."""
    before = state_of(path)
    return Stamp(digest_file(path), *before)


def stamp_as(path: Path, digest: str) -> Stamp:
    """Stamp a file whose digest has just been computed. Raises OSError."""
    return Stamp(digest, *state_of(path))


def digest_file(path: Path) -> str:
    """sha256 of the file's bytes, hex, in bounded memory. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def state_of(path: Path) -> State:
    """As it is now. Raises OSError."""
    return _state(path.stat())


def _state(stat: os.stat_result) -> State:
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino
