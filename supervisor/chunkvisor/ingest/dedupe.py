"""De-duplication: which rows share a text, and the texts that are left.

In bounded memory and without going back and forth in a file: hashes are compared bin by bin, texts moved batch by
batch. (DuckDB's join and sort of all hashes ran out of 1 GiB with 50 million distinct rows.)
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor.ingest.spool import Batch, SpoolFiles, bins_at_once, write_all
from chunkvisor.ingest.tablefiles import TableFiles
from chunkvisor.ingest.textindex import RECORD, records
from chunkvisor.store.pickrows import fill, pick_rows

_BYTES_PER_ROW = 512
"""Of the memory limit; 90 are in use at a time while hashes are sorted, and the interpreter wants its share."""


def number_texts(files: TableFiles, scratch: SpoolFiles, batches: Sequence[Batch], memory_limit_bytes: int) -> int:
    """Write `row_text`, `first_row` and `index`; returns the number of distinct texts. Raises OSError.

    Texts are numbered in the order of their first rows. Equal hashes are taken for equal texts, see `spool`.
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
        [_read(hashes_fd, "<u8", 2 * (row + start), 2 * (stop - start)) for row, start, stop in slices]
    )
    rows = np.concatenate(
        [row + _read(places_fd, "<u4", row + start, stop - start).astype(np.int64) for row, start, stop in slices]
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

    And, for each different hash in order, the `textindex.RECORD`.
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
            places = _read(places_fd, "<u4", batch.first_row, batch.rows)
            first_of[places] = _read(firsts_fd, "<i8", batch.first_row, batch.rows)
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


def _read(fd: int, dtype: str, start: int, count: int) -> npt.NDArray[Any]:
    """Items of a file of ours, by number. Raises OSError."""
    data = np.empty(count, dtype=dtype)
    if not fill(fd, data.view(np.uint8).data, start * data.itemsize):
        raise OSError("a scratch file is shorter than it was")
    return data
