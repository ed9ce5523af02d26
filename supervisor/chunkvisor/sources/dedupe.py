"""Gives equal texts one number, in bounded memory: spooled to the disk, numbered, and copied without repeats."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor.sources.table import TableFiles
from chunkvisor.store.layout import Entry
from chunkvisor.store.pickrows import fill, pick_rows

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


RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<i8")])
"""The two halves of a text's hash, 128 bits, and the text's first row; sorted, each text once."""

_BLOCK = 1 << 17
"""Records: 3 MiB."""

Rows = npt.NDArray[np.int64]


def records(hashes: npt.NDArray[np.uint64], rows: Rows) -> npt.NDArray[np.void]:
    """The RECORD of each text, by its hash, of shape (texts, 2), and its first row."""
    found = np.empty(len(rows), dtype=RECORD)
    found["low"], found["high"], found["row"] = hashes[:, 0], hashes[:, 1], rows
    return found


def matches(ours: Path, theirs: Path) -> Iterator[tuple[Rows, Rows]]:
    """First rows, here and there, of the texts that both indexes have, some at a time. Raises OSError."""
    with open(ours, "rb") as our_file, open(theirs, "rb") as their_file:
        here, there = _next_block(our_file), _next_block(their_file)
        while len(here) and len(there):
            # Up to the lower of the two ends, nothing in the rest of either file can be equal.
            bound = min(_key(here[-1]), _key(there[-1]))
            our_end, their_end = _upto(here, bound), _upto(there, bound)
            at_ours, at_theirs = _common(here[:our_end], there[:their_end])
            if len(at_ours):
                yield here["row"][at_ours], there["row"][at_theirs]
            here = here[our_end:] if our_end < len(here) else _next_block(our_file)
            there = there[their_end:] if their_end < len(there) else _next_block(their_file)


def _next_block(file: BufferedReader) -> npt.NDArray[np.void]:
    data = file.read(_BLOCK * RECORD.itemsize)
    return np.frombuffer(data[: len(data) // RECORD.itemsize * RECORD.itemsize], dtype=RECORD)


def _key(record: Any) -> tuple[int, int]:
    return int(record["high"]), int(record["low"])


def _upto(block: npt.NDArray[np.void], bound: tuple[int, int]) -> int:
    """How many of the block's records are not above the bound."""
    high, low = (np.uint64(half) for half in bound)
    first, last = (int(np.searchsorted(block["high"], high, side=side)) for side in ("left", "right"))
    return first + int(np.searchsorted(block["low"][first:last], low, side="right"))


def _common(here: npt.NDArray[np.void], there: npt.NDArray[np.void]) -> tuple[Rows, Rows]:
    """Positions of the hashes that both blocks have, in order."""
    if not len(here) or not len(there):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    highs, lows = np.ascontiguousarray(there["high"]), there["low"]
    at = np.searchsorted(highs, here["high"])
    inside = np.minimum(at, len(there) - 1)
    alike = (at < len(there)) & (highs[inside] == here["high"])
    same = alike & (lows[inside] == here["low"])
    for place in np.flatnonzero(alike & ~same):  # two hashes that differ in one half only: hardly ever
        last = int(np.searchsorted(highs, here["high"][place], side="right"))
        hit = at[place] + np.flatnonzero(lows[at[place] : last] == here["low"][place])
        if len(hit):
            inside[place], same[place] = hit[0], True
    return np.flatnonzero(same), inside[same]


_BYTES_PER_ROW = 512
"""Of the memory limit; 90 are in use at a time while hashes are sorted, and the interpreter wants its share."""


