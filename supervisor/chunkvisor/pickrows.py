"""Rows of a file by their numbers, from anywhere in it, in bounded memory.

It never keeps a file mapped, and never writes: only files that nobody shortens meanwhile are read with it, since a
mapped file that shrinks kills its reader with SIGBUS (mmap(2)).
"""

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_GROUP = 512
"""Rows a mapping. Each may bring in 64 KiB: the kernel maps what is cached around it (fault_around_bytes)."""


def pick_rows(path: Path, dtype: str, offset_bytes: int, width: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Rows of `width` items each that begin at `offset_bytes`, by number, in that order; shape (len(rows), width).

    Raises OSError; ValueError where the file has no such row.
    """
    found = np.empty((len(rows), width), dtype=dtype)
    order = np.argsort(rows, kind="stable")  # neighbours share a page
    row_bytes = width * found.itemsize
    with open(path, "rb") as file:
        for first in range(0, len(rows), _GROUP):
            group = order[first : first + _GROUP]
            wanted = rows[group]
            count = int(wanted[-1]) + 1
            with mmap.mmap(file.fileno(), offset_bytes + count * row_bytes, access=mmap.ACCESS_READ) as mapped:
                there = np.frombuffer(mapped, dtype=dtype, count=count * width, offset=offset_bytes)
                found[group] = there.reshape(count, width)[wanted]
                del there  # what is still looked at cannot be given back
    return found
