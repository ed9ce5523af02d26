"""Writes which texts of a table have a vector elsewhere, and where, from matches that come in any order.

In bounded memory: matches are put by on disk, by the stretch of rows in which a text has its first, and sorted out
stretch by stretch.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor.sources.dedupe import write_all
from chunkvisor.sources.table import StagedTable
from chunkvisor.store.reuse import ENCODED, WHERE, ReuseFiles

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
