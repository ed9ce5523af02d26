"""Reads the vector of each text from where it is: chunk files, their parts, or rows of an earlier final file."""

import contextlib
import errno
import io
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from chunkvisor.decide.bisect import BadText
from chunkvisor.store.artifact import (
    BLOCK_BYTES,
    BadVectorsError,
    Vectors,
    bad_rows,
    chunk_key,
    inspect,
    npy_header,
    read_exactly,
    read_shape,
)
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.ledger import Ledger
from chunkvisor.store.pickrows import pick_rows
from chunkvisor.store.reuse import ENCODED, WHERE, PlaceKind, Reuse, ReuseFiles, Where

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


_AHEAD_TEXTS = 1 << 16
"""Of as many texts it is read at a time where their vectors are."""


class TakenDamagedError(Exception):
    """Vectors that were to be taken over are not what they were."""


class RowReader(Protocol):
    """Vectors by number."""

    dimension: int

    def read(self, rows: npt.NDArray[np.int64], /) -> Vectors:
        """Those of the rows, in that order. Raises OSError, ValueError."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What is taken over, and from whom."""

    reuse: Reuse
    readers: Sequence[RowReader]
    """Of each place of the plan."""
    without: Mapping[int, BadText] = field(default_factory=dict)
    """Texts of the output that have no vector there either."""


class TextVectors:
    """From the first text to the last, once; a context."""

    def __init__(self, ledger: Ledger, taken: Taken | None) -> None:
        self._chunks = ChunkReader(ledger)
        self._taken = taken
        self._next = 0
        self._where: Where = np.empty(0, dtype=np.void)
        self._where_first = 0

    def __enter__(self) -> "TextVectors":
        return self

    def __exit__(self, *error: object) -> None:
        """Close what is open."""
        self._chunks.__exit__(*error)

    @property
    def at_end(self) -> bool:
        """Whether all vectors were handed out."""
        return self._chunks.at_end and (self._taken is None or self._next == self._taken.reuse.texts)

    def fill(self, room: Vectors) -> None:
        """The next vectors, as many as there is room for.

        Raises ChunkDamagedError, TakenDamagedError, OSError.
        """
        if self._taken is None:
            self._chunks.fill(room)
            return
        where = self._expected(len(room))
        encoded = where["place"] == ENCODED
        if encoded.all():
            self._chunks.fill(room)
        else:
            if count := int(np.count_nonzero(encoded)):
                new = np.empty((count, room.shape[1]), dtype="<f4")
                self._chunks.fill(new)
                room[encoded] = new
            for number in range(len(self._taken.readers)):
                if (hits := where["place"] == number).any():
                    room[hits] = self._read(number, where["row"][hits])
        self._next += len(room)

    def _read(self, number: int, rows: npt.NDArray[np.int64]) -> Vectors:
        assert self._taken is not None
        try:
            return self._taken.readers[number].read(rows)
        except (ValueError, FileNotFoundError) as error:
            raise TakenDamagedError(f"{self._taken.reuse.places[number].words}: {error}") from error

    def _expected(self, count: int) -> Where:
        """Where the next texts' vectors are."""
        assert self._taken is not None
        if self._next + count > self._where_first + len(self._where):
            stop = min(self._taken.reuse.texts, self._next + max(count, _AHEAD_TEXTS))
            self._where, self._where_first = self._taken.reuse.where(self._next, stop), self._next
        first = self._next - self._where_first
        return self._where[first : first + count]


_TEXTS_AT_ONCE = 1 << 18


class CopiedRows:
    """The copied vectors of a plan."""

    def __init__(self, path: Path) -> None:
        """Raises OSError; BadVectorsError where it is no such file."""
        with open(path, "rb") as file:
            shape = read_shape(file)
        self.dimension, self._offset_bytes, self._path = shape.dimension, shape.offset_bytes, path

    def read(self, rows: npt.NDArray[np.int64]) -> Vectors:
        """See RowReader."""
        found: Vectors = pick_rows(self._path, "<f4", self._offset_bytes, self.dimension, rows)
        return found


