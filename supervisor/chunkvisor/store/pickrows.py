"""Rows of a file by their numbers, from anywhere in it, in bounded memory.

Only files that nobody shortens meanwhile are read with it: a mapped file that shrinks kills its reader with SIGBUS
(mmap(2)).
"""

import itertools
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_WIDE_BYTES = 512
"""Rows of this size are read by a call for each run of neighbours: that takes less time than to map what is around."""

_LONG_RUN = 16
"""Rows: where runs of neighbours are as long on average, they are read by a call each, too."""

_DENSE = 2
"""Where no more than this many times the rows lie between the first and the last, all of these are read by a call."""

_WINDOW_BYTES = 16 << 20
"""Of the file that are mapped at a time: the kernel maps what is cached around a row as well, since Linux 6.18 whole
folios, which may be all of it."""

_FEW = 16
"""Rows in a window on average: for fewer, a call each takes less time than a mapping."""

_GAP_PAGES = 4
"""To read this number of pages that nobody wants costs the disk less than to be asked twice."""


def pick_rows(
    path: Path, dtype: str | np.dtype[Any], offset_bytes: int, width: int, rows: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    """Rows of `width` items each that begin at `offset_bytes`, by number, in that order; shape (len(rows), width).

    Raises OSError; ValueError where the file has no such row.
    """
    found = np.empty((len(rows), width), dtype=dtype)
    if not len(rows):
        return found
    first, last = int(rows.min()), int(rows.max())
    if first < 0:
        raise ValueError(f"there is no row {first}")
    if last - first < _DENSE * len(rows):
        return _between(path, offset_bytes, found, rows, first, last)
    order = np.argsort(rows, kind="stable")  # neighbours share a page
    with open(path, "rb") as file:
        runs, row_bytes = np.count_nonzero(np.diff(rows[order]) != 1) + 1, width * found.itemsize
        few = len(rows) * _WINDOW_BYTES < (last - first) * row_bytes * _FEW
        by_calls = row_bytes >= _WIDE_BYTES or runs * _LONG_RUN <= len(rows) or few
        read = _run_by_run if by_calls else _mapped
        read(file.fileno(), offset_bytes, found, order, rows)
    return found


def expect_rows(path: Path, offset_bytes: int, row_bytes: int, rows: npt.NDArray[np.int64]) -> None:
    """Have the kernel read rows that `pick_rows` will ask for: all at a time, where that waits for one by one.

    Raises OSError.
    """
    if not len(rows):
        return
    pages = np.unique((offset_bytes + rows * row_bytes) // mmap.PAGESIZE)
    starts = np.flatnonzero(np.diff(pages, prepend=-_GAP_PAGES - 1) > _GAP_PAGES)
    stops = np.append(starts[1:], len(pages)) - 1
    with open(path, "rb") as file:
        for first, last in zip(pages[starts].tolist(), pages[stops].tolist(), strict=True):
            size_bytes = (last - first + 1) * mmap.PAGESIZE + row_bytes
            os.posix_fadvise(file.fileno(), first * mmap.PAGESIZE, size_bytes, os.POSIX_FADV_WILLNEED)


def fill(fd: int, room: memoryview, offset: int) -> bool:
    """Fill the room of bytes from `offset` of the file on; False where the file ends before. Raises OSError.

    One call of preadv(2) gives at most 2 GiB, and may give less at any time.
    """
    while room.nbytes:
        count = os.preadv(fd, [room], offset)
        if not count:
            return False
        room, offset = room[count:], offset + count
    return True


def _between(
    path: Path, offset_bytes: int, found: npt.NDArray[Any], rows: npt.NDArray[np.int64], first: int, last: int
) -> npt.NDArray[Any]:
    row_bytes = found.shape[1] * found.itemsize
    there = np.empty((last - first + 1, found.shape[1]), dtype=found.dtype)
    with open(path, "rb") as file:
        if not fill(file.fileno(), there.reshape(-1).view(np.uint8).data, offset_bytes + first * row_bytes):
            raise ValueError(f"the number {last} is greater than that of the last row")
    if len(rows) == len(there) and bool((np.diff(rows) == 1).all()):
        return there
    np.take(there, rows - first, axis=0, out=found, mode="clip")
    return found


def _run_by_run(
    fd: int, offset_bytes: int, found: npt.NDArray[Any], order: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
) -> None:
    row_bytes = found.shape[1] * found.itemsize
    wanted = rows[order]
    begins = np.flatnonzero(np.diff(wanted, prepend=-2) != 1)
    for first, end in zip(begins.tolist(), [*begins[1:].tolist(), len(wanted)], strict=False):
        places = order[first:end]
        together = end - first == 1 or bool((np.diff(places) == 1).all())
        near = slice(int(places[0]), int(places[0]) + end - first)
        run = found[near] if together else np.empty((end - first, found.shape[1]), dtype=found.dtype)
        if not fill(fd, run.reshape(-1).view(np.uint8).data, offset_bytes + int(wanted[first]) * row_bytes):
            raise ValueError(f"the number {wanted[end - 1]} is greater than that of the last row")
        if not together:
            found[places] = run


def _mapped(
    fd: int, offset_bytes: int, found: npt.NDArray[Any], order: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
) -> None:
    width, row_bytes = found.shape[1], found.shape[1] * found.itemsize
    wanted = rows[order]
    ends = np.flatnonzero(np.diff(wanted // max(1, _WINDOW_BYTES // row_bytes))) + 1
    for first, end in itertools.pairwise([0, *ends.tolist(), len(wanted)]):
        near = wanted[first:end]
        count = int(near[-1] - near[0]) + 1
        page, within = divmod(offset_bytes + int(near[0]) * row_bytes, mmap.ALLOCATIONGRANULARITY)
        place = page * mmap.ALLOCATIONGRANULARITY
        # Raises ValueError where the file is shorter.
        with mmap.mmap(fd, within + count * row_bytes, access=mmap.ACCESS_READ, offset=place) as mapped:
            there = np.frombuffer(mapped, dtype=found.dtype, count=count * width, offset=within)
            found[order[first:end]] = there.reshape(count, width)[near - near[0]]
            del there  # what is still looked at cannot be given back
