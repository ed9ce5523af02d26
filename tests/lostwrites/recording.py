"""Records what commands do to a folder: builds the recorder with gcc, runs them under it, and reads
its log.
"""

import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

HERE = Path(__file__).parent
_FLAGS = ("-O1", "-std=gnu17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
_HEADER = struct.Struct("=3I4x2Qq")
_LIMIT_S = 1200
"""Of a command that is recorded: seconds, but minutes on a machine that has no time for it."""


class Kind(IntEnum):
    """Of a call; the numbers are those of recorder.c."""

    CREATE = 1
    MKDIR = 2
    WRITE = 3
    TRUNCATE = 4
    ALLOCATE = 5
    RENAME = 6
    LINK = 7
    SYMLINK = 8
    UNLINK = 9
    RMDIR = 10
    SYNC = 11


@dataclass(frozen=True, slots=True)
class Call:
    """One call that changed something, or a sync."""

    kind: Kind
    inode: int
    """The kernel's number of the file or folder."""
    path: str
    """Relative to the folder that is recorded; empty for itself, and for what lies outside."""
    other: str = ""
    """Of a rename the new path, of a link the old one, of a symbolic link its target."""
    offset: int = 0
    """Of a write; of a change of size, the size."""
    data: bytes = b""


@dataclass(slots=True)
class Recording:
    """All calls of some commands, one after the other."""

    folder: Path
    """What was recorded; it is as the last command left it."""
    calls: list[Call] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """How many calls there were when each command had ended."""
    finals: list[dict[str, bytes]] = field(default_factory=list)
    """Contents of the final files then, by their paths."""


def can_record() -> bool:
    """Whether there is a compiler."""
    return shutil.which("gcc") is not None


def build() -> Path:
    """The recorder's library; it is compiled once for each version of its source."""
    source = HERE / "recorder.c"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    library = (
        Path(tempfile.gettempdir())
        / f"chunkvisor-lostwrites-{os.getuid()}-{digest}"
        / "recorder.so"
    )
    if not library.exists():
        library.parent.mkdir(mode=0o700, exist_ok=True)
        scratch = library.with_name(f"{os.getpid()}.so")
        subprocess.run(["gcc", *_FLAGS, "-o", str(scratch), str(source)], check=True)
        scratch.replace(library)
    return library


class Recorder:
    """Runs commands whose changes to `folder` are written down."""

    def __init__(self, folder: Path, log: Path) -> None:
        self._folder = folder.resolve()
        self._log = log
        preload = " ".join(filter(None, [str(build()), os.environ.get("LD_PRELOAD")]))
        self._variables = {
            "LD_PRELOAD": preload,
            "LOSTWRITES_ROOT": str(self._folder),
            "LOSTWRITES_LOG": str(log),
        }
        self._ends: list[int] = []

    def run(self, command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a command in that folder to its end."""
        environment = {**os.environ, **self._variables}
        ended = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        self._ends.append(self._log.stat().st_size if self._log.exists() else 0)
        return ended

    def recording(self) -> Recording:
        """All of it so far."""
        found = Recording(self._folder)
        ends = list(self._ends)
        for end, call in _calls(self._log.read_bytes(), str(self._folder)):
            found.calls.append(call)
            while ends and end >= ends[0]:
                found.ends.append(len(found.calls))
                ends.pop(0)
        found.ends += [len(found.calls)] * len(ends)
        return found


def _calls(log: bytes, root: str) -> Iterator[tuple[int, Call]]:
    at = 0
    while at < len(log):
        kind, path, other, inode, size, offset = _HEADER.unpack_from(log, at)
        parts, at = [], at + _HEADER.size
        for length in (path, other, size):
            parts.append(log[at : at + length])
            at += length
        names = [part.decode() for part in parts[:2]]
        target = names[1] if kind == Kind.SYMLINK else _relative(names[1], root)
        yield at, Call(Kind(kind), inode, _relative(names[0], root), target, offset, parts[2])


def _relative(path: str, root: str) -> str:
    return (
        path.removeprefix(root).lstrip("/") if path == root or path.startswith(root + "/") else ""
    )
