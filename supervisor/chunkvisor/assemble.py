"""Joins the chunks of an output into its final file or its shards, in bounded memory.

It never shows a file before it is complete and verified, and never trusts a chunk file: each is read against the
digest in its name.
"""

import contextlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import xxhash

from chunkvisor.artifact import (
    BLOCK_BYTES,
    BadVectorsError,
    Vectors,
    chunk_key,
    read_exactly,
    read_shape,
)
from chunkvisor.finalwriter import FinalWriter
from chunkvisor.ingest.table import StagedTable
from chunkvisor.ledger import Ledger
from chunkvisor.stamp import Stamp

_AHEAD_BYTES = 16 << 20


class ChunkDamagedError(Exception):
    """A committed chunk is not what was committed; it has to be computed again."""

    def __init__(self, chunk: int, why: str) -> None:
        super().__init__(f"chunk {chunk}: {why}")
        self.chunk = chunk
        self.why = why


@dataclass(frozen=True, slots=True)
class Final:
    """What was published."""

    stamps: tuple[Stamp, ...]
    """Of its file, or of each of its shards."""
    dimension: int
    zero_rows: int
    """Rows that are zero throughout; only blank texts have such vectors."""
    bad_rows: list[tuple[int, int]]
    """(row, number of its text) of every row that has no vector and is NaN, in order."""


def assemble(ledger: Ledger, table: StagedTable, on_block: Callable[[], None], shards: int | None = None) -> Final:
    """Write, verify and publish the final file, or so many shards of it.

    Row i gets the vector of text `row_text[i]`. Texts are numbered in the order of their first row, so the chunks are
    read once, from the first to the last; a row whose text came before gets its vector from what is already
    written. Calls `on_block` now and then; it may raise to stop. Raises ChunkDamagedError, OSError.
    """
    assert ledger.facts is not None
    layout, dimension = ledger.layout, ledger.facts.dimension
    per_block = max(1, BLOCK_BYTES // (4 * dimension))
    with FinalWriter(layout, table.rows, dimension, shards) as writer, _ChunkReader(ledger) as chunks:
        seen, bad, nan_rows = 0, np.fromiter(ledger.bad, dtype=np.int64), list[tuple[int, int]]()
        room = np.empty((per_block, dimension), dtype="<f4")
        for first in range(0, table.rows, per_block):
            ids = table.row_text(first, min(first + per_block, table.rows))
            fresh = max(0, int(ids.max()) + 1 - seen)
            block = room[: len(ids)]
            if fresh == len(ids):
                chunks.fill(block)  # no text of the block came before, so its ids rise by one from row to row
            else:
                old = ids < seen
                if fresh:
                    new = np.empty((fresh, dimension), dtype="<f4")
                    chunks.fill(new)
                    # Clipped, so that the rows of old texts get some vector for now: one copy instead of two.
                    np.take(new, ids - seen, axis=0, out=block, mode="clip")
                if old.any():
                    block[old] = writer.read(table.first_rows_of(ids[old]))
            seen += fresh
            hits = np.flatnonzero(np.isin(ids, bad)) if len(bad) else np.empty(0, dtype=np.int64)
            nan_rows += [(first + int(row), int(ids[row])) for row in hits]
            if len(others := np.setxor1d(writer.write(block), hits)):
                chunk = int(ids[others[0]]) // ledger.plan.chunk_size
                raise ChunkDamagedError(chunk, "has other rows without a vector than its record says")
            on_block()
        assert chunks.at_end
        stamps = writer.publish()
    return Final(stamps, dimension, writer.zero_rows, nan_rows)


class _ChunkReader:
    """Hands out the vectors of all chunks in order, checking each file's digest when its end is reached; a context."""

    def __init__(self, ledger: Ledger) -> None:
        assert ledger.facts is not None
        self._ledger = ledger
        self._dimension = ledger.facts.dimension
        self._following = ledger.chunk_files()
        self._next = next(self._following, None)
        self._chunk = -1
        self._path = Path()
        self._file: io.FileIO | None = None
        self._sum = xxhash.xxh3_128()
        self._left = 0

    def __enter__(self) -> "_ChunkReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close what is open."""
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
        number, self._path = self._next or (None, self._path)
        if number != self._chunk:
            raise BadVectorsError("its file is gone")
        self._next = next(self._following, None)
        if self._next is not None:
            _advise(self._next[1], os.POSIX_FADV_WILLNEED)
        start, stop = self._ledger.plan.bounds(self._chunk)
        self._file = open(self._path, "rb", buffering=0)  # noqa: SIM115 - closed at its end, or by the context
        shape = read_shape(self._file)
        if (shape.rows, shape.dimension) != (stop - start, self._dimension):
            raise BadVectorsError(f"holds {shape.rows} x {shape.dimension}")
        self._file.seek(0)
        self._sum, self._left = xxhash.xxh3_128(self._file.read(shape.offset_bytes)), shape.rows

    def _end(self) -> None:
        assert self._file is not None
        self._file.close()
        self._file = None
        key = chunk_key(self._ledger.fingerprint, *self._ledger.plan.bounds(self._chunk), self._sum.hexdigest())
        if not self._path.name.endswith(f"-{key}.npy"):
            raise ChunkDamagedError(self._chunk, "its content does not have the digest in its name")
        _advise(self._path, os.POSIX_FADV_DONTNEED)


def _advise(path: Path, advice: int) -> None:
    """Have the kernel read the beginning of a file ahead; or forget it, to keep what is written and read once more."""
    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, _AHEAD_BYTES if advice == os.POSIX_FADV_WILLNEED else 0, advice)
