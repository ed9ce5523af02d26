"""Finals as .npy: one array of shape (rows, width), its size known before the first row is written."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from chunkvisor.assemble.checkedfile import CheckedFile
from chunkvisor.assemble.numbers import Numbers, Positions, Stored
from chunkvisor.store.artifact import BadVectorsError, Hash, bad_rows, blocks, npy_header, read_shape


class NpyWriter:
    """One new file, as a context."""

    def __init__(self, path: Path, rows: int, numbers: Numbers) -> None:
        """Reserve the space of all rows. Raises OSError."""
        header = npy_header(rows, numbers.width, numbers.numpy)
        with contextlib.ExitStack() as stack:
            self._file = stack.enter_context(CheckedFile(path, len(header) + rows * numbers.row_bytes))
            self._file.write(header)
            self._open = stack.pop_all()

    def __enter__(self) -> "NpyWriter":
        return self

    def __exit__(self, *error: object) -> None:
        """Close it, complete or not."""
        self._open.close()

    def write(self, rows: Stored, missing: Positions) -> None:  # noqa: ARG002 - they are NaN or zero already
        """Append rows. Raises OSError."""
        self._file.write(np.ascontiguousarray(rows).data)

    def finish(self) -> str:
        """The sha256 of the complete file, which has been read back. Raises OSError."""
        return self._file.finish()


def create(path: Path, rows: int, numbers: Numbers, first_row: int, rows_table: Path | None) -> NpyWriter:  # noqa: ARG001 - a row is its place, and columns lie beside it
    """See `formats.Format`."""
    return NpyWriter(path, rows, numbers)


def read(path: Path, rows: int, numbers: Numbers, digest: Hash | None) -> Iterator[tuple[Stored, Positions | None]]:
    """See `formats.Format`; of numbers that have no NaN it cannot be told which rows have no vector."""
    with open(path, "rb") as file:
        shape = read_shape(file, numbers.numpy)
        if (shape.rows, shape.dimension) != (rows, numbers.width):
            there, said = f"{shape.rows} x {shape.dimension}", f"{rows} x {numbers.width}"
            raise BadVectorsError(f"has {there}, its manifest says {said}")
        if digest is not None:
            file.seek(0)
            digest.update(memoryview(file.read(shape.offset_bytes)))
        for block in blocks(file, shape, numbers.numpy):
            if digest is not None:
                digest.update(block.data.cast("B"))
            yield block, bad_rows(block)[0] if numbers.is_float else None
