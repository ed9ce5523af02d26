"""The library that fails calls (shim.c): builds it with gcc, and speaks to it through a block of
shared memory.
"""

import ctypes
import errno
import hashlib
import mmap
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_FLAGS = (
    "-shared",
    "-fPIC",
    "-O1",
    "-std=gnu17",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-D_LARGEFILE64_SOURCE",
)
_PATH_BYTES, _SLOTS = 4096, 8192
_OFF, _RECORD, _FAIL = 0, 1, 2

SHORT = -1
"""In the place of an error: half of a write is done, and it says so, as on a disk that has just
become full."""

CAN_FAIL_WITH = {
    "open": ("EIO", "EACCES", "EMFILE", "ENOMEM"),
    "change": ("EIO", "EACCES", "EMFILE", "ENOMEM"),
    "create": ("EIO", "ENOSPC", "EACCES", "EMFILE", "ENOMEM"),
    "write": ("EIO", "ENOSPC", "SHORT"),
    "sync": ("EIO", "ENOSPC"),
    "truncate": ("EIO",),
    "allocate": ("EIO", "ENOSPC"),
    "rename": ("EIO", "ENOSPC", "EACCES", "ENOMEM"),
    "link": ("EIO", "ENOSPC", "EACCES", "ENOMEM"),
    "remove": ("EIO", "EACCES", "ENOMEM"),
    "mkdir": ("EIO", "ENOSPC", "EACCES", "ENOMEM"),
}
"""Of EIO, ENOSPC, EACCES, EMFILE and ENOMEM those that the manual page of the call lists; EIO where
a disk fails.

"change" opens a file that is there for writing; "write" is also sendfile and copy_file_range.
"""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """One call of a run."""

    role: str
    """Of the process: supervisor, ingest, worker."""
    kind: str
    """Of the call."""
    path: str
    """Below the root; of two paths the new one."""
    time: int
    """Which call of that kind on that path in that role, from 1."""

    def __str__(self) -> str:
        return f"{self.role} {self.kind} {self.path} {self.time}"

    @classmethod
    def parse(cls, words: str) -> "Position":
        """What `str` has made."""
        role, kind, rest = words.split(" ", 2)
        path, _, time = rest.rpartition(" ")
        return cls(role, kind, path, int(time))


@dataclass(frozen=True, slots=True)
class Trial:
    """One position, and how it fails."""

    position: Position
    error: str
    """Its name, such as EIO; or SHORT."""
    for_good: bool

    def __str__(self) -> str:
        return (
            f"--position '{self.position}' --error "
            f"{self.error}{' --for-good' if self.for_good else ''}"
        )


class _Slot(ctypes.Structure):
    _fields_ = (("key", ctypes.c_uint64), ("count", ctypes.c_uint32), ("unused", ctypes.c_uint32))


class _Block(ctypes.Structure):
    """As in block.h."""

    _fields_ = (
        ("mode", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("for_good", ctypes.c_int32),
        ("time", ctypes.c_uint32),
        ("key", ctypes.c_uint64),
        ("where", ctypes.c_uint64),
        ("begun", ctypes.c_int32),
        ("failed", ctypes.c_uint32),
        ("root", ctypes.c_char * _PATH_BYTES),
        ("log", ctypes.c_char * _PATH_BYTES),
        ("slots", _Slot * _SLOTS),
    )


def build() -> Path:
    """The library; compiled where it is not there yet. Raises RuntimeError, in words, where there
    is no gcc.
    """
    if shutil.which("gcc") is None:
        raise RuntimeError("gcc is not there to build tests/iofault/shim.c")
    source = b"".join((_HERE / name).read_bytes() for name in ("shim.c", "block.h"))
    name = f"chunkvisor-iofault-{os.getuid()}-{hashlib.sha256(source).hexdigest()[:16]}.so"
    library = Path(tempfile.gettempdir()) / name
    if not library.exists() or library.stat().st_uid != os.getuid():
        with tempfile.TemporaryDirectory() as scratch:
            made = Path(scratch) / name
            subprocess.run(
                ["gcc", *_FLAGS, "-o", str(made), str(_HERE / "shim.c"), "-ldl"], check=True
            )
            shutil.move(made, library)
    return library


class Shim:
    """The block of the processes that are forked from this one, and what it says to them."""

    def __init__(self, folder: Path) -> None:
        """Its files are put into the folder; the library has been preloaded into this process."""
        folder.mkdir(parents=True, exist_ok=True)
        self._log, path = folder / "calls", folder / "block"
        path.write_bytes(bytes(ctypes.sizeof(_Block)))
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._block = _Block.from_buffer(self._memory)
        self._library = ctypes.CDLL(None)
        if self._library.iofault_open(str(path).encode()):
            raise RuntimeError(f"the shim cannot open {path}")
        os.environ["IOFAULT"] = str(path)

    def role(self, name: str) -> None:
        """What this process is from now on."""
        self._library.iofault_role(name.encode())

    def record(self, root: Path) -> None:
        """From now on, note all calls on paths below the root."""
        self._begin(root, _RECORD)

    def fail(self, root: Path, trial: Trial) -> None:
        """From now on, fail the call at the trial's position, `for_good` all of its kind in its
        role after it.
        """
        block, position = self._block, trial.position
        block.error = SHORT if trial.error == "SHORT" else getattr(errno, trial.error)
        block.where = _hashed(_hashed(14695981039346656037, position.role), position.kind)
        block.key = _hashed(block.where, position.path)
        block.for_good, block.time = trial.for_good, position.time
        self._begin(root, _FAIL)

    def off(self) -> int:
        """Let all calls go through; returns how many were failed."""
        self._block.mode = _OFF
        return int(self._block.failed)

    def calls(self) -> list[Position]:
        """What was noted, in its order."""
        found = []
        for line in self._log.read_text(errors="surrogateescape").splitlines():
            role, kind, path, time = line.split("\t")[:4]
            found.append(Position(role, kind, path, int(time)))
        return found

    def _begin(self, root: Path, mode: int) -> None:
        self._log.unlink(missing_ok=True)
        block = self._block
        block.mode = _OFF
        ctypes.memset(ctypes.addressof(block.slots), 0, ctypes.sizeof(block.slots))
        block.begun = block.failed = 0
        block.root, block.log = str(root).encode(), str(self._log).encode()
        block.mode = mode


def _hashed(value: int, text: str) -> int:
    """FNV-1a, with a mark behind each text."""
    for byte in (*text.encode(errors="surrogateescape"), 0xFF):
        value = (value ^ byte) * 1099511628211 & 0xFFFFFFFFFFFFFFFF
    return value
