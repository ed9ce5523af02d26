"""Verifies files of vectors: header, size, digest, finite, not zero; one block of a file is in memory at a time.

No file is mapped: a mapped file that shrinks kills its reader with SIGBUS (mmap(2)).
"""

import hashlib
import io
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from chunkvisor.store.layout import DIGEST_LENGTH

BLOCK_BYTES = 2 << 20
"""Vectors are read in blocks of about this size."""

FLOAT32 = "<f4"
"""The type of everything but some final files."""

Vectors = npt.NDArray[np.float32]


class Hash(Protocol):
    """What hashlib and xxhash have in common."""

    def update(self, data: memoryview, /) -> object:
        """Take in more."""

    def hexdigest(self) -> str:
        """Of all so far."""


class BadVectorsError(Exception):
    """The file is not the array it should be; the message says in which way.

    `rows` are the bad ones, where that can be listed; `other_dimension` says that it is the dimension.
    """

    def __init__(self, problem: str, rows: tuple[int, ...] = (), *, other_dimension: bool = False) -> None:
        super().__init__(problem)
        self.rows = rows
        self.other_dimension = other_dimension


@dataclass(frozen=True, slots=True)
class Shape:
    """What a header says."""

    rows: int
    dimension: int
    offset_bytes: int
    """Where the data begin."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found in a whole file."""

    shape: Shape
    digest: str
    """Of the file, hex, by the function asked for."""
    not_finite: list[int] = field(default_factory=list)
    """The first rows with a NaN or an infinity, at most MAX_LISTED."""
    not_finite_count: int = 0
    zero: list[int] = field(default_factory=list)
    """The first rows that are zero throughout, at most MAX_LISTED."""
    zero_count: int = 0


MAX_LISTED = 1000
"""Bad rows beyond this number are counted, not listed: memory stays bounded."""


def chunk_key(fingerprint: str, start: int, stop: int, file_digest: str) -> str:
    """The digest in a chunk's file name: binds the content to its run identity and to its place in the output.

    A chunk renamed to another number, or copied from another run, does not pass for this one. Files of vectors are
    checked by xxh3-128, which finds damage at the speed of memory; who could forge it can write into the folder anyway.
    """
    text = f"{fingerprint}:{start}:{stop}:{file_digest}"
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def read_shape(file: BinaryIO, dtype: str = FLOAT32) -> Shape:
    """Parse the header of an .npy file at its start and check the file's size against it.

    Raises BadVectorsError unless it is a 2-D, C-ordered array of that dtype, complete to the byte.
    """
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, fortran_order, found = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran_order, found = np.lib.format.read_array_header_2_0(file)
        else:
            raise BadVectorsError(f"format version {version} of .npy is not one that we write")
    # numpy parses the header with ast.literal_eval and names several kinds of nonsense by several exceptions
    except (ValueError, TypeError, SyntaxError, EOFError, RecursionError, MemoryError, TokenError) as error:
        raise BadVectorsError(f"not an .npy file: {error}") from None
    if found != (wanted_type := np.dtype(dtype)):
        raise BadVectorsError(f"holds {found}, not {wanted_type}")
    if len(shape) != 2 or fortran_order or any(type(size) is not int or size < 0 for size in shape):
        raise BadVectorsError(f"holds an array of shape {shape}, not rows x dimension in C order")
    rows, dimension = shape
    offset = file.tell()
    size, wanted = os.fstat(file.fileno()).st_size, offset + rows * dimension * wanted_type.itemsize
    if size != wanted:
        raise BadVectorsError(f"has {size:,} bytes where {rows:,} rows x {dimension:,} need {wanted:,}")
    if dimension == 0:
        raise BadVectorsError("has dimension 0")
    return Shape(rows, dimension, offset)


def npy_header(rows: int, dimension: int, dtype: str = FLOAT32) -> bytes:
    """The header of a final or chunk file; numpy pads it to a multiple of 64 bytes."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": (rows, dimension)})
    return buffer.getvalue()


def blocks(file: BinaryIO, shape: Shape, dtype: str = FLOAT32) -> Iterator[npt.NDArray[Any]]:
    """The vectors in blocks of at most BLOCK_BYTES (or one row), from the file's position on.

    Raises BadVectorsError where the file ends early: it was changed under our hands.
    """
    per_block = max(1, BLOCK_BYTES // (4 * shape.dimension))
    for first in range(0, shape.rows, per_block):
        block = np.empty((min(per_block, shape.rows - first), shape.dimension), dtype=dtype)
        read_exactly(file, block)
        yield block


def read_exactly(file: BinaryIO | io.FileIO, room: npt.NDArray[Any]) -> None:
    """Fill the room, which is contiguous, from the file's position on; raises as `blocks` does."""
    view = room.data.cast("B")
    while view.nbytes:
        count = file.readinto(view)  # type: ignore[union-attr]  # every raw and buffered file has it
        if not count:
            raise BadVectorsError("became shorter while it was read")
        view = view[count:]


def inspect(
    path: Path, digest_by: Callable[[bytes], Hash] = xxhash.xxh3_128, *, skip: Collection[int] = ()
) -> Inspection:
    """Read the whole file once; what the rows in `skip` hold does not matter. Raises BadVectorsError, OSError."""
    with open(path, "rb") as raw:
        shape = read_shape(raw)
        raw.seek(0)
        digest = digest_by(raw.read(shape.offset_bytes))
        not_finite: list[int] = []
        zero: list[int] = []
        not_finite_count = zero_count = first = 0
        for block in blocks(raw, shape):
            digest.update(block.data.cast("B"))
            bad, null = bad_rows(block)
            if skip:
                bad, null = (np.array([row for row in rows if first + int(row) not in skip]) for rows in (bad, null))
            not_finite_count += len(bad)
            zero_count += len(null)
            not_finite += [first + int(row) for row in bad[: MAX_LISTED - len(not_finite)]]
            zero += [first + int(row) for row in null[: MAX_LISTED - len(zero)]]
            first += len(block)
    return Inspection(shape, digest.hexdigest(), not_finite, not_finite_count, zero, zero_count)


def bad_rows(block: Vectors) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(rows with a NaN or an infinity, rows that are zero throughout), as positions in the block.

    A sum of squares is finite only if every element is; it overflows for elements above 1e19, which are looked at
    one by one.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        power = np.einsum("ij,ij->i", block, block)
    suspects = np.flatnonzero(~np.isfinite(power))
    not_finite = suspects[~np.isfinite(block[suspects]).all(axis=1)]
    faint = np.flatnonzero(power == 0)
    zero = faint[~block[faint].any(axis=1)]
    return not_finite, zero