def copy_rows(folder: Path, readers: Mapping[int, RowReader], on_block: Callable[[], None]) -> None:
    """Copy what the plan in `folder` has in these places into one file, in the order of the texts, and point there.

    Whoever writes the plan syncs them. Raises OSError; EIO where a place has other rows without a vector than its
    record says.
    """
    files, count = ReuseFiles(folder), 0
    for where in _blocks(files.where):
        count += int(np.isin(where["place"], list(readers)).sum())
    if not count:
        return
    dimension = next(iter(readers.values())).dimension
    per_block, done = max(1, BLOCK_BYTES // (4 * dimension)), 0
    pointed = files.where.with_name("where.tmp")
    with open(files.copied, "wb") as copied, open(pointed, "wb") as out:
        copied.write(npy_header(count, dimension))
        for where in _blocks(files.where):
            hits = np.flatnonzero(np.isin(where["place"], list(readers)))
            for first in range(0, len(hits), per_block):
                some = hits[first : first + per_block]
                block = np.empty((len(some), dimension), dtype="<f4")
                for place in np.unique(where["place"][some]).tolist():
                    own = where["place"][some] == place
                    block[own] = readers[place].read(where["row"][some][own])
                if len(bad_rows(block)[0]):
                    raise OSError(errno.EIO, "it has other rows without a vector than its record says")
                copied.write(block.data)
                on_block()
            where["row"][hits] = np.arange(done, done + len(hits))
            done += len(hits)
            out.write(where.tobytes())
    pointed.replace(files.where)


def copied_rows(folder: Path) -> CopiedRows | None:
    """What a plan has copied; None where it is not what it should be, or nothing."""
    try:
        return CopiedRows(ReuseFiles(folder).copied)
    except (BadVectorsError, OSError):
        return None


def _blocks(path: Path) -> Iterator[Where]:
    with open(path, "rb") as file:
        while data := file.read(_TEXTS_AT_ONCE * WHERE.itemsize):
            yield np.frombuffer(data, dtype=WHERE).copy()


Rows = npt.NDArray[np.int64]


class CommittedRows:
    """Vectors by a number of our own: the text's among those encoded, or, after these, its row in the copied file."""

    def __init__(self, layout: OutputLayout, ledger: Ledger, reuse: Reuse | None) -> None:
        """`ledger` is loaded."""
        assert ledger.facts is not None
        self.dimension = ledger.facts.dimension
        self._plan = ledger.plan
        self._bad = np.fromiter(ledger.bad, dtype=np.int64)
        self._reuse = reuse
        self._copied = ReuseFiles(layout.reuse).copied
        self._files: dict[int, Path] = {}
        for chunk, path in ledger.chunk_files():
            if _is_whole(path, ledger, chunk):
                self._files[chunk] = path

    @property
    def empty(self) -> bool:
        """Whether there is nothing."""
        return not self._files and not self._copied.exists()

    def numbers_of(self, texts: Rows) -> Rows:
        """Our numbers of the texts of that state; -1 for those that have no vector here. Raises OSError."""
        if self._reuse is None:
            return np.where(self._committed(texts), texts, -1)
        where = self._reuse.where_of(texts)
        place, row = where["place"], where["row"]
        copies = [number for number, each in enumerate(self._reuse.places) if each.kind is PlaceKind.COPY]
        there = np.where((place == ENCODED) & self._committed(row), row, -1)
        return np.where(np.isin(place, copies), self._plan.distinct + row, there)

    def read(self, numbers: Rows) -> Vectors:
        """Those vectors, in that order. Raises OSError, ValueError."""
        found = np.empty((len(numbers), self.dimension), dtype="<f4")
        chunks = np.where(numbers < self._plan.distinct, numbers // self._plan.chunk_size, -1)
        for chunk in np.unique(chunks).tolist():
            hits = chunks == chunk
            if chunk < 0:
                path, first, rows = self._copied, self._plan.distinct, _rows_of(self._copied, self.dimension)
            else:
                path, first, rows = self._files[chunk], self._plan.bounds(chunk)[0], self._plan.size(chunk)
            header_bytes = len(npy_header(rows, self.dimension))
            found[hits] = pick_rows(path, "<f4", header_bytes, self.dimension, numbers[hits] - first)
        return found

    def _committed(self, numbers: Rows) -> npt.NDArray[np.bool_]:
        own = np.isin(numbers // self._plan.chunk_size, np.fromiter(self._files, dtype=np.int64))
        return own & ~np.isin(numbers, self._bad)


def _is_whole(path: Path, ledger: Ledger, chunk: int) -> bool:
    try:
        found = inspect(path)
    except (BadVectorsError, OSError):
        return False
    key = chunk_key(ledger.fingerprint, *ledger.plan.bounds(chunk), found.digest)
    return path.name.endswith(f"-{key}.npy")


def _rows_of(path: Path, dimension: int) -> int:
    return (path.stat().st_size - len(npy_header(1, dimension))) // (4 * dimension)
