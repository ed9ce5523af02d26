"""The library that fails calls (shim.c): builds it with gcc, and speaks to it through a block of shared memory."""

import ctypes
import errno
import hashlib
import mmap
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_SOURCES = ("shim.c", "block.h")
_FLAGS = ("-shared", "-fPIC", "-O1", "-std=gnu17", "-Wall", "-Wextra", "-Werror", "-D_LARGEFILE64_SOURCE")
_PATH_BYTES, _SLOTS = 4096, 8192
_OFF, _RECORD, _FAIL = 0, 1, 2

SHORT = -1
"""In the place of an error: half of a write is done, and it says so, as on a disk that has just become full."""

_NAMES = {SHORT: "SHORT"}

CAN_FAIL_WITH = {
    "open": (errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOMEM),
    "change": (errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOMEM),
    "create": (errno.EIO, errno.ENOSPC, errno.EACCES, errno.EMFILE, errno.ENOMEM),
    "write": (errno.EIO, errno.ENOSPC, SHORT),
    "sync": (errno.EIO, errno.ENOSPC),
    "truncate": (errno.EIO,),
    "allocate": (errno.EIO, errno.ENOSPC),
    "rename": (errno.EIO, errno.ENOSPC, errno.EACCES, errno.ENOMEM),
    "link": (errno.EIO, errno.ENOSPC, errno.EACCES, errno.ENOMEM),
    "remove": (errno.EIO, errno.EACCES, errno.ENOMEM),
    "mkdir": (errno.EIO, errno.ENOSPC, errno.EACCES, errno.ENOMEM),
}
"""Of EIO, ENOSPC, EACCES, EMFILE and ENOMEM those that the manual page of the call lists; EIO where a disk fails.

"change" opens a file that is there for writing; "write" is also sendfile and copy_file_range.
"""


def name_of(error: int) -> str:
    """As a person reads it."""
    return _NAMES.get(error) or errno.errorcode[error]


def number_of(name: str) -> int:
    """The reverse. Raises AttributeError for a name that there is not."""
    return SHORT if name == "SHORT" else int(getattr(errno, name))


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


@dataclass(frozen=True, slots=True, order=True)
class Trial:
    """One position, and how it fails."""

    position: Position
    error: int
    for_good: bool

    @property
    def error_name(self) -> str:
        """As a person reads it."""
        return name_of(self.error)

    def __str__(self) -> str:
        return f"{self.position} {self.error_name} {'for good' if self.for_good else 'once'}"


@dataclass(frozen=True, slots=True)
class Seen:
    """A call of an undisturbed run."""

    position: Position
    call: str
    """The function of libc."""
    place: str
    """In the code: the lines of ours that it came from, see `_lines`."""


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
    """The library; compiled where it is not there yet. Raises RuntimeError, in words, where there is no gcc."""
    source = b"\0".join((_HERE / name).read_bytes() for name in _SOURCES) + " ".join(_FLAGS).encode()
    name = f"chunkvisor-iofault-{os.getuid()}-{hashlib.sha256(source).hexdigest()[:16]}.so"
    library = Path(tempfile.gettempdir()) / name
    if library.exists() and library.stat().st_uid == os.getuid():
        return library
    if shutil.which("gcc") is None:
        raise RuntimeError("gcc is not there to build tests/iofault/shim.c")
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / name
        command = ["gcc", *_FLAGS, "-o", str(made), str(_HERE / "shim.c"), "-ldl"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise RuntimeError(f"tests/iofault/shim.c does not compile:\n{ended.stderr}")
        shutil.move(made, library)
    return library


class Shim:
    """The block of the processes that are forked from this one, and what it says to them."""

    def __init__(self, folder: Path) -> None:
        """Its files are put into the folder; the library has been preloaded into this process."""
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "calls"
        path = folder / "block"
        path.write_bytes(bytes(ctypes.sizeof(_Block)))
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._block = _Block.from_buffer(self._memory)
        self._library = ctypes.CDLL(None)
        self._library.iofault_place(_tell_lines)
        if self._library.iofault_open(str(path).encode()):
            raise RuntimeError(f"the shim cannot open {path}")
        os.environ["IOFAULT"] = str(path)

    def role(self, name: str) -> None:
        """What this process is from now on."""
        self._library.iofault_role(name.encode())

    def record(self, root: Path) -> None:
        """From now on, note all calls on paths below the root."""
        self._begin(root, _RECORD)

    def fail(self, root: Path, position: Position, error: int, *, for_good: bool) -> None:
        """From now on, fail the call at this position, and `for_good` all of its kind in its role after it."""
        where = _hashed(_hashed(_FNV_BASIS, position.role), position.kind)
        key = _hashed(where, position.path)
        block = self._block
        block.error, block.for_good, block.time, block.key, block.where = error, for_good, position.time, key, where
        self._begin(root, _FAIL)

    def off(self) -> None:
        """Let all calls go through."""
        self._block.mode = _OFF

    @property
    def failed(self) -> int:
        """How many calls were failed."""
        return int(self._block.failed)

    def calls(self) -> list[Seen]:
        """What was noted, in its order."""
        found = []
        for line in self._log.read_text(errors="surrogateescape").splitlines() if self._log.exists() else ():
            role, kind, path, time, call, _, place = line.split("\t")
            found.append(Seen(Position(role, kind, path, int(time)), call, place))
        return found

    def _begin(self, root: Path, mode: int) -> None:
        self._log.unlink(missing_ok=True)
        block = self._block
        block.mode = _OFF
        ctypes.memset(ctypes.addressof(block.slots), 0, ctypes.sizeof(block.slots))
        block.begun = block.failed = 0
        block.root, block.log = str(root).encode(), str(self._log).encode()
        block.mode = mode


def _lines() -> str:
    """Of the calling thread: the lines of ours, the innermost first; before them, that of the library that calls."""
    found: list[str] = []
    frame = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        ours = re.search(r"/(chunkvisor(?:_worker)?/.*)", path)
        if ours or not found:
            found.append(f"{ours[1] if ours else Path(path).name}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]  # None ends it
    return "|".join(found)


def _put_lines(room: int, size: int) -> None:
    words = _lines().encode()[: size - 1] + b"\0"
    ctypes.memmove(room, words, len(words))


_tell_lines = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)(_put_lines)


_FNV_BASIS = 14695981039346656037


def _hashed(value: int, text: str) -> int:
    """FNV-1a, with a mark behind each text."""
    for byte in (*text.encode(errors="surrogateescape"), 0xFF):
        value = (value ^ byte) * 1099511628211 & 0xFFFFFFFFFFFFFFFF
    return value
