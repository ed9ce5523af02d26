"""The staged table: the texts of one output, each once, and which row has which; read block by block."""

import itertools
import os
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor.errors import Halt
from chunkvisor.sources.fetch import shown
from chunkvisor.sources.readers import read_rows
from chunkvisor.sources.resolve import Signature, resolve, signature
from chunkvisor.store.layout import Entry
from chunkvisor.store.pickrows import fill, pick_rows
from chunkvisor.store.records import DamagedError, Stamp, digest_of, read_sealed, stamp_file, write_sealed
from chunkvisor.store.reuse import ENCODED, Reuse


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Every path in the folder of a table, named once."""

    folder: Path

    texts = Entry("folder", "texts.bin")
    """The distinct texts in UTF-8, one after the other, in the order of their first rows."""
    offsets = Entry("folder", "offsets.bin")
    """uint64, little-endian, one more than there are texts: where each begins in `texts`, and the end."""
    row_text = Entry("folder", "row_text.bin")
    """int64, little-endian: number of each row's text."""
    first_row = Entry("folder", "first_row.bin")
    """int64, little-endian: first row of each text."""
    index = Entry("folder", "index.bin")
    """`dedupe.RECORD`: hash and first row of each text, in the order of the hashes."""
    rows = Entry("folder", "rows.parquet")
    """Where columns are carried along or rows are left out: what is to be known of each row, see `RowsTable`."""
    places = Entry("folder", "places.bin")
    """int64, little-endian, where rows are left out: number of each row in its file."""
    record = Entry("folder", "table.json")
    """Sealed JSON: counts, sources and the stamps of the others."""

    def holds_index(self) -> bool:
        """Whether there is an index, as the record has it. Raises OSError."""
        try:
            record = read_sealed(self.record)
            return record is not None and Stamp(**record["stamps"][self.index.name]).holds(self.index)
        except (DamagedError, KeyError, TypeError):
            return False

    @property
    def arrays(self) -> tuple[Path, ...]:
        """The files that every table has; the index is found by the record, too, but may be missing."""
        return self.texts, self.offsets, self.row_text, self.first_row

    @property
    def there(self) -> tuple[Path, ...]:
        """The files that some tables have, and this one has."""
        return tuple(path for path in (self.rows, self.places) if path.exists())


@dataclass(frozen=True, slots=True)
class TableSource:
    """Where the rows of one source file stand in the table."""

    path: Path
    first_row: int
    rows: int


def write_record(
    folder: Path,
    *,
    rows: int,
    distinct: int,
    files: Sequence[TableSource],
    source_state: Signature,
    skip_blank: bool,
    empty: int = 0,
) -> None:
    """Stamp the finished and synced arrays, and write the record that makes the folder a table. Raises OSError."""
    paths = TableFiles(folder)
    stamps = _stamps(paths)
    content = [stamps[path.name].digest for path in (paths.texts, paths.offsets, paths.row_text)]
    record = {
        "rows": rows,
        "distinct": distinct,
        "digest": digest_of(content),
        "files": [[shown(file.path), file.first_row, file.rows] for file in files],
        "signature": source_state,
        "skip_blank": skip_blank,
        "empty": empty,
        "stamps": {name: asdict(stamp) for name, stamp in stamps.items()},
    }
    write_sealed(paths.record, record)


def _stamps(paths: TableFiles) -> dict[str, Stamp]:
    index = [paths.index] if paths.index.exists() else []
    return {path.name: stamp_file(path) for path in (*paths.arrays, *paths.there, *index)}


def restamp(paths: TableFiles, record: dict[str, Any]) -> None:
    """Stamp anew what is there and of the same content. Raises DamagedError where it is not, OSError."""
    known = _stamps(paths)
    fresh = {name: known[name] for name in record["stamps"] if name != paths.index.name or name in known}
    if any(stamp.digest != record["stamps"][name]["digest"] for name, stamp in fresh.items()):
        raise DamagedError(f"{paths.folder} is being altered")
    write_sealed(paths.record, {**record, "stamps": {name: asdict(stamp) for name, stamp in fresh.items()}})


_ITEM_BYTES = 8
_EACH = 4096
_ROWS_AT_ONCE = 1 << 20
"""Texts that are held at a time."""


