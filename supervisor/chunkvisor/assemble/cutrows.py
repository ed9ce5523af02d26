"""Vectors that are cut from others as they are read, by the arithmetic of the worker."""

import numpy as np
import numpy.typing as npt

from chunkvisor.assemble.textvectors import RowReader
from chunkvisor.decide.cut import Cut
from chunkvisor.store.artifact import BLOCK_BYTES, Vectors

_SHORTEST = 1e-12
"""A vector of less than this length is divided by it instead, as torch's `normalize` has it."""


class CutRows:
    """The rows of another reader, cut."""

    def __init__(self, rows: RowReader, cut: Cut) -> None:
        """Raises ValueError where the vectors are shorter than what is to be kept of them."""
        if cut.dimension is not None and cut.dimension > rows.dimension:
            raise ValueError(f"its vectors have {rows.dimension} numbers, and {cut.dimension} are wanted")
        self.dimension = rows.dimension if cut.dimension is None else cut.dimension
        self._rows = rows
        self._normalize = cut.normalize

    def read(self, rows: npt.NDArray[np.int64]) -> Vectors:
        """See RowReader. The uncut ones are read some at a time: they may be many times as long."""
        found = np.empty((len(rows), self.dimension), dtype="<f4")
        at_once = max(1, BLOCK_BYTES // (4 * self._rows.dimension))
        for first in range(0, len(rows), at_once):
            block = self._rows.read(rows[first : first + at_once])[:, : self.dimension]
            if self._normalize:
                block = block / np.maximum(np.linalg.norm(block, axis=1, keepdims=True), np.float32(_SHORTEST))
            found[first : first + at_once] = block
        return found


def cut_rows(rows: RowReader, cut: Cut) -> RowReader:
    """The rows as they are, or cut. Raises ValueError as `CutRows`."""
    return CutRows(rows, cut) if cut else rows
