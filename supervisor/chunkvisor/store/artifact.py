"""Reads .npy files of vectors in bounded memory: whole, with all checks, or chosen rows.

No file is mapped into memory: a mapped file that shrinks kills its reader with SIGBUS (mmap(2)).
"""

import hashlib
import io
import itertools
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from chunkvisor.store.layout import DIGEST_LENGTH
from chunkvisor.store.records import DamagedError
from chunkvisor_worker.contract.files import open_regular
from chunkvisor_worker.contract.frozen import frozen

BLOCK_BYTES = 2 << 20
"""Vectors are read in blocks of about this size."""

FLOAT32 = "<f4"
"""The type of the numbers in every file of vectors except some final files."""

# Rows that are no farther apart than this are read by one call, with what lies between them: that
# costs less than another call. One call reads no more than a span.
_GAP_BYTES = 16 << 10
_SPAN_BYTES = 4 << 20

Vectors = npt.NDArray[np.float32]
"""Of shape (rows, dimension)."""
Numbers = npt.NDArray[np.int64]
"""Numbers of rows or of texts, from 0."""


class BadVectorsError(Exception):
    """A file is not the array that it should be; the message says how it differs."""


@frozen
class Shape:
    """What the header of an .npy file says."""

    rows: int
    dimension: int
    offset_bytes: int
    """Where the data begin."""


@frozen
class Inspection:
    """What was found in a whole file."""

    shape: Shape
    digest: str
    """Of the file: xxh3-128, hex."""
    not_finite: Numbers
    """Rows with a NaN or an infinity."""
    zero: Numbers
    """Rows that are zero throughout."""


