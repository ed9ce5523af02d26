"""The index of a table's texts by their digests, and which texts of one table are in another."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor.sources.dedupe import BINS, RECORD, hashes_of, records, write_all
from chunkvisor.sources.table import StagedTable, TableFiles, add_index
from chunkvisor.store.reuse import ENCODED, WHERE, ReuseFiles
from chunkvisor.store.seal import DamagedError
from chunkvisor_worker.contract.files import remove_folder

_BLOCK_TEXTS = 20_000
_PART_TEXTS = 1 << 20
"""Sorted at a time, about: 100 MB."""

Records = npt.NDArray[np.void]


def index_of(folder: Path, on_wait: Callable[[], None], elsewhere: Path | None = None) -> Path | None:
    """The index of the table in `folder`, made where there is none; None where its texts are not there any more.

    It is made in the folder, or as the file `elsewhere`, and then the folder is only read. Calls `on_wait` now and
    then; what that raises ends it. Raises OSError.
    """
    files = TableFiles(folder)
    if files.holds_index():
        return files.index
    partial = elsewhere or folder / "index.partial"
    scratch = partial.with_name(partial.name + ".parts")
    try:
        table = StagedTable.open(folder, only_read=elsewhere is not None)
        remove_folder(scratch)
        scratch.mkdir()
        _write(table, partial, scratch, on_wait)
    except DamagedError:
        return None
    finally:
        remove_folder(scratch)
    if elsewhere is not None:
        return elsewhere
    partial.replace(files.index)
    add_index(folder)
    return files.index


def _write(table: StagedTable, path: Path, scratch: Path, on_wait: Callable[[], None]) -> None:
    """Put the records by in parts of rising hashes, then sort part after part."""
    parts = min(BINS, -(-table.distinct // _PART_TEXTS))
    for block in _blocks(table):
        on_wait()
        part_of = (block["high"] >> np.uint64(56)).astype(np.int64) * parts // BINS
        for part in np.unique(part_of):
            with open(scratch / f"{part:03d}", "ab", buffering=0) as file:
                write_all(file.fileno(), block[part_of == part].tobytes())
    with open(path, "wb") as index:
        for part in range(parts):
            on_wait()
            with contextlib.suppress(FileNotFoundError):  # no hash is in it
                found = np.fromfile(scratch / f"{part:03d}", dtype=RECORD)
                index.write(found[np.lexsort((found["low"], found["high"]))].tobytes())
        index.flush()
        os.fsync(index.fileno())


def _blocks(table: StagedTable) -> Iterator[Records]:
    for start in range(0, table.distinct, _BLOCK_TEXTS):
        stop = min(start + _BLOCK_TEXTS, table.distinct)
        hashes = hashes_of([text.encode() for text in table.texts(start, stop)])
        yield records(hashes, table.first_row(start, stop))


_STRETCH_ROWS = 1 << 20
_MOST_STRETCHES = 256
_MATCH = np.dtype([("row", "<i8"), ("place", "<i4"), ("there", "<i8")])
_BLOCK = 1 << 18
"""Matches that are held at a time."""

Rows = npt.NDArray[np.int64]


class WhereWriter:
    """Of one table. Where several places have a text, the one that was added first keeps it."""

    def __init__(self, folder: Path, table: StagedTable) -> None:
        """`folder` is that of the plan, and is there."""
        self._folder = folder
        self._table = table
        self._stretch = max(_STRETCH_ROWS, -(-table.rows // _MOST_STRETCHES))

    def add(self, place: int, here: Rows, there: Rows) -> None:
        """Take in matches: first rows of texts in the table, and the rows of their vectors there. Raises OSError."""
        owners = (here // self._stretch).astype(np.uint16)  # of which numpy sorts small ones in one pass
        order = np.argsort(owners, kind="stable")
        found = np.empty(len(here), dtype=_MATCH)
        found["row"], found["place"], found["there"] = here[order], place, there[order]
        for owner, part in zip(*_parts(owners[order], found), strict=True):
            with open(self._put_by(owner), "ab", buffering=0) as file:
                write_all(file.fileno(), part.tobytes())

    def write(self) -> tuple[int, dict[int, int]]:
        """Write `where` and `encoded`: (texts that are encoded, texts taken of each place). Raises OSError."""
        files, taken = ReuseFiles(self._folder), dict[int, int]()
        seen = encoded = 0
        with (
            open(files.where, "wb") as where_file,
            open(files.encoded, "wb") as fresh_file,
        ):
            for number, first in enumerate(range(0, self._table.rows, self._stretch)):
                ids = self._table.row_text(first, min(first + self._stretch, self._table.rows))
                where = np.zeros(max(seen, int(ids.max()) + 1) - seen, dtype=WHERE)
                where["place"] = ENCODED
                for match in self._matches(number):
                    texts = ids[match["row"] - first] - seen
                    new = where["place"][texts] == ENCODED
                    if not new.all():
                        texts, match = texts[new], match[new]
                    # Of two of the same text, the last is assigned (numpy, "Assigning values to indexed arrays").
                    texts, match = texts[::-1], match[::-1]
                    where["place"][texts], where["row"][texts] = match["place"], match["there"]
                fresh = np.flatnonzero(where["place"] == ENCODED)
                where["row"][fresh] = np.arange(encoded, encoded + len(fresh))
                for place, count in enumerate(np.bincount(where["place"] - ENCODED).tolist(), ENCODED):
                    taken[place] = taken.get(place, 0) + count
                write_all(where_file.fileno(), where.tobytes())
                write_all(fresh_file.fileno(), (seen + fresh).astype("<i8").tobytes())
                seen, encoded = seen + len(where), encoded + len(fresh)
        return encoded, {place: count for place, count in taken.items() if count and place != ENCODED}

    def _matches(self, number: int) -> Iterator[npt.NDArray[np.void]]:
        path = self._put_by(number)
        if path.exists():
            with open(path, "rb") as file:
                while data := file.read(_BLOCK * _MATCH.itemsize):
                    yield np.frombuffer(data, dtype=_MATCH)
            path.unlink()

    def _put_by(self, number: int) -> Path:
        return self._folder / f"matches-{number:03d}.tmp"


def _parts(owners: npt.NDArray[Any], found: npt.NDArray[np.void]) -> tuple[list[int], list[npt.NDArray[np.void]]]:
    different, begins = np.unique(owners, return_index=True)
    return different.tolist(), np.split(found, begins[1:]) if len(found) else []
