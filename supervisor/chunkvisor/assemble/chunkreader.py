"""Reads the vectors of all committed chunks of an output, in order, each file against the digest in its name."""

import contextlib
import io
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from chunkvisor.store.artifact import BadVectorsError, Vectors, chunk_key, read_exactly, read_shape
from chunkvisor.store.ledger import Ledger

_AHEAD_BYTES = 256 << 20
"""The kernel is asked for this much beforehand: a disk is fast only if it is asked for much at a time."""


class ChunkDamagedError(Exception):
    """A committed chunk is not what was committed; it has to be computed again."""

    def __init__(self, chunk: int, why: str) -> None:
        super().__init__(f"chunk {chunk}: {why}")
        self.chunk = chunk
        self.why = why


class ChunkReader:
    """From the first chunk to the last, once; a context."""

    def __init__(self, ledger: Ledger) -> None:
        assert ledger.facts is not None
        self._ledger = ledger
        self._dimension = ledger.facts.dimension
        self._listed = ledger.chunk_files()
        self._expected: deque[tuple[int, Path]] = deque()
        self._files_ahead = max(1, _AHEAD_BYTES // (4 * self._dimension * ledger.plan.chunk_size))
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
        self._chunk = -1
        self._path = Path()
        self._file: io.FileIO | None = None
        self._sum = xxhash.xxh3_128()
        self._left = 0

    def __enter__(self) -> "ChunkReader":
        return self

    def __exit__(self, *error: object) -> None:
        """Close what is open."""
        self._ahead.shutdown(cancel_futures=True)
        if self._file is not None:
            self._file.close()

    @property
    def at_end(self) -> bool:
        """Whether all vectors were handed out."""
        return self._file is None and self._chunk == self._ledger.plan.count - 1

    def fill(self, room: Vectors) -> None:
        """The next vectors, as many as there is room for. Raises ChunkDamagedError, OSError."""
        while len(room):
            part = self._read(room)
            self._sum.update(part.data)
            room = room[len(part) :]
            if not self._left:
                self._end()

    def _read(self, room: Vectors) -> Vectors:
        """The part of the room that was filled from one chunk."""
        try:
            if self._file is None:
                self._begin()
            assert self._file is not None
            part = room[: self._left]
            read_exactly(self._file, part)
        except (BadVectorsError, FileNotFoundError) as error:
            raise ChunkDamagedError(self._chunk, str(error)) from None
        self._left -= len(part)
        return part

    def _begin(self) -> None:
        self._chunk += 1
        self._look_ahead()
        number, self._path = self._expected.popleft() if self._expected else (None, self._path)
        if number != self._chunk:
            raise BadVectorsError("its file is gone")
        start, stop = self._ledger.plan.bounds(self._chunk)
        self._file = open(self._path, "rb", buffering=0)  # noqa: SIM115 - closed at its end, or by the context
        shape = read_shape(self._file)
        if (shape.rows, shape.dimension) != (stop - start, self._dimension):
            raise BadVectorsError(f"holds {shape.rows} x {shape.dimension}")
        self._file.seek(0)
        self._sum, self._left = xxhash.xxh3_128(self._file.read(shape.offset_bytes)), shape.rows

    def _look_ahead(self) -> None:
        while len(self._expected) <= self._files_ahead and (listed := next(self._listed, None)) is not None:
            self._expected.append(listed)
            self._ahead.submit(_expect, listed[1])

    def _end(self) -> None:
        assert self._file is not None
        self._file.close()
        self._file = None
        key = chunk_key(self._ledger.fingerprint, *self._ledger.plan.bounds(self._chunk), self._sum.hexdigest())
        if not self._path.name.endswith(f"-{key}.npy"):
            raise ChunkDamagedError(self._chunk, "its content does not have the digest in its name")


def _expect(path: Path) -> None:
    """Have the kernel read the file, unless it is in memory, where even asking takes a tenth of the reading."""
    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
        middle = os.fstat(file.fileno()).st_size // 2
        try:
            os.preadv(file.fileno(), [bytearray(1)], middle, os.RWF_NOWAIT)
        except OSError:  # it would have to wait for the disk, or cannot tell
            os.posix_fadvise(file.fileno(), 0, _AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