def chunk_key(fingerprint: str, start: int, stop: int, file_digest: str) -> str:
    """Return the digest in the name of the file of texts start..stop: 32 hex digits.

    It is made of the content, of the output's identity and of the texts' numbers: a chunk file that
    was damaged, renamed to another number or copied from another run does not match its name.
    `file_digest` is the xxh3-128 of the file, which is computed as fast as memory is read.
    """
    text = f"{fingerprint}:{start}:{stop}:{file_digest}"
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def npy_header(rows: int, dimension: int, dtype: str = FLOAT32) -> bytes:
    """Return the header of an .npy file; numpy pads it to a multiple of 64 bytes."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": dtype, "fortran_order": False, "shape": (rows, dimension)}
    )
    return buffer.getvalue()


HEADER_BYTES = len(npy_header(1, 1))
"""Size of the header of every .npy file of ours: numpy pads it to this length."""


def read_shape(file: BinaryIO, dtype: str = FLOAT32) -> Shape:
    """Parse the header of an .npy file at its start and check the file's size against it.

    Raises BadVectorsError unless it is a 2-D, C-ordered array of that dtype, complete to the byte.
    """
    try:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise BadVectorsError(f"format version {version} of .npy is not one that we write")
        shape, fortran_order, found = np.lib.format.read_array_header_1_0(file)
    # numpy parses the header by ast.literal_eval, which raises any of these if it is damaged.
    except (
        ValueError,
        TypeError,
        SyntaxError,
        EOFError,
        RecursionError,
        MemoryError,
        TokenError,
    ) as error:
        raise BadVectorsError(f"not an .npy file: {error}") from None
    wanted_type = np.dtype(dtype)
    if found != wanted_type:
        raise BadVectorsError(f"holds {found}, not {wanted_type}")
    if len(shape) != 2 or fortran_order or any(type(size) is not int or size < 0 for size in shape):
        raise BadVectorsError(f"holds an array of shape {shape}, not rows x dimension in C order")
    rows, dimension = shape
    offset = file.tell()
    size = os.fstat(file.fileno()).st_size
    wanted = offset + rows * dimension * wanted_type.itemsize
    if size != wanted:
        raise BadVectorsError(
            f"has {size:,} bytes where {rows:,} rows x {dimension:,} need {wanted:,}"
        )
    if dimension == 0:
        raise BadVectorsError("has dimension 0")
    return Shape(rows, dimension, offset)


def blocks(file: BinaryIO, shape: Shape, dtype: str = FLOAT32) -> Iterator[npt.NDArray[Any]]:
    """Give the vectors in blocks of at most BLOCK_BYTES or one row, from the file's position on.

    Raises BadVectorsError if the file ends early: it was changed while it was read.
    """
    per_block = max(1, BLOCK_BYTES // (4 * shape.dimension))
    at = file.tell()
    for first in range(0, shape.rows, per_block):
        block = np.empty((min(per_block, shape.rows - first), shape.dimension), dtype=dtype)
        if not read_exactly(file.fileno(), block.data.cast("B"), at):
            raise BadVectorsError("became shorter while it was read")
        at += block.nbytes
        yield block


def inspect(path: Path, *, skip: Collection[int] = ()) -> Inspection:
    """Read the whole file once, and find its bad rows, except those in `skip`.

    Raises BadVectorsError, OSError.
    """
    with open(path, "rb", opener=open_regular) as raw:
        shape = read_shape(raw)
        raw.seek(0)
        digest = xxhash.xxh3_128(raw.read(shape.offset_bytes))
        found = [(np.empty(0, dtype=np.int64),) * 2]
        first = 0
        for block in blocks(raw, shape):
            digest.update(block.data.cast("B"))
            not_finite, zero = bad_rows(block)
            found.append((first + not_finite, first + zero))
            first += len(block)
    not_finite, zero = (
        np.setdiff1d(np.concatenate(rows), list(skip)) for rows in zip(*found, strict=True)
    )
    return Inspection(shape, digest.hexdigest(), not_finite, zero)


def bad_rows(block: Vectors) -> tuple[Numbers, Numbers]:
    """Return the positions of rows with NaN or infinity, and of rows that are all zero."""
    return np.flatnonzero(~np.isfinite(block).all(axis=1)), np.flatnonzero(~block.any(axis=1))


def pick_rows(
    path: Path,
    dtype: str | np.dtype[Any],
    offset_bytes: int,
    width: int,
    rows: Numbers,
) -> npt.NDArray[Any]:
    """Read the `rows` with these numbers, in that order; shape (len(rows), width).

    The file has rows of `width` items of `dtype`, the first at `offset_bytes`. Raises OSError;
    ValueError if the file has no such row.
    """
    found = np.empty((len(rows), width), dtype=dtype)
    row_bytes = width * found.itemsize
    order = np.argsort(rows, kind="stable")
    wanted = rows[order]
    with open(path, "rb", opener=open_regular) as file:
        for first, end in _spans(wanted, row_bytes):
            start = int(wanted[first])
            last = int(wanted[end - 1])
            there = np.empty((last - start + 1, width), found.dtype)
            at = offset_bytes + start * row_bytes
            if start < 0 or not read_exactly(
                file.fileno(), there.reshape(-1).view(np.uint8).data, at
            ):
                raise ValueError(f"there are no rows {start} to {last}")
            found[order[first:end]] = there[wanted[first:end] - start]
    return found


def pick_numbers(path: Path, positions: Numbers, dtype: str = "<i8") -> Numbers:
    """Read the items at these positions of a file that holds one integer for each row or text.

    Raises DamagedError if the file ends before one of them, OSError.
    """
    try:
        return pick_rows(path, dtype, 0, 1, positions)[:, 0].astype(np.int64, copy=False)
    except ValueError as error:
        raise DamagedError(f"{path}: {error}") from error


def read_exactly(fd: int, room: memoryview, offset: int) -> bool:
    """Fill `room` with the bytes of the file from `offset` on; False if the file ends before.

    Raises OSError.
    """
    while room.nbytes:
        count = os.preadv(fd, [room], offset)  # at most 2 GiB a call, and possibly less (preadv(2))
        if not count:
            return False
        room = room[count:]
        offset += count
    return True


def _spans(wanted: Numbers, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Split sorted rows into ranges (first, end) of their positions; one call reads each."""
    if len(wanted):
        far = np.diff(wanted) * row_bytes > _GAP_BYTES + row_bytes
        full = np.diff(wanted // max(1, _SPAN_BYTES // row_bytes)) > 0
        yield from itertools.pairwise([0, *(np.flatnonzero(far | full) + 1).tolist(), len(wanted)])
