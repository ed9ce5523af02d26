"""Gives equal texts one number, and finds the texts that two tables have in common.

Texts are told apart by 128 bits of BLAKE2b: two of n different texts share a hash with probability n**2 / 2**129, 4e-19
for ten billion texts. The hashes are put by on disk, in bins that are taken up one by one; of each row, at most ten
bytes are in memory.
"""

import hashlib
from collections.abc import Iterator
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor.sources.table import StagedTable, TableFiles
from chunkvisor.store.ledger import ENCODED, WHERE, ReuseFiles

Rows = npt.NDArray[np.int64]

_BATCH_ROWS = 200_000
_BATCH_BYTES = 32 << 20
_RECORD = np.dtype([("hash", "S16"), ("row", "<i8")])
"""Of the index: a text's hash and its first row; sorted by the hash, each text once."""
_BLOCK = 1 << 17
"""Records or rows that are taken at a time."""


class Spool:
    """Appends texts to the table's text file, and what is to be known of them to the scratch folder."""

    def __init__(self, files: TableFiles, scratch: Path) -> None:
        self.rows = 0
        """Rows so far, whether or not they are written."""
        self.empty = 0
        """Rows that are written and whose text is empty."""
        self._files, self._scratch = files, scratch
        self._lengths = scratch / "lengths.bin"
        self._batches: list[tuple[int, int]] = []
        """Rows that were written together, and bytes of their texts."""
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def add(self, text: bytes) -> None:
        """Append the text of the next row, in UTF-8. Raises OSError."""
        self.rows += 1
        self._pending.append(text)
        self._pending_bytes += len(text)
        if len(self._pending) == _BATCH_ROWS or self._pending_bytes >= _BATCH_BYTES:
            self._flush()

    def finish(self) -> int:
        """Write all files of the table but its record, and return the number of distinct texts. Raises OSError.

        Texts are numbered in the order of their first rows.
        """
        self._flush()
        # The first row that has the text of each row. Small numbers where they do: 8 bytes each would be much.
        first_of = np.arange(self.rows, dtype=np.min_scalar_type(self.rows))
        with open(self._files.index, "wb") as index:
            for path in map(self._bin, range(256)):
                found = np.frombuffer(path.read_bytes() if path.exists() else b"", dtype=_RECORD)
                found = found[np.argsort(found["hash"], kind="stable")]  # stable: the first row comes first
                is_first = np.append(True, found["hash"][1:] != found["hash"][:-1])[: len(found)]
                firsts = found[is_first]
                index.write(firsts.tobytes())
                first_of[found["row"]] = firsts["row"][np.cumsum(is_first) - 1]
        numbers = np.empty_like(first_of)
        distinct = 0
        with open(self._files.row_text, "wb") as row_text, open(self._files.first_row, "wb") as first_row:
            for start in range(0, self.rows, _BLOCK):
                firsts_here = first_of[start : start + _BLOCK]
                rows = np.arange(start, start + len(firsts_here))
                fresh = rows[firsts_here == rows]
                numbers[fresh] = np.arange(distinct, distinct + len(fresh))
                distinct += len(fresh)
                row_text.write(numbers[firsts_here].astype("<i8").tobytes())
                first_row.write(fresh.astype("<i8").tobytes())
        self._drop_repeats(first_of)
        return distinct

    def _bin(self, number: int) -> Path:
        return self._scratch / f"hashes-{number:03d}.tmp"

    def _flush(self) -> None:
        rows = len(self._pending)
        lengths = np.fromiter(map(len, self._pending), dtype="<u4", count=rows)
        for path, data in ((self._files.texts, b"".join(self._pending)), (self._lengths, lengths.tobytes())):
            with open(path, "ab") as file:
                file.write(data)
        digests = b"".join([hashlib.blake2b(text, digest_size=16).digest() for text in self._pending])
        found = np.empty(rows, dtype=_RECORD)
        found["hash"] = np.frombuffer(digests, dtype="S16")
        found["row"] = np.arange(self.rows - rows, self.rows)
        # Equal texts meet in one bin, and the bins follow each other as the hashes do.
        bins = np.frombuffer(digests, dtype=np.uint8)[::16]
        order = np.argsort(bins, kind="stable")
        bounds = np.searchsorted(bins[order], np.arange(257)).tolist()
        for number, (start, stop) in enumerate(pairwise(bounds)):
            if start < stop:
                with open(self._bin(number), "ab") as file:
                    file.write(found[order[start:stop]].tobytes())
        self._batches.append((rows, self._pending_bytes))
        self.empty += rows - int(np.count_nonzero(lengths))
        self._pending, self._pending_bytes = [], 0

    def _drop_repeats(self, first_of: npt.NDArray[Any]) -> None:
        """Leave only the first of equal texts in the text file, and write `offsets`.

        The file is compacted in place: a text only ever moves towards the start, behind what has been read.
        """
        row = kept_bytes = 0
        with (
            open(self._files.texts, "rb") as source,
            open(self._files.texts, "r+b") as target,
            open(self._lengths, "rb") as lengths_file,
            open(self._files.offsets, "wb") as offsets,
        ):
            offsets.write(bytes(8))
            for rows, size_bytes in self._batches:
                lengths = np.frombuffer(lengths_file.read(4 * rows), dtype="<u4").astype(np.int64)
                texts = np.frombuffer(source.read(size_bytes), dtype=np.uint8)
                keep = first_of[row : row + rows] == np.arange(row, row + rows)
                ends = kept_bytes + np.cumsum(lengths[keep])
                offsets.write(ends.astype("<u8").tobytes())
                kept_bytes += int(lengths[keep].sum())
                target.write(texts[np.repeat(keep, lengths)].tobytes())
                row += rows
            target.truncate(kept_bytes)


