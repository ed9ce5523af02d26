"""The spool: texts of all rows as they come, with a hash of each, on disk; one batch of them is in memory."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from chunkvisor.ingest.tablefiles import TableFiles
from chunkvisor.store.entry import Entry

_BATCH_ROWS = 50_000
_BATCH_BYTES = 32 << 20
HASH_BYTES = 16
"""Of BLAKE2b. Two of n different texts share a hash with probability n**2 / 2**129: 4e-19 for ten billion texts."""

BINS = 256
"""A text's bin is the first byte of a half of its hash, so that equal texts are in the same."""


@dataclass(frozen=True, slots=True)
class SpoolFiles:
    """Paths in the scratch folder, named once. Within a batch, all but the lengths are in the order of the bins."""

    folder: Path

    lengths = Entry("folder", "lengths.bin")
    """uint32: size of each row's text in bytes."""
    hashes = Entry("folder", "hashes.bin")
    """Two uint64 a row: its text's hash."""
    places = Entry("folder", "places.bin")
    """uint32: which row of its batch it is."""
    firsts = Entry("folder", "firsts.bin")
    """int64: the first row of the same text; written by `dedupe`."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that were written together."""

    first_row: int
    rows: int
    size_bytes: int
    """Of their texts."""
    bounds: npt.NDArray[np.uint32]
    """Where each bin begins in the batch, and the end; shape (BINS + 1,)."""


class Spool:
    """Appends texts to the table's text file, and what is to be known of them to the scratch files."""

    def __init__(self, files: TableFiles, scratch: SpoolFiles) -> None:
        self.rows = 0
        self.empty = 0
        """Rows whose text is empty, of those that are written."""
        self.batches: list[Batch] = []
        paths = (files.texts, scratch.lengths, scratch.hashes, scratch.places)
        self._files = [open(path, "wb", buffering=0) for path in paths]  # noqa: SIM115 - closed by __exit__
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self._flush()
        for file in self._files:
            file.close()

    @property
    def rows_added(self) -> int:
        """Rows so far, whether or not they are written."""
        return self.rows + len(self._pending)

    def add(self, text: bytes) -> None:
        """Append the text of the next row, in UTF-8."""
        self._pending.append(text)
        self._pending_bytes += len(text)
        if len(self._pending) == _BATCH_ROWS or self._pending_bytes >= _BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        rows, hashes = len(self._pending), hashes_of(self._pending)
        bins = (hashes[:, 1] >> np.uint64(56)).astype(np.uint8)
        places = np.argsort(bins, kind="stable").astype("<u4")
        lengths = np.fromiter(map(len, self._pending), dtype="<u4", count=rows)
        parts = (b"".join(self._pending), lengths.tobytes(), hashes[places].tobytes(), places.tobytes())
        for file, data in zip(self._files, parts, strict=True):
            write_all(file.fileno(), data)
        bounds = np.concatenate(([0], np.cumsum(np.bincount(bins, minlength=BINS)))).astype(np.uint32)
        self.batches.append(Batch(self.rows, rows, self._pending_bytes, bounds))
        self.rows += rows
        self.empty += rows - int(np.count_nonzero(lengths))
        self._pending, self._pending_bytes = [], 0


def hashes_of(texts: Sequence[bytes]) -> npt.NDArray[np.uint64]:
    """The hash of each text in UTF-8, shape (texts, 2)."""
    blake2b = hashlib.blake2b
    digests = b"".join([blake2b(text, digest_size=HASH_BYTES).digest() for text in texts])
    return np.frombuffer(digests, dtype="<u8").reshape(len(texts), 2)


def bins_at_once(batches: Sequence[Batch], most_rows: int) -> list[tuple[int, int]]:
    """(first, one past the last) of neighbouring bins that together have at most `most_rows`, or are one bin."""
    sizes = np.sum([np.diff(batch.bounds.astype(np.int64)) for batch in batches], axis=0)
    ranges, first, rows = [], 0, 0
    for number, size in enumerate(sizes.tolist()):
        if rows and rows + size > most_rows:
            ranges.append((first, number))
            first, rows = number, 0
        rows += size
    return [*ranges, (first, BINS)]


def write_all(fd: int, data: bytes) -> None:
    """Write all of it: one write(2) may take less, such as on a disk that fills up. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
