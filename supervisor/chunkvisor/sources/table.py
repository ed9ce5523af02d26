"""The staged table of an output: each distinct text once, and which text each row has.

It is written once, and read block by block, so that it need not fit in memory.

Texts are distinguished by 128 bits of BLAKE2b: two of n texts share a hash with a probability of
n**2 / 2**129, which is 4e-19 for ten billion. While the table is written, the hashes lie on disk in
256 bins that are read one by one, so that at most ten bytes of each row are in memory.
"""

import hashlib
import itertools
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor.store.artifact import Numbers, pick_numbers, read_exactly
from chunkvisor.store.records import (
    DamagedError,
    Stamp,
    digest_of,
    read_record,
    stamp_file,
    write_record,
)
from chunkvisor.store.reuse import Reuse
from chunkvisor_worker.contract.files import PathIn
from chunkvisor_worker.contract.frozen import frozen

_TEXTS_AT_ONCE = 4096
# What `Spool` holds before it writes.
_BATCH_ROWS = 200_000
_BATCH_BYTES = 32 << 20
_RECORD = np.dtype([("hash", "S16"), ("row", "<i8")])
"""A record of the index: a text's hash and the first row that has the text."""
_BLOCK = 1 << 17  # records or rows that are read at a time


@frozen
class TableFiles:
    """Every path in a table's folder. A number in a .bin file is little-endian, of eight bytes."""

    folder: Path

    # The distinct texts in UTF-8, without separators, numbered in the order of their first rows.
    texts = PathIn("texts.bin")
    offsets = PathIn("offsets.bin")  # where each text begins in `texts`, and where the last ends
    row_text = PathIn("row_text.bin")  # the number of each row's text
    first_row = PathIn("first_row.bin")  # the first row of each text
    row_count = PathIn("row_count.bin")  # how many rows have each text
    index = PathIn("index.bin")  # hash and first row of each text, sorted by hash: `_RECORD`
    places = PathIn("places.bin")  # where each row is in its file: its line, or its row of parquet
    # Only if columns are carried along or rows left out: source_row and these columns of each row.
    rows = PathIn("rows.parquet")
    record = PathIn("table.json")  # `TableRecord`; written last, it makes the folder a table

    def holds_index(self) -> bool:
        """Return whether the index is there and unchanged. `chunkvisor clean` removes the rest.

        Raises OSError.
        """
        try:
            record = read_record(TableRecord, self.record)
            return record is not None and record.stamps[self.index.name].holds(self.index)
        except (DamagedError, KeyError):
            return False


@frozen
class TableSource:
    """Which rows of the table come from one source file."""

    place: str  # path or address
    has_lines: bool  # else its rows are numbered, from 0
    first_row: int
    rows: int


@frozen
class TableRecord:
    """What `table.json` says of a table."""

    rows: int
    distinct: int
    empty: int  # rows whose text is empty
    files: tuple[TableSource, ...]  # those that were read, in the order of their rows
    # These two are set by `seal_table`.
    digest: str = ""
    """SHA-256 over texts, offsets and row_text; the same whatever files the rows came from."""
    stamps: dict[str, Stamp] = field(default_factory=dict)
    """The digest and state of each other file of the table, by name."""


# --- writing