@dataclass(frozen=True, slots=True)
class StagedTable:
    """A table on disk, open for reading. Methods raise IndexError outside the table, DamagedError on a short read."""

    folder: Path
    rows: int
    distinct: int
    digest: str
    """sha256 of the texts, their lengths and the rows that have them: equal for equal content, whatever the files."""
    files: tuple[TableSource, ...]
    """In the order of their rows; those that were read."""
    signature: Signature
    """State of all source files when they were read, see `resolve.signature`."""
    skip_blank: bool
    """Whether blank lines were taken for no rows."""
    carried: str | None = None
    """sha256 of the rows table, where there is one."""
    leaves_out: bool = False
    """Whether rows of the sources are left out."""
    empty: int = 0
    """Rows whose text is empty; 0 in a table of a version that did not count them."""

    @classmethod
    def open(cls, folder: Path) -> "StagedTable":
        """The table in the folder. Raises DamagedError where anything of it is missing or altered.

        The files are read only where they were touched since they were stamped, such as by a copy of the folder; then
        they are stamped anew.
        """
        paths = TableFiles(folder)
        try:
            record = read_sealed(paths.record)
            if record is None:
                raise DamagedError(f"{folder} holds no table")
            named = {path.name: path for path in (*paths.arrays, paths.rows, paths.places)}
            noted = {name: stamp for name, stamp in record["stamps"].items() if name != paths.index.name}
            stamps = {named[name]: Stamp(**stamp) for name, stamp in noted.items()}
            table = cls(
                folder=folder,
                rows=record["rows"],
                distinct=record["distinct"],
                digest=record["digest"],
                files=tuple(TableSource(Path(path), first, rows) for path, first, rows in record["files"]),
                signature=record["signature"],
                skip_blank=record["skip_blank"],
                carried=stamps[paths.rows].digest if paths.rows in stamps else None,
                leaves_out=paths.places in stamps,
                empty=record.get("empty", 0),
            )
            _check(table, [stamps[path].size_bytes for path in paths.arrays[1:]])
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise DamagedError(f"{paths.record}: {error}") from error
        for path, stamp in stamps.items():
            if not stamp.holds(path):
                raise DamagedError(f"{path} is missing or altered")
        if not all(stamp.untouched(path) for path, stamp in stamps.items()):
            restamp(paths, record)
        return table

    def texts(self, start: int, stop: int) -> list[str]:
        """Distinct texts start..stop, by number."""
        bounds = self._bounds(start, stop)
        first = int(bounds[0])
        return _decoded(_pread(TableFiles(self.folder).texts, int(bounds[-1]) - first, first), bounds)

    def texts_of(self, numbers: npt.NDArray[np.int64]) -> list[str]:
        """Distinct texts of these numbers, which rise; each file is opened once."""
        if not len(numbers):
            return []
        _check_range(int(numbers[0]), int(numbers[-1]) + 1, self.distinct)
        paths, found = TableFiles(self.folder), list[str]()
        begins = np.flatnonzero(np.diff(numbers, prepend=-2) != 1).tolist()
        with open(paths.offsets, "rb") as offsets, open(paths.texts, "rb") as texts:
            for first, end in zip(begins, [*begins[1:], len(numbers)], strict=True):
                count, at = end - first + 1, _ITEM_BYTES * int(numbers[first])
                bounds = np.frombuffer(_read(offsets, paths.offsets, _ITEM_BYTES * count, at), dtype="<u8")
                found += _decoded(_read(texts, paths.texts, int(bounds[-1] - bounds[0]), int(bounds[0])), bounds)
        return found

    def sizes_of(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Bytes of distinct texts of these numbers, which rise, in UTF-8; shape (len(numbers),)."""
        if len(numbers):
            _check_range(int(numbers[0]), int(numbers[-1]) + 1, self.distinct)
        path = TableFiles(self.folder).offsets
        first, end = (pick_rows(path, "<u8", 0, 1, each)[:, 0].astype(np.int64) for each in (numbers, numbers + 1))
        sizes: npt.NDArray[np.int64] = end - first
        return sizes

    def each_text(self, start: int, stop: int) -> Iterator[str]:
        """The same, one after the other, without all of them in memory."""
        for first in range(start, stop, _EACH):
            yield from self.texts(first, min(first + _EACH, stop))

    def row_text(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Numbers of the texts of rows start..stop; shape (stop - start,)."""
        _check_range(start, stop, self.rows)
        return _read_array(TableFiles(self.folder).row_text, "<i8", start, stop).astype(np.int64)

    def texts_of_rows(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Numbers of the texts of those rows, in that order; shape (len(rows),)."""
        if len(rows):
            _check_range(int(rows.min()), int(rows.max()) + 1, self.rows)
        return pick_rows(TableFiles(self.folder).row_text, "<i8", 0, 1, rows)[:, 0].astype(np.int64)

    def row_blocks(self) -> Iterator[npt.NDArray[np.int64]]:
        """Numbers of the texts of all rows, in order, a million rows at a time."""
        for start in range(0, self.rows, _ROWS_AT_ONCE):
            yield self.row_text(start, min(start + _ROWS_AT_ONCE, self.rows))

    def first_row(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """First rows of the distinct texts start..stop; shape (stop - start,)."""
        _check_range(start, stop, self.distinct)
        return _read_array(TableFiles(self.folder).first_row, "<i8", start, stop).astype(np.int64)

    def first_rows_of(self, texts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """First rows of the distinct texts of those numbers, in that order; shape (len(texts),)."""
        if len(texts):
            _check_range(int(texts.min()), int(texts.max()) + 1, self.distinct)
        path = TableFiles(self.folder).first_row
        return pick_rows(path, "<i8", 0, 1, texts)[:, 0].astype(np.int64)

    def locate(self, row: int) -> tuple[Path, int]:
        """The source file of a row, and the row's number in it, from 0."""
        _check_range(row, row + 1, self.rows)
        # The last file that begins at or before the row: files without rows begin where the next one does.
        file = self.files[bisect_right(self.files, row, key=lambda source: source.first_row) - 1]
        if self.leaves_out:
            return file.path, int(_read_array(TableFiles(self.folder).places, "<i8", row, row + 1)[0])
        return file.path, row - file.first_row

    def line_of(self, row: int) -> tuple[Path, int | None]:
        """The source file of a row, and the line on which the row starts there, from 1.

        Reads the file up to that row, so it is for messages. None where the format has no lines, or the file is not
        the one that was read.
        """
        path, row_in_file = self.locate(row)
        try:
            (file,) = resolve([str(path)])
            if not file.format.has_lines or signature([file])[0] not in self.signature:
                return path, None
            found = next(itertools.islice(read_rows(file, (), skip_blank=self.skip_blank), row_in_file, None), None)
        except (Halt, OSError):
            return path, None
        return path, found[0] if found else None

    def place_of(self, row: int, *, with_line: bool = True) -> str:
        """Where a row stands, for messages; without its line, the file is not read."""
        path, line = self.line_of(row) if with_line else (self.locate(row)[0], None)
        return f"{path}:{line}" if line is not None else f"{shown(path)}, row {self.locate(row)[1]}"

    def _bounds(self, start: int, stop: int) -> npt.NDArray[np.uint64]:
        _check_range(start, stop, self.distinct)
        return _read_array(TableFiles(self.folder).offsets, "<u8", start, stop + 1)


def _check(table: StagedTable, sizes_bytes: list[int]) -> None:
    """Raise ValueError where a record is whole but cannot be that of a table, such as another version's."""
    counts = [
        table.rows,
        table.distinct,
        table.empty,
        *(count for file in table.files for count in (file.first_row, file.rows)),
    ]
    whole = all(type(count) is int and count >= 0 for count in counts) and isinstance(table.digest, str)
    whole = whole and isinstance(table.signature, list) and isinstance(table.skip_blank, bool)
    if whole:
        firsts = list(itertools.accumulate((file.rows for file in table.files), initial=0))
        whole = firsts == [*(file.first_row for file in table.files), table.rows]
        whole = whole and sizes_bytes == [_ITEM_BYTES * n for n in (table.distinct + 1, table.rows, table.distinct)]
    if not whole:
        raise ValueError("its numbers do not fit together")


def _check_range(start: int, stop: int, length: int) -> None:
    if not 0 <= start <= stop <= length:
        raise IndexError(f"{start}..{stop} is outside 0..{length}")


def _read_array(path: Path, dtype: str, start: int, stop: int) -> npt.NDArray[Any]:
    return np.frombuffer(_pread(path, (stop - start) * _ITEM_BYTES, start * _ITEM_BYTES), dtype=dtype)


def _pread(path: Path, size_bytes: int, offset: int) -> bytearray:
    """Exactly `size_bytes` from `offset` on. Raises DamagedError where the file has fewer, OSError."""
    with open(path, "rb") as file:
        return _read(file, path, size_bytes, offset)


def _read(file: BufferedReader, path: Path, size_bytes: int, offset: int) -> bytearray:
    """The same of an open file."""
    data = bytearray(size_bytes)
    if not fill(file.fileno(), memoryview(data), offset):
        raise DamagedError(f"{path} is shorter than it was")
    return data


def _decoded(data: bytearray, bounds: npt.NDArray[np.uint64]) -> list[str]:
    """The texts between neighbouring bounds, the first of which is where the data begins in its file."""
    ends = (bounds - bounds[0]).tolist()
    return [data[begin:end].decode() for begin, end in itertools.pairwise(ends)]


def peek(folder: Path, row: int, most_bytes: int) -> str | None:
    """At most so many bytes of it, as text; None where the table is not there, or is not what it was."""
    paths = TableFiles(folder)
    try:
        (number,) = struct.unpack("<q", _pread_of(paths.row_text, _ITEM_BYTES, row * _ITEM_BYTES))
        begin, end = struct.unpack("<QQ", _pread_of(paths.offsets, 2 * _ITEM_BYTES, number * _ITEM_BYTES))
        return _pread_of(paths.texts, min(max(0, end - begin), most_bytes), begin).decode(errors="replace")
    except (OSError, OverflowError, struct.error):
        return None


def _pread_of(path: Path, size_bytes: int, offset: int) -> bytes:
    with open(path, "rb") as file:
        return os.pread(file.fileno(), size_bytes, offset)


def rows_of(table: StagedTable, texts: Sequence[int]) -> dict[int, int]:
    """Rows of each of the texts, by its number. Raises DamagedError, OSError."""
    if table.rows == table.distinct:
        return dict.fromkeys(texts, 1)
    wanted = np.unique(np.asarray(texts, dtype=np.int64))
    counts = np.zeros(len(wanted), dtype=np.int64)
    for found in table.row_blocks() if len(wanted) else ():
        hits = found[np.isin(found, wanted)]
        counts += np.bincount(np.searchsorted(wanted, hits), minlength=len(wanted))
    return dict(zip(wanted.tolist(), counts.tolist(), strict=True))


_LOOKED_AT = 20_000
"""Texts of a table, evenly spread, among which the sample is chosen by length."""


def sampled(tables: Sequence[StagedTable], count: int) -> list[list[str]]:
    """About so many texts of all tables together, by their shares, at least one of each; a list for each table.

    Raises DamagedError, OSError.
    """
    total, chosen = sum(table.distinct for table in tables), []
    for table in tables:
        numbers = np.arange(0, table.distinct, max(1, table.distinct // _LOOKED_AT))
        picked = pick(table.sizes_of(numbers).tolist(), max(1, round(count * table.distinct / total)))
        chosen.append(table.texts_of(numbers[picked]))
    return chosen


def pick(sizes: Sequence[int], count: int) -> list[int]:
    """Numbers of `count` of the texts, by their sizes: evenly spread from the shortest to the longest."""
    order = sorted(range(len(sizes)), key=lambda number: (sizes[number], number))
    if count >= len(order):
        return sorted(order)
    step = len(order) / count
    return sorted(order[int((place + 0.5) * step)] for place in range(count))


@dataclass(frozen=True, slots=True)
class FreshTable(StagedTable):
    """A staged table, in which `distinct` and the numbers of texts are of those that are encoded."""

    full: StagedTable = field(kw_only=True)
    reuse: Reuse = field(kw_only=True)

    def texts(self, start: int, stop: int) -> list[str]:
        """See StagedTable."""
        return self.full.texts_of(self.reuse.texts_of(start, stop))

    def taken_over(self, most: int) -> list[str]:
        """Read those of the output's first texts, so many at most, whose vectors are taken over; the shortest first."""
        where = self.reuse.where(0, min(most, self.reuse.texts))
        texts = self.full.texts_of(np.flatnonzero(where["place"] != ENCODED).astype(np.int64))
        return sorted(texts, key=lambda text: (not text.strip(), len(text)))

    def first_row(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """See StagedTable."""
        return self.full.first_rows_of(self.reuse.texts_of(start, stop))

    def row_text(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """See StagedTable; -1 for rows whose text is not encoded."""
        where = self.reuse.where_of(self.full.row_text(start, stop))
        return np.where(where["place"] == ENCODED, where["row"], -1)


def fresh_of(table: StagedTable, reuse: Reuse | None) -> StagedTable:
    """The table as chunks see it."""
    if reuse is None:
        return table
    values = {each.name: getattr(table, each.name) for each in fields(table)}
    return FreshTable(**values | {"distinct": reuse.encoded}, full=table, reuse=reuse)
