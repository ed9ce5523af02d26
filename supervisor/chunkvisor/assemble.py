"""Joins the chunks of an output into its final file, in bounded memory.

It never shows a file before it is complete and verified, and never trusts a chunk file: each is read against the
digest in its name.
"""

import errno
import hashlib
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chunkvisor.artifact import (
    BLOCK_BYTES,
    BadVectorsError,
    Vectors,
    bad_rows,
    blocks,
    chunk_key,
    inspect,
    npy_header,
    read_shape,
)
from chunkvisor.ingest.table import StagedTable
from chunkvisor.ledger import Ledger
from chunkvisor.stamp import Stamp, stamp_as
from chunkvisor_worker.contract.files import set_aside, sync_folder


class ChunkDamagedError(Exception):
    """A committed chunk is not what was committed; it has to be computed again."""

    def __init__(self, chunk: int, why: str) -> None:
        super().__init__(f"chunk {chunk}: {why}")
        self.chunk = chunk
        self.why = why


@dataclass(frozen=True, slots=True)
class Final:
    """The published file."""

    stamp: Stamp
    dimension: int
    zero_rows: int
    """Rows that are zero throughout; only blank texts have such vectors."""
    bad_rows: list[tuple[int, int]]
    """(row, number of its text) of every row that has no vector and is NaN, in order."""


def assemble(ledger: Ledger, table: StagedTable, on_block: Callable[[], None]) -> Final:
    """Write, verify and publish the final file.

    Row i gets the vector of text `row_text[i]`. Texts are numbered in the order of their first row, so the chunks are
    read once, from the first to the last; a row whose text came before gets its vector from the part of the file
    that is already written. Calls `on_block` now and then; it may raise to stop. Raises ChunkDamagedError, OSError.
    """
    assert ledger.facts is not None
    layout, dimension = ledger.layout, ledger.facts.dimension
    header = npy_header(table.rows, dimension)
    digest = hashlib.sha256(header)
    per_block = max(1, BLOCK_BYTES // (4 * dimension))
    source = _ChunkReader(ledger)
    set_aside(layout.partial)
    with open(layout.partial, "w+b", buffering=0, opener=_private) as file:
        os.posix_fallocate(file.fileno(), 0, len(header) + 4 * table.rows * dimension)
        _write(file, header)
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
                block[~old] = new[ids[~old] - seen]
                if old.any():
                    block[old] = _written(layout.partial, len(header), dimension, _first_rows(table, ids[old]))
            seen += fresh
            if len(bad):
                hits = np.flatnonzero(np.isin(ids, bad))
                nan_rows += [(first + int(row), int(ids[row])) for row in hits]
            data = np.ascontiguousarray(block).data.cast("B")
            digest.update(data)
            _write(file, data)
            on_block()
        source.finish()
        os.fsync(file.fileno())
    try:
        found = inspect(layout.partial, on_block=on_block)
    except BadVectorsError:
        found = None
    if found is None or found.digest != digest.hexdigest() or found.not_finite_count != len(nan_rows):
        raise OSError(errno.EIO, "it does not hold what was written to it", str(layout.partial))
    set_aside(layout.final, files_too=True)  # it is not ours: ours appears here
    layout.partial.replace(layout.final)
    sync_folder(layout.workdir)
    return Final(stamp_as(layout.final, found.digest), dimension, found.zero_count, nan_rows)


class _ChunkReader:
    """Hands out the vectors of all chunks in order, checking each file's digest when its end is reached."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
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
        for chunk, path in ledger.chunk_files():
            if chunk >= ledger.plan.count:
                break  # no chunk of ours
            if chunk != expected:
                raise ChunkDamagedError(expected, "its file is gone")
            expected += 1
            try:
                yield from _verified(ledger, chunk, path)
            except (BadVectorsError, FileNotFoundError) as error:
                raise ChunkDamagedError(chunk, str(error)) from None
        if expected != ledger.plan.count:
            raise ChunkDamagedError(expected, "its file is gone")


def _verified(ledger: Ledger, chunk: int, path: Path) -> Iterator[Vectors]:
    start, stop = ledger.plan.bounds(chunk)
    assert ledger.facts is not None
    with open(path, "rb", buffering=0) as file:
        shape = read_shape(file)
        if (shape.rows, shape.dimension) != (stop - start, ledger.facts.dimension):
            raise BadVectorsError(f"holds {shape.rows} x {shape.dimension}")
        file.seek(0)
        digest = hashlib.sha256(file.read(shape.offset_bytes))
        first = start
        for block in blocks(file, shape):
            digest.update(block.data.cast("B"))
            without = {first + int(row) for row in bad_rows(block)[0]}
            if without != {text for text in ledger.bad if first <= text < first + len(block)}:
                raise BadVectorsError("has other rows without a vector than its record says")
            first += len(block)
            yield block
    if not path.name.endswith(f"-{chunk_key(ledger.fingerprint, start, stop, digest.hexdigest())}.npy"):
        raise BadVectorsError("its content does not have the digest in its name")


def _first_rows(table: StagedTable, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    # Mapped for a moment only, and read-only: the pages that were touched are given back at once.
    first_row = np.memmap(table.folder / "first_row.bin", dtype="<i8", mode="r")
    return np.asarray(first_row[ids], dtype=np.int64)


def _written(path: Path, offset: int, dimension: int, rows: npt.NDArray[np.int64]) -> Vectors:
    # By its path: numpy.memmap would move the position of an open file to its end.
    written = np.memmap(path, dtype="<f4", mode="r", offset=offset, shape=(int(rows.max()) + 1, dimension))
    return np.asarray(written[rows])


def _write(file: io.FileIO, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view.nbytes:
        view = view[file.write(view) :]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
