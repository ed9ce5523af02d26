"""The staged table: the texts of one output, each once, and which row has which; read block by block."""

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor.errors import Halt
from chunkvisor.sources.readers import read_rows
from chunkvisor.sources.resolve import SourceFormat, is_remote, resolve, signature
from chunkvisor.store.artifact import fill, pick_rows
from chunkvisor.store.ledger import ENCODED, Reuse
from chunkvisor.store.records import DamagedError, Stamp, digest_of, read_record, stamp_as, stamp_file, write_record
from chunkvisor_worker.contract.files import FileIn

Numbers = npt.NDArray[np.int64]

_EACH = 4096
"""Texts that are held at a time."""
_ROWS_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Every path in the folder of a table. Numbers are little-endian and take eight bytes."""

    folder: Path

    texts = FileIn("texts.bin")
    """The distinct texts in UTF-8, one after the other, in the order of their first rows."""
    offsets = FileIn("offsets.bin")
    """Where each text begins in `texts`, and the end."""
    row_text = FileIn("row_text.bin")
    """Number of each row's text."""
    first_row = FileIn("first_row.bin")
    """First row of each text."""
    index = FileIn("index.bin")
    """Hash and first row of each text, in the order of the hashes; see `dedupe`."""
    rows = FileIn("rows.parquet")
    """If columns are carried along or rows are left out: what is to be known of each row, see `sql`."""
    places = FileIn("places.bin")
    """If rows are left out: number of each row in its file."""
    record = FileIn("table.json")
    """Sealed JSON: `TableRecord`."""

    def holds_index(self) -> bool:
        """Return whether there is an index, as the record has it: `clean` leaves no more. Raises OSError."""
        try:
            record = read_record(TableRecord, self.record)
        except DamagedError:
            return False
        return record is not None and record.stamps[self.index.name].holds(self.index)


@dataclass(frozen=True, slots=True)
class TableSource:
    """Where the rows of one source file stand in the table."""

    place: str
    """Path or address."""
    first_row: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecord:
    """What the record says of a table."""

    rows: int
    distinct: int
    empty: int
    """Rows whose text is empty."""
    signature: dict[str, Any]
    """State of all source files when they were read, see `resolve.signature`."""
    skip_blank: bool
    files: tuple[TableSource, ...]
    """Those that were read, in the order of their rows."""
    digest: str = ""
    """sha256 of the texts, their lengths and the rows that have them: equal for equal content, whatever the files."""
    stamps: dict[str, Stamp] = field(default_factory=dict)
    """Of the other files, by name."""


def seal_table(folder: Path, record: TableRecord) -> None:
    """Stamp the finished and synced files, and write the record that makes the folder a table. Raises OSError."""
    paths = TableFiles(folder)
    named = (paths.texts, paths.offsets, paths.row_text, paths.first_row, paths.index, paths.rows, paths.places)
    stamps = {path.name: stamp_file(path) for path in named if path.exists()}
    digest = digest_of([stamps[path.name].digest for path in named[:3]])
    write_record(paths.record, replace(record, digest=digest, stamps=stamps))


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTable(TableRecord):
    """A table on disk, open for reading. Methods raise IndexError outside the table, DamagedError on a short read."""

    folder: Path

    @classmethod
    def open(cls, folder: Path) -> "StagedTable":
        """Open the table in the folder. Raises DamagedError if anything of it is missing or altered, OSError.

        Files are read only if they were touched since they were stamped, such as by a copy of the folder; then they
        are stamped anew.
        """
        path = TableFiles(folder).record
        record = read_record(TableRecord, path)
        if record is None:
            raise DamagedError(f"{folder} holds no table")
        for name, stamp in record.stamps.items():
            if not stamp.holds(folder / name):
                raise DamagedError(f"{folder / name} is missing or altered")
        if not all(stamp.untouched(folder / name) for name, stamp in record.stamps.items()):
            fresh = {name: stamp_as(folder / name, stamp.digest) for name, stamp in record.stamps.items()}
            record = replace(record, stamps=fresh)
            write_record(path, record)
        return cls(folder=folder, **_values(record))

    @property
    def carried(self) -> str | None:
        """sha256 of rows.parquet, if there is one."""
        stamp = self.stamps.get(TableFiles(self.folder).rows.name)
        return stamp.digest if stamp is not None else None

    def texts(self, start: int, stop: int) -> list[str]:
        """Read the distinct texts start..stop, by number."""
        return self.texts_of(np.arange(start, stop))

    def texts_of(self, numbers: Numbers) -> list[str]:
        """Read the distinct texts of these numbers, which rise; each file is opened once."""
        paths, found = TableFiles(self.folder), list[str]()
        begins, ends = (_pick(paths.offsets, each, self.distinct + 1) for each in (numbers, numbers + 1))
        runs = np.flatnonzero(np.diff(numbers, prepend=-2) != 1).tolist()
        with open(paths.texts, "rb") as file:
            for first, stop in itertools.pairwise([*runs, len(numbers)]):
                bounds = np.append(begins[first], ends[first:stop])
                data = bytearray(int(bounds[-1] - bounds[0]))
                if not fill(file.fileno(), memoryview(data), int(bounds[0])):
                    raise DamagedError(f"{paths.texts} is shorter than it was")
                found += [data[begin:end].decode() for begin, end in itertools.pairwise((bounds - bounds[0]).tolist())]
        return found

    def each_text(self, start: int, stop: int) -> Iterator[str]:
        """Yield the distinct texts start..stop without all of them in memory."""
        for first in range(start, stop, _EACH):
            yield from self.texts(first, min(first + _EACH, stop))

    def row_text(self, start: int, stop: int) -> Numbers:
        """Read the numbers of the texts of rows start..stop; shape (stop - start,)."""
        return self.texts_of_rows(np.arange(start, stop))

    def texts_of_rows(self, rows: Numbers) -> Numbers:
        """Read the numbers of the texts of those rows, in that order; shape (len(rows),)."""
        return _pick(TableFiles(self.folder).row_text, rows, self.rows)

    def first_row(self, start: int, stop: int) -> Numbers:
        """Read the first rows of the distinct texts start..stop; shape (stop - start,)."""
        return self.first_rows_of(np.arange(start, stop))

    def first_rows_of(self, texts: Numbers) -> Numbers:
        """Read the first rows of the distinct texts of those numbers, in that order; shape (len(texts),)."""
        return _pick(TableFiles(self.folder).first_row, texts, self.distinct)

    def place_of(self, row: int, *, with_line: bool = True) -> str:
        """Say where a row stands, for messages: `file:line`, for which the file is read up to there, or the row.

        There is no line if the format has none, or the file is not the one that was read.
        """
        # The last file that begins at or before the row: files without rows begin where the next one does.
        source = self.files[bisect_right(self.files, row, key=lambda each: each.first_row) - 1]
        number, places = row - source.first_row, TableFiles(self.folder).places
        if places.name in self.stamps:
            number = int(_pick(places, np.array([row]), self.rows)[0])
        try:
            if with_line and not is_remote(source.place):
                (file,) = resolve([source.place])
                if file.format is not SourceFormat.PARQUET and signature([file]).items() <= self.signature.items():
                    rows = read_rows(file, (), skip_blank=self.skip_blank)
                    return f"{source.place}:{next(itertools.islice(rows, number, None))[0]}"
        except (Halt, OSError, StopIteration):
            pass
        return f"{source.place}, row {number}"


