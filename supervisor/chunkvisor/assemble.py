"""Joins the chunks of an output into its final file or its shards, in bounded memory.

It never shows a file before it is complete and verified, and never trusts a chunk file: each is read against the
digest in its name.
"""

import contextlib
import os
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chunkvisor.artifact import (
    BLOCK_BYTES,
    BadVectorsError,
    Vectors,
    bad_rows,
    blocks,
    chunk_key,
    read_shape,
)
from chunkvisor.digests import Digest
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
    with FinalWriter(layout, table.rows, dimension, shards) as writer:
        source = _ChunkReader(ledger, writer.pool)
        seen = 0
        bad, nan_rows = np.fromiter(ledger.bad, dtype=np.int64), list[tuple[int, int]]()
        for first in range(0, table.rows, per_block):
            ids = table.row_text(first, min(first + per_block, table.rows))
            fresh = max(0, int(ids.max()) + 1 - seen)
            new = source.take(fresh)
            if fresh == len(ids):
                block = new  # no text of the block came before, so its ids rise by one from row to row
            else:
                block = np.empty((len(ids), dimension), dtype="<f4")
                old = ids < seen
                if fresh:
                    # Clipped, so that the rows of old texts get some vector for now: one copy instead of two.
                    np.take(new, ids - seen, axis=0, out=block, mode="clip")
                if old.any():
                    block[old] = writer.read(table.first_rows_of(ids[old]))
            seen += fresh
            if len(bad):
                hits = np.flatnonzero(np.isin(ids, bad))
                nan_rows += [(first + int(row), int(ids[row])) for row in hits]
            writer.write(block)
            on_block()
        source.finish()
        zero_rows = writer.verify(len(nan_rows), on_block)
        stamps = writer.publish()
    return Final(stamps, dimension, zero_rows, nan_rows)


class _ChunkReader:
    """Hands out the vectors of all chunks in order, checking each file's digest when its end is reached."""

    def __init__(self, ledger: Ledger, pool: ThreadPoolExecutor) -> None:
        self._ledger = ledger
        self._pool = pool
        self._blocks = self._read()
        self._rest: Vectors | None = None

    def take(self, count: int) -> Vectors:
        """The next `count` vectors."""
        parts = []
        while count:
            if self._rest is None or not len(self._rest):
                self._rest = next(self._blocks)
            part = self._rest[:count]
            self._rest = self._rest[len(part) :]
            parts.append(part)
            count -= len(part)
        if len(parts) == 1:
            return parts[0]
        assert self._ledger.facts is not None
        return np.concatenate(parts) if parts else np.empty((0, self._ledger.facts.dimension), dtype="<f4")

    def finish(self) -> None:
        """Check the last file's digest, which is due only after its last block."""
        for _ in self._blocks:
            raise BadVectorsError("more vectors than texts")

    def _read(self) -> Iterator[Vectors]:
        ledger, expected = self._ledger, 0
        files = ledger.chunk_files()
        following = next(files, None)
        # The last block of a chunk is still being hashed while the next chunk is read.
        unchecked: _Unchecked | None = None
        while following is not None:
            (chunk, path), following = following, next(files, None)
            if chunk >= ledger.plan.count:
                break  # no chunk of ours
            if chunk != expected:
                raise ChunkDamagedError(expected, "its file is gone")
            expected += 1
            if following is not None:
                _advise(following[1], os.POSIX_FADV_WILLNEED)
            before = unchecked
            try:
                unchecked = yield from _blocks(ledger, chunk, path, self._pool)
            except (BadVectorsError, FileNotFoundError) as error:
                raise ChunkDamagedError(chunk, str(error)) from None
            if before is not None:
                before.check(ledger)
            _advise(path, os.POSIX_FADV_DONTNEED)
        if unchecked is not None:
            unchecked.check(ledger)
        if expected != ledger.plan.count:
            raise ChunkDamagedError(expected, "its file is gone")


@dataclass(frozen=True, slots=True)
class _Unchecked:
    """A chunk that was read, and its digest under way."""

    chunk: int
    path: Path
    digest: Digest

    def check(self, ledger: Ledger) -> None:
        """Raises ChunkDamagedError where the content is not that of the name."""
        key = chunk_key(ledger.fingerprint, *ledger.plan.bounds(self.chunk), self.digest.hexdigest())
        if not self.path.name.endswith(f"-{key}.npy"):
            raise ChunkDamagedError(self.chunk, "its content does not have the digest in its name")


def _advise(path: Path, advice: int) -> None:
    """Have the kernel read the beginning of a file ahead; or forget it, to keep what is written and read once more."""
    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, _AHEAD_BYTES if advice == os.POSIX_FADV_WILLNEED else 0, advice)


def _blocks(ledger: Ledger, chunk: int, path: Path, pool: ThreadPoolExecutor) -> Generator[Vectors, None, _Unchecked]:
    start, stop = ledger.plan.bounds(chunk)
    assert ledger.facts is not None
    with open(path, "rb", buffering=0) as file:
        shape = read_shape(file)
        if (shape.rows, shape.dimension) != (stop - start, ledger.facts.dimension):
            raise BadVectorsError(f"holds {shape.rows} x {shape.dimension}")
        file.seek(0)
        digest = Digest(pool, file.read(shape.offset_bytes))
        first = start
        for block in blocks(file, shape):
            digest.update(block.data.cast("B"))
            without = {first + int(row) for row in bad_rows(block)[0]}
            if without != {text for text in ledger.bad if first <= text < first + len(block)}:
                raise BadVectorsError("has other rows without a vector than its record says")
            first += len(block)
            yield block
    return _Unchecked(chunk, path, digest)
