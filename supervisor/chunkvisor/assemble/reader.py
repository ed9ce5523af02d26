"""Reads vectors from where they are: committed chunks, copied rows of a plan, rows of a finished output."""

import contextlib
import errno
import hashlib
import io
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from chunkvisor.assemble.badrows import every_row
from chunkvisor.assemble.forms import FORMATS, FinalPart, form_of
from chunkvisor.assemble.manifest import recorded_parts
from chunkvisor.assemble.numbers import Numbers
from chunkvisor.config.choices import FinalDtype, FinalFormat
from chunkvisor.store.artifact import (
    BLOCK_BYTES,
    BadVectorsError,
    Vectors,
    bad_rows,
    chunk_key,
    expect_rows,
    npy_header,
    pick_rows,
    read_exactly,
    read_shape,
)
from chunkvisor.store.identity import BadText
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.ledger import ENCODED, WHERE, Ledger, PlaceKind, Reuse, ReuseFiles, Where, chunk_files

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
        self._listed = chunk_files(ledger.layout)
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
            part = self._read_chunk(room)
            self._sum.update(part.data)
            room = room[len(part) :]
            if not self._left:
                self._end()

    def _read_chunk(self, room: Vectors) -> Vectors:
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
    readers: Mapping[int, RowReader]
    """By number of the place in the plan."""
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
            for number in self._taken.readers:
                if (hits := where["place"] == number).any():
                    room[hits] = self._read_taken(number, where["row"][hits])
        self._next += len(room)

    def _read_taken(self, number: int, rows: npt.NDArray[np.int64]) -> Vectors:
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
    for where in _where_blocks(files.where):
        count += int(np.isin(where["place"], list(readers)).sum())
    if not count:
        return
    dimension = next(iter(readers.values())).dimension
    per_block, done = max(1, BLOCK_BYTES // (4 * dimension)), 0
    pointed = files.where.with_name("where.tmp")
    with open(files.copied, "wb") as copied, open(pointed, "wb") as out:
        copied.write(npy_header(count, dimension))
        for where in _where_blocks(files.where):
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


def _where_blocks(path: Path) -> Iterator[Where]:
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
        for chunk, path in chunk_files(layout):
            if ledger.is_whole(chunk, path):
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
                path, first, rows = self._copied, self._plan.distinct, _rows_in(self._copied, self.dimension)
            else:
                path, first, rows = self._files[chunk], self._plan.bounds(chunk)[0], self._plan.size(chunk)
            header_bytes = len(npy_header(rows, self.dimension))
            found[hits] = pick_rows(path, "<f4", header_bytes, self.dimension, numbers[hits] - first)
        return found

    def _committed(self, numbers: Rows) -> npt.NDArray[np.bool_]:
        own = np.isin(numbers // self._plan.chunk_size, np.fromiter(self._files, dtype=np.int64))
        return own & ~np.isin(numbers, self._bad)


def _rows_in(path: Path, dimension: int) -> int:
    return (path.stat().st_size - len(npy_header(1, dimension))) // (4 * dimension)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Where tables are unpacked."""

    folder: Path
    """Of our own workdir: it takes the disk space of the vectors for as long as they are read."""
    on_block: Callable[[], None] = lambda: None
    """Called now and then; it may raise to stop."""


class Unpacked:
    """The parts of one final that were asked for."""

    def __init__(self, dimension: int, scratch: Scratch) -> None:
        self._numbers = Numbers(FinalDtype.FLOAT32, dimension)
        self._scratch = scratch
        self._descriptors: dict[Path, int] = {}

    def path_of(self, part: FinalPart) -> Path:
        """The .npy of a part, float32; it is there as long as this object is. Raises OSError, BadVectorsError."""
        if part.path not in self._descriptors:
            with TemporaryFile(dir=self._scratch.folder) as file:
                file.write(npy_header(part.rows, self._numbers.width))
                for block, _ in FORMATS[FinalFormat.PARQUET].read(part.path, part.rows, self._numbers, None):
                    file.write(np.ascontiguousarray(block).data)
                    self._scratch.on_block()
                file.flush()
                self._descriptors[part.path] = kept = os.dup(file.fileno())
            weakref.finalize(self, os.close, kept)
        return Path(f"/proc/self/fd/{self._descriptors[part.path]}")


class FinalRows:
    """The rows of the final that a manifest describes; it is float32."""

    def __init__(self, layout: OutputLayout, manifest: dict[str, Any], scratch: Scratch) -> None:
        """Raises DamagedError where it cannot be told which rows have no vector."""
        self.dimension = int(manifest["dimension"])
        self.without = np.array([each["row"] for each in every_row(layout, manifest)], dtype=np.int64)
        """Rows without a vector."""
        self._parts = recorded_parts(layout, manifest)
        self._starts = np.array([part.start for part, _ in self._parts])
        in_tables = form_of(manifest).format is FinalFormat.PARQUET
        self._unpacked = Unpacked(self.dimension, scratch) if in_tables else None

    def problem(self, on_block: Callable[[], None]) -> str | None:
        """What is wrong with the files, in words; None where they have the digests of the manifest.

        Reads them. Calls `on_block` now and then; it may raise to stop.
        """
        for part, recorded in self._parts:
            try:
                with open(part.path, "rb") as file:
                    if self._unpacked is None:
                        shape = read_shape(file)
                        if (shape.rows, shape.dimension) != (part.rows, self.dimension):
                            return f"{part.path} holds {shape.rows} x {shape.dimension}"
                        file.seek(0)
                    digest = hashlib.sha256()
                    while block := file.read(BLOCK_BYTES):
                        digest.update(block)
                        on_block()
            except (BadVectorsError, OSError) as error:
                return f"{part.path}: {error}"
            if digest.hexdigest() != recorded:
                return f"{part.path} has another digest than its manifest says"
        return None

    def read(self, rows: Rows) -> Vectors:
        """Rows by number, in that order; shape (len(rows), dimension). Raises OSError; ValueError for no such row."""
        if len(self._parts) == 1:
            return self._read_part(self._parts[0][0], rows)
        found = np.empty((len(rows), self.dimension), dtype="<f4")
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        for owner in np.unique(owners):
            part, hits = self._parts[owner][0], owners == owner
            found[hits] = self._read_part(part, rows[hits] - part.start)
        return found

    def _read_part(self, part: FinalPart, rows: Rows) -> Vectors:
        """By their numbers in the part."""
        try:
            path = part.path if self._unpacked is None else self._unpacked.path_of(part)
        except BadVectorsError as error:
            raise ValueError(f"{part.path} {error}") from error
        offset_bytes = len(npy_header(part.rows, self.dimension))
        expect_rows(path, offset_bytes, 4 * self.dimension, rows)
        found: Vectors = pick_rows(path, "<f4", offset_bytes, self.dimension, rows)
        return found