def _values(record: TableRecord) -> dict[str, Any]:
    return {each.name: getattr(record, each.name) for each in fields(record)}


def _pick(path: Path, numbers: Numbers, length: int) -> Numbers:
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < length:
        raise IndexError(f"{numbers.min()} to {numbers.max()} is outside 0..{length}")
    try:
        return pick_rows(path, "<i8", 0, 1, numbers)[:, 0].astype(np.int64, copy=False)
    except ValueError as error:
        raise DamagedError(f"{path} is shorter than it was") from error


def peek(folder: Path, row: int, most_chars: int) -> str | None:
    """Return the start of a row's text; None if the table is gone or is not what it was."""
    try:
        table = StagedTable.open(folder)
        return table.texts_of(table.row_text(row, row + 1))[0][:most_chars]
    except (DamagedError, IndexError, OSError):
        return None


def rows_of(table: StagedTable, texts: Sequence[int]) -> dict[int, int]:
    """Count the rows of each of the texts, by its number. Raises DamagedError, OSError."""
    if table.rows == table.distinct:
        return dict.fromkeys(texts, 1)
    counts = dict.fromkeys(texts, 0)
    for start in range(0, table.rows, _ROWS_AT_ONCE) if counts else ():
        found = table.row_text(start, min(start + _ROWS_AT_ONCE, table.rows))
        hits, rows = np.unique(found[np.isin(found, list(counts))], return_counts=True)
        for text, count in zip(hits.tolist(), rows.tolist(), strict=True):
            counts[text] += count
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshTable(StagedTable):
    """A staged table in which `distinct` and the numbers of texts are of those that are encoded."""

    full: StagedTable
    reuse: Reuse

    def texts(self, start: int, stop: int) -> list[str]:
        """See StagedTable."""
        return self.full.texts_of(self.reuse.texts_of(start, stop))

    def taken_over(self, most: int) -> list[str]:
        """Read those of the output's first `most` texts whose vectors are taken over; the shortest come first."""
        where = self.reuse.where(0, min(most, self.reuse.texts))
        texts = self.full.texts_of(np.flatnonzero(where["place"] != ENCODED).astype(np.int64))
        return sorted(texts, key=lambda text: (not text.strip(), len(text)))

    def first_row(self, start: int, stop: int) -> Numbers:
        """See StagedTable."""
        return self.full.first_rows_of(self.reuse.texts_of(start, stop))

    def row_text(self, start: int, stop: int) -> Numbers:
        """See StagedTable; -1 for rows whose text is not encoded."""
        where = self.reuse.where_of(self.full.row_text(start, stop))
        return np.where(where["place"] == ENCODED, where["row"], -1)


def fresh_of(table: StagedTable, reuse: Reuse | None) -> StagedTable:
    """Return the table as chunks see it."""
    if reuse is None:
        return table
    return FreshTable(**_values(table) | {"distinct": reuse.encoded}, full=table, reuse=reuse)
