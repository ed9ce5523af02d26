"""Reads vectors of a state that was given up before it had a final file: from its chunks and what it had copied."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from chunkvisor.store.artifact import BadVectorsError, Vectors, chunk_key, inspect, npy_header
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.ledger import Ledger
from chunkvisor.store.pickrows import pick_rows
from chunkvisor.store.reuse import ENCODED, PlaceKind, Reuse, ReuseFiles

Rows = npt.NDArray[np.int64]


class CommittedRows:
    """Vectors by a number of our own: the text's among those encoded, or, after these, its row in the copied file."""

    def __init__(self, layout: OutputLayout, ledger: Ledger, reuse: Reuse | None) -> None:
        """`ledger` is loaded."""
        assert ledger.facts is not None
        self.dimension = ledger.facts.dimension
        self._plan = ledger.plan
        self._bad = np.fromiter(ledger.bad, dtype=np.int64)
        self._reuse = reuse
        self._copied = ReuseFiles(layout.reuse).copied
        self._files: dict[int, Path] = {}
        for chunk, path in ledger.chunk_files():
            if _is_whole(path, ledger, chunk):
                self._files[chunk] = path

    @property
    def empty(self) -> bool:
        """Whether there is nothing."""
        return not self._files and not self._copied.exists()

    def numbers_of(self, texts: Rows) -> Rows:
        """Our numbers of the texts of that state; -1 for those that have no vector here. Raises OSError."""
        if self._reuse is None:
            return np.where(self._committed(texts), texts, -1)
        where = self._reuse.where_of(texts)
        place, row = where["place"], where["row"]
        copies = [number for number, each in enumerate(self._reuse.places) if each.kind is PlaceKind.COPY]
        there = np.where((place == ENCODED) & self._committed(row), row, -1)
        return np.where(np.isin(place, copies), self._plan.distinct + row, there)

    def read(self, numbers: Rows) -> Vectors:
        """Those vectors, in that order. Raises OSError, ValueError."""
        found = np.empty((len(numbers), self.dimension), dtype="<f4")
        chunks = np.where(numbers < self._plan.distinct, numbers // self._plan.chunk_size, -1)
        for chunk in np.unique(chunks).tolist():
            hits = chunks == chunk
            if chunk < 0:
                path, first, rows = self._copied, self._plan.distinct, _rows_of(self._copied, self.dimension)
            else:
                path, first, rows = self._files[chunk], self._plan.bounds(chunk)[0], self._plan.size(chunk)
            header_bytes = len(npy_header(rows, self.dimension))
            found[hits] = pick_rows(path, "<f4", header_bytes, self.dimension, numbers[hits] - first)
        return found

    def _committed(self, numbers: Rows) -> npt.NDArray[np.bool_]:
        own = np.isin(numbers // self._plan.chunk_size, np.fromiter(self._files, dtype=np.int64))
        return own & ~np.isin(numbers, self._bad)


def _is_whole(path: Path, ledger: Ledger, chunk: int) -> bool:
    try:
        found = inspect(path)
    except (BadVectorsError, OSError):
        return False
    key = chunk_key(ledger.fingerprint, *ledger.plan.bounds(chunk), found.digest)
    return path.name.endswith(f"-{key}.npy")


def _rows_of(path: Path, dimension: int) -> int:
    return (path.stat().st_size - len(npy_header(1, dimension))) // (4 * dimension)
