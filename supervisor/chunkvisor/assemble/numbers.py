"""The types of number that a final may have, and how a float32 vector becomes one of each.

Pure. int8 and ubinary are sentence-transformers' `quantize_embeddings`, bit by bit (its util/quantization.py, 6.2).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor.config.choices import FinalDtype
from chunkvisor.store.artifact import Vectors

Stored = npt.NDArray[Any]
"""Rows as they stand in a final, of shape (rows, `Numbers.width`)."""

Positions = npt.NDArray[np.int64]

_NUMPY = {FinalDtype.FLOAT32: "<f4", FinalDtype.FLOAT16: "<f2", FinalDtype.INT8: "|i1", FinalDtype.UBINARY: "|u1"}
_STEPS = 255


class TooLargeError(ValueError):
    """A number that the type cannot hold; `row` is its position in the block."""

    def __init__(self, row: int, value: float) -> None:
        super().__init__(f"{value:g} is more than float16 can hold")
        self.row = row


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of a final."""

    dtype: FinalDtype
    dimension: int
    """Of the vectors."""

    @property
    def numpy(self) -> str:
        """Name of their type, as numpy has it."""
        return _NUMPY[self.dtype]

    @property
    def width(self) -> int:
        """Numbers in a row: eight dimensions share a byte of ubinary, the last of which may be filled up by zeros."""
        return -(-self.dimension // 8) if self.dtype is FinalDtype.UBINARY else self.dimension

    @property
    def row_bytes(self) -> int:
        """Size of a row."""
        return self.width * np.dtype(self.numpy).itemsize

    @property
    def is_float(self) -> bool:
        """Whether a row without a vector can be NaN; it is zero in the others."""
        return self.dtype.is_float

    def of(self, block: Vectors, missing: Positions, ranges: Vectors | None) -> Stored:
        """The rows of the block; `missing` are those without a vector. int8 needs the ranges, shape (2, dimension).

        Raises TooLargeError.
        """
        match self.dtype:
            case FinalDtype.FLOAT32:
                return block
            case FinalDtype.FLOAT16:
                return _halves(block)
            case FinalDtype.INT8:
                assert ranges is not None
                stored = _int8(block, ranges)
            case FinalDtype.UBINARY:
                stored = np.packbits(block > 0, axis=-1)
        stored[missing] = 0
        return stored

    def back(self, stored: Stored, ranges: Vectors | None) -> Vectors:
        """What the rows stand for, about: the middle of each step of int8, the signs of ubinary (1 and -1)."""
        vectors: Vectors
        match self.dtype:
            case FinalDtype.INT8:
                assert ranges is not None
                vectors = ranges[0] + (stored.astype(np.float32) + np.float32(128.5)) * _steps(ranges)
            case FinalDtype.UBINARY:
                vectors = np.unpackbits(stored, axis=-1, count=self.dimension).astype(np.float32) * 2 - 1
            case _:
                vectors = stored.astype(np.float32, copy=False)
        return vectors


def _halves(block: Vectors) -> Stored:
    try:
        with np.errstate(over="raise"):
            return block.astype("<f2")
    except FloatingPointError:
        with np.errstate(over="ignore"):
            grown = np.isinf(block.astype("<f2")) & np.isfinite(block)
        row, column = (int(place) for place in np.argwhere(grown)[0])
        raise TooLargeError(row, float(block[row, column])) from None


def _int8(block: Vectors, ranges: Vectors) -> Stored:
    starts, steps = ranges[0], _steps(ranges)
    with np.errstate(invalid="ignore", over="ignore"):  # of rows without a vector, which become zero
        scaled: Vectors = np.subtract(block, starts)
        np.divide(scaled, steps, out=scaled)
        np.floor(scaled, out=scaled)
        np.clip(scaled, 0, _STEPS, out=scaled)
        np.subtract(scaled, 128, out=scaled)
        return scaled.astype(np.int8)


def _steps(ranges: Vectors) -> Vectors:
    steps = (ranges[1] - ranges[0]) / np.float32(_STEPS)
    return np.where(steps == 0, np.float32(1), steps)


class Ranges:
    """Least and greatest value of each dimension, of the rows that are taken in."""

    def __init__(self, dimension: int) -> None:
        self._values = np.empty((2, dimension), dtype=np.float32)
        self._values[0], self._values[1] = np.inf, -np.inf

    def take(self, block: Vectors, missing: Positions) -> None:
        """Take in a block of rows, but for those without a vector."""
        rows = np.delete(block, missing, axis=0) if len(missing) else block
        if len(rows):
            np.minimum(self._values[0], rows.min(axis=0), out=self._values[0])
            np.maximum(self._values[1], rows.max(axis=0), out=self._values[1])

    @property
    def values(self) -> Vectors:
        """float32, shape (2, dimension), as `quantize_embeddings` takes them; zeros where no row had a vector."""
        return self._values if np.isfinite(self._values).all() else np.zeros_like(self._values)
