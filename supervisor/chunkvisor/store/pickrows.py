"""Rows of a file by their numbers, from anywhere in it, in bounded memory."""

import itertools
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor_worker.contract.files import open_regular

_NEAR_BYTES = 32 << 10
"""To read as much that nobody wants takes less time than another call."""

_ROOM_BYTES = 1 << 20
"""So much is read by a call, at most."""

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
    order = np.argsort(rows, kind="stable") if bool((np.diff(rows) < 0).any()) else np.arange(len(rows))
    wanted, row_bytes = rows[order], width * found.itemsize
    if wanted[0] < 0:
        raise ValueError(f"there is no row {wanted[0]}")
    per_call = max(1, _ROOM_BYTES // row_bytes)
    apart = (np.diff(wanted) * row_bytes > _NEAR_BYTES) | (np.diff(wanted // per_call) != 0)
    bounds = [0, *(np.flatnonzero(apart) + 1).tolist(), len(wanted)]
    room = np.empty((per_call, width), dtype=found.dtype)
    with open_regular(path) as file:
        for first, end in itertools.pairwise(bounds):
            run, places = wanted[first:end], order[first:end]
            # Neighbours that are wanted one behind the other are read to where they belong.
            direct = bool((np.diff(run) == 1).all() and (np.diff(places) == 1).all())
            there = found[int(places[0]) :][: end - first] if direct else room[: int(run[-1] - run[0]) + 1]
            if not fill(file.fileno(), there.reshape(-1).view(np.uint8).data, offset_bytes + int(run[0]) * row_bytes):
                raise ValueError(f"the number {run[-1]} is greater than that of the last row")
            if not direct:
                found[places] = there[run - run[0]]
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
    with open_regular(path) as file:
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