def number_texts(files: TableFiles, scratch: SpoolFiles, batches: Sequence[Batch], memory_limit_bytes: int) -> int:
    """Write `row_text`, `first_row` and `index`; returns the number of distinct texts. Raises OSError.

    Texts are numbered in the order of their first rows. Equal hashes are taken for equal texts, see HASH_BYTES.
    """
    with (
        open(scratch.hashes, "rb") as hashes,
        open(scratch.places, "rb") as places,
        open(scratch.firsts, "w+b", buffering=0) as firsts,
        open(files.index, "wb", buffering=0) as index,
    ):
        for first_bin, last_bin in bins_at_once(batches, memory_limit_bytes // _BYTES_PER_ROW):
            bins = slice(first_bin, last_bin + 1)
            _find_firsts(hashes.fileno(), places.fileno(), firsts.fileno(), index.fileno(), batches, bins)
        return _number(files, firsts.fileno(), places.fileno(), batches)


def drop_repeats(files: TableFiles, scratch: SpoolFiles, batches: Sequence[Batch]) -> None:
    """Leave only the first of equal texts in the text file, and write `offsets`. Raises OSError.

    The file is compacted in place: a text only ever moves towards the start, behind what has been read.
    """
    kept_bytes, last_id = 0, -1
    with (
        open(files.texts, "rb") as source,
        open(files.texts, "r+b") as target,
        open(scratch.lengths, "rb") as lengths_file,
        open(files.row_text, "rb") as row_text,
        open(files.offsets, "wb") as offsets,
    ):
        offsets.write(np.zeros(1, dtype="<u8").tobytes())
        for batch in batches:
            text_lengths = np.frombuffer(lengths_file.read(4 * batch.rows), dtype="<u4").astype(np.int64)
            texts = np.frombuffer(source.read(batch.size_bytes), dtype=np.uint8)
            ids = np.frombuffer(row_text.read(8 * batch.rows), dtype="<i8")
            # Ids rise with first rows: a row is the first of its text where its id is higher than any before.
            highest = np.maximum.accumulate(np.concatenate(([last_id], ids)))
            keep = ids > highest[:-1]
            last_id = int(highest[-1])
            ends = kept_bytes + np.cumsum(text_lengths[keep])
            offsets.write(ends.astype("<u8").tobytes())
            if len(ends):
                kept_bytes = int(ends[-1])
                target.write(texts[np.repeat(keep, text_lengths)].tobytes())
        target.truncate(kept_bytes)


def _find_firsts(
    hashes_fd: int, places_fd: int, firsts_fd: int, index_fd: int, batches: Sequence[Batch], bins: slice
) -> None:
    """Write the first row of the same text for each row of these bins, and append their texts to the index."""
    slices = [(batch.first_row, *map(int, batch.bounds[bins][[0, -1]])) for batch in batches]
    hashes = np.concatenate(
        [_numbers(hashes_fd, "<u8", 2 * (row + start), 2 * (stop - start)) for row, start, stop in slices]
    )
    rows = np.concatenate(
        [row + _numbers(places_fd, "<u4", row + start, stop - start).astype(np.int64) for row, start, stop in slices]
    )
    first_of, texts = first_rows(hashes.reshape(-1, 2), rows)
    write_all(index_fd, texts.tobytes())
    done = 0
    for row, start, stop in slices:
        os.lseek(firsts_fd, 8 * (row + start), os.SEEK_SET)
        write_all(firsts_fd, first_of[done : done + stop - start].tobytes())
        done += stop - start


def first_rows(
    hashes: npt.NDArray[np.uint64], rows: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]:
    """For each of the rows the lowest one with the same hash; `hashes` has shape (len(rows), 2).

    And, for each different hash in order, its RECORD.
    """
    if not len(rows):
        return rows, np.empty(0, dtype=RECORD)
    order = np.argsort(hashes[:, 1])
    ordered = hashes[order]
    same_half, same = ordered[1:, 1] == ordered[:-1, 1], (ordered[1:] == ordered[:-1]).all(axis=1)
    if (same_half != same).any():  # two hashes are alike in one half, which one sort cannot tell apart
        order = np.lexsort((hashes[:, 0], hashes[:, 1]))
        ordered = hashes[order]
        same = (ordered[1:] == ordered[:-1]).all(axis=1)
    begins = np.flatnonzero(np.concatenate(([True], ~same)))
    lowest = np.minimum.reduceat(rows[order], begins)
    found = np.empty(len(rows), dtype="<i8")
    found[order] = np.repeat(lowest, np.diff(np.append(begins, len(rows))))
    return found, records(ordered[begins], lowest)


def _number(files: TableFiles, firsts_fd: int, places_fd: int, batches: Sequence[Batch]) -> int:
    count = 0
    with open(files.row_text, "wb", buffering=0) as row_text, open(files.first_row, "wb", buffering=0) as first_row:
        for batch in batches:
            first_of = np.empty(batch.rows, dtype=np.int64)
            places = _numbers(places_fd, "<u4", batch.first_row, batch.rows)
            first_of[places] = _numbers(firsts_fd, "<i8", batch.first_row, batch.rows)
            rows = np.arange(batch.first_row, batch.first_row + batch.rows)
            fresh, before = first_of == rows, first_of < batch.first_row
            ids = np.empty(batch.rows, dtype="<i8")
            ids[fresh] = np.arange(count, count + np.count_nonzero(fresh))
            if before.any():
                ids[before] = pick_rows(files.row_text, "<i8", 0, 1, first_of[before])[:, 0]
            again = ~(fresh | before)
            ids[again] = ids[first_of[again] - batch.first_row]
            write_all(row_text.fileno(), ids.tobytes())
            write_all(first_row.fileno(), rows[fresh].astype("<i8").tobytes())
            count += int(np.count_nonzero(fresh))
    return count


def _numbers(fd: int, dtype: str, start: int, count: int) -> npt.NDArray[Any]:
    """Items of a file of ours, by number. Raises OSError."""
    data = np.empty(count, dtype=dtype)
    if not fill(fd, data.view(np.uint8).data, start * data.itemsize):
        raise OSError("a scratch file is shorter than it was")
    return data