class Spool:
    """Takes the text of one row after the other, and writes the table's files.

    `append` puts each text into the text file, repeats included, and its length and hash into files
    in the scratch folder. At the end, `write_files` finds the repeats by the hashes and takes them
    out.
    """

    def __init__(self, files: TableFiles, scratch: Path) -> None:
        self.rows = 0  # appended so far
        self.empty = 0  # those whose text is empty; complete after `write_files`
        self._files = files
        self._lengths = scratch / "lengths.bin"
        # A hash goes to the bin of its first byte. So equal texts are in the same bin, and sorting
        # bin by bin sorts all.
        self._bins = [scratch / f"hashes-{number:03d}.tmp" for number in range(256)]
        self._batches: list[tuple[int, int]] = []  # (rows, bytes of their texts) of each write
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._places = array("q")

    def append(self, text: bytes, place: int) -> None:
        """Append the next row: its text in UTF-8, and its line or number. Raises OSError."""
        self.rows += 1
        self._places.append(place)
        self._pending.append(text)
        self._pending_bytes += len(text)
        if len(self._pending) == _BATCH_ROWS or self._pending_bytes >= _BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        rows = len(self._pending)
        lengths = np.fromiter(map(len, self._pending), dtype="<u4", count=rows)
        for path, data in (
            (self._files.texts, b"".join(self._pending)),
            (self._files.places, self._places.tobytes()),
            (self._lengths, lengths.tobytes()),
        ):
            with open(path, "ab") as file:
                file.write(data)
        del self._places[:]
        digests = b"".join(
            [hashlib.blake2b(text, digest_size=16).digest() for text in self._pending]
        )
        found = np.empty(rows, dtype=_RECORD)
        found["hash"] = np.frombuffer(digests, dtype="S16")
        found["row"] = np.arange(self.rows - rows, self.rows)
        first_bytes = np.frombuffer(digests, dtype=np.uint8)[::16]
        order = np.argsort(first_bytes, kind="stable")
        numbers, begins = np.unique(first_bytes[order], return_index=True)
        # Without rows there are no numbers, but one empty part: hence not strict.
        for number, part in zip(numbers.tolist(), np.split(found[order], begins[1:]), strict=False):
            with open(self._bins[number], "ab") as file:
                file.write(part.tobytes())
        self._batches.append((rows, self._pending_bytes))
        self.empty += rows - int(np.count_nonzero(lengths))
        self._pending = []
        self._pending_bytes = 0

    def write_files(self) -> int:
        """Write the files that hold texts and numbers, and return the number of distinct texts.

        Raises OSError.
        """
        self._flush()
        # For each row, the first row with the same text; shape (rows,). All are in memory, hence
        # the smallest type.
        first_of = np.arange(self.rows, dtype=np.min_scalar_type(self.rows))
        # At the first row of each text: how many rows have it, and then its number.
        of_texts = np.empty_like(first_of)
        with open(self._files.index, "wb") as index:
            for path in filter(Path.exists, self._bins):
                found = np.frombuffer(path.read_bytes(), dtype=_RECORD)
                # A stable sort: of rows with the same hash, the first stays first.
                found = found[np.argsort(found["hash"], kind="stable")]
                is_first = np.append(True, found["hash"][1:] != found["hash"][:-1])
                firsts = found[is_first]
                index.write(firsts.tobytes())
                starts = np.append(np.flatnonzero(is_first), len(found))
                of_texts[firsts["row"]] = np.diff(starts)
                first_of[found["row"]] = firsts["row"][np.cumsum(is_first) - 1]
        distinct = 0
        with (
            open(self._files.row_text, "wb") as row_text,
            open(self._files.first_row, "wb") as first_row,
            open(self._files.row_count, "wb") as row_count,
        ):
            for start in range(0, self.rows, _BLOCK):
                firsts = first_of[start : start + _BLOCK]
                rows = np.arange(start, start + len(firsts))
                fresh = rows[firsts == rows]
                row_count.write(of_texts[fresh].astype("<i8").tobytes())
                of_texts[fresh] = np.arange(distinct, distinct + len(fresh))
                distinct += len(fresh)
                row_text.write(of_texts[firsts].astype("<i8").tobytes())
                first_row.write(fresh.astype("<i8").tobytes())
        self._drop_repeats(first_of)
        return distinct

    def _drop_repeats(self, first_of: npt.NDArray[Any]) -> None:
        """Leave only the first of equal texts in the text file, and write `offsets`.

        The text file is rewritten in place, as `source` and `target`: a text only moves towards the
        start, so what it overwrites has been read before.
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
                offsets.write((kept_bytes + np.cumsum(lengths[keep])).astype("<u8").tobytes())
                target.write(texts[np.repeat(keep, lengths)].tobytes())
                row += rows
                kept_bytes += int(lengths[keep].sum())
            target.truncate(kept_bytes)


def seal_table(folder: Path, record: TableRecord) -> None:
    """Take the digests of the finished and synced files, and write the record with them.

    Raises OSError.
    """
    paths = TableFiles(folder)
    named = (
        paths.texts,
        paths.offsets,
        paths.row_text,
        paths.first_row,
        paths.row_count,
        paths.index,
        paths.rows,
        paths.places,
    )
    stamps = {path.name: stamp_file(path) for path in named if path.exists()}
    digest = digest_of([stamps[path.name].digest for path in named[:3]])
    write_record(paths.record, replace(record, digest=digest, stamps=stamps))


# --- reading


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTable(TableRecord):
    """A table on disk, open for reading.

    Methods raise DamagedError for a text or row that it does not have, and OSError.
    """

    folder: Path
    reuse: Reuse | None = None
    """Which texts have a vector elsewhere.

    If it is set, `distinct`, `texts`, `each_text`, `first_row`, `row_text` and `row_counts` number
    only the other texts, which are to be encoded: number 0 is the first of these. Methods whose
    names end in `_at` always number all texts.
    """

    @classmethod
    def open(cls, folder: Path) -> "StagedTable":
        """Open the table in the folder.

        Raises DamagedError if anything of it is missing or altered, OSError.
        """
        record = read_record(TableRecord, TableFiles(folder).record)
        if record is None:
            raise DamagedError(f"{folder} holds no table")
        for name, stamp in record.stamps.items():
            if not stamp.holds(folder / name):
                raise DamagedError(f"{folder / name} is missing or altered")
        return cls(
            folder=folder, **{each.name: getattr(record, each.name) for each in fields(record)}
        )

    def without(self, reuse: Reuse | None) -> "StagedTable":
        """Return the table as it is cut into chunks: without texts that have a vector elsewhere."""
        return self if reuse is None else replace(self, distinct=reuse.encoded, reuse=reuse)

    def _numbers(self, start: int, stop: int) -> Numbers:
        return (
            np.arange(start, stop) if self.reuse is None else self.reuse.encoded_texts(start, stop)
        )

    @property
    def carried(self) -> str | None:
        """The digest of rows.parquet, which has the columns that are carried along, if any."""
        stamp = self.stamps.get(TableFiles(self.folder).rows.name)
        return stamp.digest if stamp is not None else None

    def texts(self, start: int, stop: int) -> list[str]:
        """Read the distinct texts start..stop, by number."""
        return self.texts_at(self._numbers(start, stop))

    def texts_at(self, numbers: Numbers) -> list[str]:
        """Read the distinct texts of these numbers, which rise."""
        paths = TableFiles(self.folder)
        found = list[str]()
        begins, ends = (pick_numbers(paths.offsets, each) for each in (numbers, numbers + 1))
        runs = np.flatnonzero(np.diff(numbers, prepend=-2) != 1).tolist()
        with open(paths.texts, "rb") as file:
            for first, stop in itertools.pairwise([*runs, len(numbers)]):
                bounds = np.append(begins[first], ends[first:stop])
                data = bytearray(int(bounds[-1] - bounds[0]))
                if not read_exactly(file.fileno(), memoryview(data), int(bounds[0])):
                    raise DamagedError(f"{paths.texts} is shorter than it was")
                found += [
                    data[begin:end].decode()
                    for begin, end in itertools.pairwise((bounds - bounds[0]).tolist())
                ]
        return found

    def each_text(self, start: int, stop: int) -> Iterator[str]:
        """Yield the distinct texts start..stop, a block of them in memory at a time."""
        for first in range(start, stop, _TEXTS_AT_ONCE):
            yield from self.texts(first, min(first + _TEXTS_AT_ONCE, stop))

    def row_text(self, start: int, stop: int) -> Numbers:
        """Read the number of the text of each row start..stop; shape (stop - start,).

        It is -1 for a text that is not to be encoded.
        """
        texts = self.row_text_at(np.arange(start, stop))
        if self.reuse is None:
            return texts
        return np.maximum(~self.reuse.where_of(texts), -1)

    def row_text_at(self, rows: Numbers) -> Numbers:
        """Read the number of the text of each of these rows, in their order."""
        return pick_numbers(TableFiles(self.folder).row_text, rows)

    def first_row(self, start: int, stop: int) -> Numbers:
        """Read the first rows of the distinct texts start..stop; shape (stop - start,)."""
        return self.first_row_at(self._numbers(start, stop))

    def first_row_at(self, texts: Numbers) -> Numbers:
        """Read the first row of each of these texts, in their order."""
        return pick_numbers(TableFiles(self.folder).first_row, texts)

    def row_counts(self, texts: Sequence[int]) -> list[int]:
        """Read how many rows have each of these texts."""
        numbers = [int(self._numbers(text, text + 1)[0]) for text in texts]
        path = TableFiles(self.folder).row_count
        found: list[int] = pick_numbers(path, np.array(numbers, dtype=np.int64)).tolist()
        return found

    def reused_texts(self, most: int) -> list[str]:
        """Read those of the first `most` texts that are reused: the shortest first, blanks last."""
        if self.reuse is None:
            return []
        where = self.reuse.where_of(np.arange(min(most, self.reuse.texts)))
        texts = self.texts_at(np.flatnonzero(where >= 0).astype(np.int64))
        return sorted(texts, key=lambda text: (not text.strip(), len(text)))

    def places_of(self, rows: Sequence[int]) -> list[str]:
        """Say where rows stand in the sources as they were read: `file:line`, or `file, row N`."""
        numbers = pick_numbers(TableFiles(self.folder).places, np.array(rows, dtype=np.int64))
        places = list[str]()
        for row, number in zip(rows, numbers.tolist(), strict=True):
            # A file without rows begins where the next one does: the last that begins at or before
            # the row has it.
            file = self.files[bisect_right(self.files, row, key=lambda each: each.first_row) - 1]
            where = f":{number}" if file.has_lines else f", row {number}"
            places.append(file.place + where)
        return places


def text_of_row(folder: Path, row: int) -> str | None:
    """Return the text of the row of that number; None if the table is gone or damaged."""
    try:
        table = StagedTable.open(folder)
        return table.texts_at(table.row_text(row, row + 1))[0]
    except (DamagedError, OSError):
        return None


def shared_texts(ours: Path, theirs: Path) -> Iterator[tuple[Numbers, Numbers]]:
    """Find the texts that two tables share, by their index files.

    Yield for some shared texts at a time their first rows in our table, and in the same order those
    in the other: `([0, 7], [5, 2])` says that our row 0 has the text of their row 5. Both files are
    sorted by hash and read once. Raises OSError.
    """
    with open(ours, "rb") as our_file, open(theirs, "rb") as their_file:
        here = _next_block(our_file)
        there = _next_block(their_file)
        while len(here) and len(there):
            # Up to the lower of the two last hashes, both blocks have all that there is.
            bound = min(here["hash"][-1], there["hash"][-1])
            _, our_at, their_at = np.intersect1d(
                here["hash"], there["hash"], assume_unique=True, return_indices=True
            )
            yield here["row"][our_at], there["row"][their_at]
            here = here[here["hash"] > bound]
            there = there[there["hash"] > bound]
            if not len(here):
                here = _next_block(our_file)
            if not len(there):
                there = _next_block(their_file)


def _next_block(file: BufferedReader) -> npt.NDArray[np.void]:
    data = file.read(_BLOCK * _RECORD.itemsize)
    return np.frombuffer(data, dtype=_RECORD, count=len(data) // _RECORD.itemsize)