def matches(ours: Path, theirs: Path) -> Iterator[tuple[Rows, Rows]]:
    """Yield first rows, here and there, of the texts that both indexes have, some at a time. Raises OSError."""
    with open(ours, "rb") as our_file, open(theirs, "rb") as their_file:
        here, there = _next_block(our_file), _next_block(their_file)
        while len(here) and len(there):
            # Up to the lower of the two ends, nothing in the rest of either file can be equal.
            bound = min(here["hash"][-1], there["hash"][-1])
            our_end, their_end = (int(np.searchsorted(each["hash"], bound, side="right")) for each in (here, there))
            _, our_at, their_at = np.intersect1d(
                here["hash"][:our_end], there["hash"][:their_end], assume_unique=True, return_indices=True
            )
            if len(our_at):
                yield here["row"][our_at], there["row"][their_at]
            here = here[our_end:] if our_end < len(here) else _next_block(our_file)
            there = there[their_end:] if their_end < len(there) else _next_block(their_file)


def _next_block(file: BufferedReader) -> npt.NDArray[np.void]:
    data = file.read(_BLOCK * _RECORD.itemsize)
    return np.frombuffer(data, dtype=_RECORD, count=len(data) // _RECORD.itemsize)


class WhereWriter:
    """Writes which texts of a table have a vector elsewhere, and where; the place that was added first keeps a text.

    It takes 20 bytes of memory for each text, from the first match on.
    """

    def __init__(self, folder: Path, table: StagedTable) -> None:
        """`folder` is that of the plan, and exists."""
        self._files, self._table = ReuseFiles(folder), table
        self._where: npt.NDArray[np.void] = np.empty(0, dtype=WHERE)
        self._first_rows: Rows = np.empty(0, dtype=np.int64)

    def add(self, place: int, here: Rows, there: Rows) -> None:
        """Take in matches: first rows of texts in the table, and the rows of their vectors there. Raises OSError."""
        if not len(self._where):
            self._first_rows = self._table.first_row(0, self._table.distinct)
            self._where = np.full(self._table.distinct, np.array((ENCODED, 0), dtype=WHERE))
        texts = np.searchsorted(self._first_rows, here)
        new = self._where["place"][texts] == ENCODED
        self._where["place"][texts[new]] = place
        self._where["row"][texts[new]] = there[new]

    def write(self) -> tuple[int, dict[int, int]]:
        """Write `where` and `encoded`: (texts that are encoded, texts taken of each place). Raises OSError."""
        fresh = np.flatnonzero(self._where["place"] == ENCODED)
        self._where["row"][fresh] = np.arange(len(fresh))
        for path, data in ((self._files.where, self._where), (self._files.encoded, fresh.astype("<i8"))):
            path.write_bytes(data.view(np.uint8).data)
        places, counts = np.unique(self._where["place"], return_counts=True)
        taken = dict(zip(places.tolist(), counts.tolist(), strict=True))
        return taken.pop(ENCODED, 0), taken
