"""Gives equal texts one number, and finds the texts that two tables have in common; all in bounded memory.

Texts are told apart by 128 bits of BLAKE2b: two of n different texts share a hash with probability n**2 / 2**129, 4e-19
for ten billion texts. What does not fit in memory is put by on disk, in buckets that are taken up one by one.
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
from chunkvisor.store.artifact import pick_rows
from chunkvisor.store.reuse import ENCODED, WHERE, ReuseFiles

Rows = npt.NDArray[np.int64]

_BATCH_ROWS = 200_000
_BATCH_BYTES = 32 << 20
_RECORD = np.dtype([("hash", "S16"), ("row", "<i8")])
"""Of the index: a text's hash and its first row; sorted by the hash, each text once."""
_REPEAT = np.dtype([("row", "<i8"), ("first", "<i8")])
_MATCH = np.dtype([("row", "<i8"), ("place", "<i4"), ("there", "<i8")])
_STRETCH_ROWS = 1 << 20
_BLOCK = 1 << 17
"""Records that are read at a time."""


class _Buckets:
    """Records on disk, each in the file of its bucket, in the order in which they were added."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype[Any]) -> None:
        self._folder, self._name, self._dtype = folder, name, dtype

    def add(self, buckets: npt.NDArray[Any], records: npt.NDArray[np.void]) -> None:
        """Append each record to its bucket. Raises OSError."""
        order = np.argsort(buckets, kind="stable")
        found, begins = np.unique(buckets[order], return_index=True)
        for bucket, (start, stop) in zip(found.tolist(), pairwise([*begins.tolist(), len(order)]), strict=True):
            with open(self._path(bucket), "ab") as file:
                file.write(records[order[start:stop]].tobytes())

    def take(self, bucket: int) -> Iterator[npt.NDArray[np.void]]:
        """Yield the records of a bucket block by block, and remove it. Raises OSError."""
        path = self._path(bucket)
        if path.exists():
            with open(path, "rb") as file:
                while len(block := _next_block(file, self._dtype)):
                    yield block
            path.unlink()

    def _path(self, bucket: int) -> Path:
        return self._folder / f"{self._name}-{bucket:05d}.tmp"


def _next_block(file: BufferedReader, dtype: np.dtype[Any] = _RECORD) -> npt.NDArray[np.void]:
    data = file.read(_BLOCK * dtype.itemsize)
    return np.frombuffer(data, dtype=dtype, count=len(data) // dtype.itemsize)


class Spool:
    """Appends texts to the table's text file, and what is to be known of them to the scratch folder."""

    def __init__(self, files: TableFiles, scratch: Path) -> None:
        self.rows = 0
        """Rows so far, whether or not they are written."""
        self.empty = 0
        """Rows that are written and whose text is empty."""
        self.batches: list[tuple[int, int]] = []
        """Rows that were written together, and bytes of their texts."""
        self._texts, self._lengths = files.texts, scratch / "lengths.bin"
        self._hashes = _Buckets(scratch, "hashes", _RECORD)
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def add(self, text: bytes) -> None:
        """Append the text of the next row, in UTF-8."""
        self.rows += 1
        self._pending.append(text)
        self._pending_bytes += len(text)
        if len(self._pending) == _BATCH_ROWS or self._pending_bytes >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is pending; to be called after the last row. Raises OSError."""
        rows, blake2b = len(self._pending), hashlib.blake2b
        lengths = np.fromiter(map(len, self._pending), dtype="<u4", count=rows)
        for path, data in ((self._texts, b"".join(self._pending)), (self._lengths, lengths.tobytes())):
            with open(path, "ab") as file:
                file.write(data)
        digests = b"".join([blake2b(text, digest_size=16).digest() for text in self._pending])
        found = np.empty(rows, dtype=_RECORD)
        found["hash"] = np.frombuffer(digests, dtype="S16")
        found["row"] = np.arange(self.rows - rows, self.rows)
        # Equal texts meet in one bucket, and the buckets follow each other as the hashes do.
        self._hashes.add(np.frombuffer(digests, dtype=np.uint8)[::16], found)
        self.batches.append((rows, self._pending_bytes))
        self.empty += rows - int(np.count_nonzero(lengths))
        self._pending, self._pending_bytes = [], 0


def number_texts(files: TableFiles, scratch: Path, rows: int) -> int:
    """Write `row_text`, `first_row` and `index`, and return the number of distinct texts. Raises OSError.

    Texts are numbered in the order of their first rows.
    """
    hashes, repeats = _Buckets(scratch, "hashes", _RECORD), _Buckets(scratch, "repeats", _REPEAT)
    with open(files.index, "wb") as index:
        for bucket in range(256):
            found = np.concatenate([np.empty(0, dtype=_RECORD), *hashes.take(bucket)])
            found = found[np.argsort(found["hash"], kind="stable")]  # stable: the first row comes first
            is_first = np.append(True, found["hash"][1:] != found["hash"][:-1])[: len(found)]
            firsts = found[is_first]
            index.write(firsts.tobytes())
            again = np.empty(len(found) - len(firsts), dtype=_REPEAT)
            again["row"] = found["row"][~is_first]
            again["first"] = firsts["row"][np.cumsum(is_first) - 1][~is_first]
            repeats.add(again["row"] // _STRETCH_ROWS, again)
    count = 0
    with open(files.row_text, "wb") as row_text, open(files.first_row, "wb") as first_row:
        for stretch, start in enumerate(range(0, rows, _STRETCH_ROWS)):
            own = np.arange(start, min(start + _STRETCH_ROWS, rows), dtype="<i8")
            first_of = own.copy()
            for block in repeats.take(stretch):
                first_of[block["row"] - start] = block["first"]
            fresh, before = first_of == own, first_of < start
            ids = np.empty(len(own), dtype="<i8")
            ids[fresh] = np.arange(count, count + np.count_nonzero(fresh))
            ids[before] = pick_rows(files.row_text, "<i8", 0, 1, first_of[before])[:, 0]
            within = ~(fresh | before)
            ids[within] = ids[first_of[within] - start]
            row_text.write(ids.tobytes())
            row_text.flush()  # the next stretch reads it
            first_row.write(own[fresh].tobytes())
            count += int(np.count_nonzero(fresh))
    return count


def drop_repeats(files: TableFiles, scratch: Path, batches: list[tuple[int, int]]) -> None:
    """Leave only the first of equal texts in the text file, and write `offsets`. Raises OSError.

    The file is compacted in place: a text only ever moves towards the start, behind what has been read.
    """
    kept_bytes, last_id = 0, -1
    with (
        open(files.texts, "rb") as source,
        open(files.texts, "r+b") as target,
        open(scratch / "lengths.bin", "rb") as lengths_file,
        open(files.row_text, "rb") as row_text,
        open(files.offsets, "wb") as offsets,
    ):
        offsets.write(bytes(8))
        for rows, size_bytes in batches:
            lengths = np.frombuffer(lengths_file.read(4 * rows), dtype="<u4").astype(np.int64)
            texts = np.frombuffer(source.read(size_bytes), dtype=np.uint8)
            ids = np.frombuffer(row_text.read(8 * rows), dtype="<i8")
            # Numbers rise with first rows: a row is the first of its text if its number is above all before.
            highest = np.maximum.accumulate(np.concatenate(([last_id], ids)))
            keep, last_id = ids > highest[:-1], int(highest[-1])
            ends = kept_bytes + np.cumsum(lengths[keep])
            offsets.write(ends.astype("<u8").tobytes())
            kept_bytes = int(ends[-1]) if len(ends) else kept_bytes
            target.write(texts[np.repeat(keep, lengths)].tobytes())
        target.truncate(kept_bytes)


def matches(ours: Path, theirs: Path) -> Iterator[tuple[Rows, Rows]]:
    """Yield first rows, here and there, of the texts that both indexes have, some at a time. Raises OSError."""
    with open(ours, "rb") as our_file, open(theirs, "rb") as their_file:
        here, there = _next_block(our_file), _next_block(their_file)
        while len(here) and len(there):
            # Up to the lower of the two ends, nothing in the rest of either file can be equal.
            bound = min(here["hash"][-1], there["hash"][-1])
            our_end, their_end = (int(np.searchsorted(each["hash"], bound, side="right")) for each in (here, there))
            if our_end and their_end:
                hashes = there["hash"][:their_end]
                at = np.minimum(np.searchsorted(hashes, here["hash"][:our_end]), their_end - 1)
                same = np.flatnonzero(hashes[at] == here["hash"][:our_end])
                if len(same):
                    yield here["row"][same], there["row"][at[same]]
            here = here[our_end:] if our_end < len(here) else _next_block(our_file)
            there = there[their_end:] if their_end < len(there) else _next_block(their_file)


class WhereWriter:
    """Writes which texts of a table have a vector elsewhere, and where; the place that was added first keeps a text."""

    def __init__(self, folder: Path, table: StagedTable) -> None:
        """`folder` is that of the plan, and exists."""
        self._files, self._table = ReuseFiles(folder), table
        self._stretch = max(_STRETCH_ROWS, -(-table.rows // 256))
        self._matches = _Buckets(folder, "matches", _MATCH)

    def add(self, place: int, here: Rows, there: Rows) -> None:
        """Take in matches: first rows of texts in the table, and the rows of their vectors there. Raises OSError."""
        found = np.empty(len(here), dtype=_MATCH)
        found["row"], found["place"], found["there"] = here, place, there
        self._matches.add((here // self._stretch).astype(np.uint16), found)  # numpy sorts small numbers in one pass

    def write(self) -> tuple[int, dict[int, int]]:
        """Write `where` and `encoded`: (texts that are encoded, texts taken of each place). Raises OSError."""
        taken = dict[int, int]()
        seen = encoded = 0
        with open(self._files.where, "wb") as where_file, open(self._files.encoded, "wb") as encoded_file:
            for stretch, start in enumerate(range(0, self._table.rows, self._stretch)):
                ids = self._table.row_text(start, min(start + self._stretch, self._table.rows))
                where = np.zeros(max(seen, int(ids.max()) + 1) - seen, dtype=WHERE)
                where["place"] = ENCODED
                for block in self._matches.take(stretch):
                    texts = ids[block["row"] - start] - seen
                    new = np.flatnonzero(where["place"][texts] == ENCODED)[::-1]
                    # Of two of the same text, the last is assigned (numpy, "Assigning values to indexed arrays").
                    where["place"][texts[new]] = block["place"][new]
                    where["row"][texts[new]] = block["there"][new]
                fresh = np.flatnonzero(where["place"] == ENCODED)
                where["row"][fresh] = np.arange(encoded, encoded + len(fresh))
                for place, count in zip(*np.unique(where["place"], return_counts=True), strict=True):
                    taken[int(place)] = taken.get(int(place), 0) + int(count)
                where_file.write(where.tobytes())
                encoded_file.write((seen + fresh).astype("<i8").tobytes())
                seen, encoded = seen + len(where), encoded + len(fresh)
        return encoded, {place: count for place, count in taken.items() if place != ENCODED}
