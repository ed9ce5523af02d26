"""Copies vectors that may be gone by the time of the join, and reads them again."""

import errno
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chunkvisor.assemble.textvectors import RowReader
from chunkvisor.store.artifact import BLOCK_BYTES, BadVectorsError, Vectors, bad_rows, npy_header, read_shape
from chunkvisor.store.pickrows import pick_rows
from chunkvisor.store.reuse import WHERE, ReuseFiles, Where

_TEXTS_AT_ONCE = 1 << 18


class CopiedRows:
    """The copied vectors of a plan."""

    def __init__(self, path: Path) -> None:
        """Raises OSError; BadVectorsError where it is no such file."""
        with open(path, "rb") as file:
            shape = read_shape(file)
        self.dimension, self._offset_bytes, self._path = shape.dimension, shape.offset_bytes, path

    def read(self, rows: npt.NDArray[np.int64]) -> Vectors:
        """See RowReader."""
        found: Vectors = pick_rows(self._path, "<f4", self._offset_bytes, self.dimension, rows)
        return found


def copy_rows(folder: Path, readers: Mapping[int, RowReader], on_block: Callable[[], None]) -> None:
    """Copy what the plan in `folder` has in these places into one file, in the order of the texts, and point there.

    Whoever writes the plan syncs them. Raises OSError; EIO where a place has other rows without a vector than its
    record says.
    """
    files, count = ReuseFiles(folder), 0
    for where in _blocks(files.where):
        count += int(np.isin(where["place"], list(readers)).sum())
    if not count:
        return
    dimension = next(iter(readers.values())).dimension
    per_block, done = max(1, BLOCK_BYTES // (4 * dimension)), 0
    pointed = files.where.with_name("where.tmp")
    with open(files.copied, "wb") as copied, open(pointed, "wb") as out:
        copied.write(npy_header(count, dimension))
        for where in _blocks(files.where):
            hits = np.flatnonzero(np.isin(where["place"], list(readers)))
            for first in range(0, len(hits), per_block):
                some = hits[first : first + per_block]
                block = np.empty((len(some), dimension), dtype="<f4")
                for place in np.unique(where["place"][some]).tolist():
                    own = where["place"][some] == place
                    block[own] = readers[place].read(where["row"][some][own])
                if len(bad_rows(block)[0]):
                    raise OSError(errno.EIO, "it has other rows without a vector than its record says")
                copied.write(block.data)
                on_block()
            where["row"][hits] = np.arange(done, done + len(hits))
            done += len(hits)
            out.write(where.tobytes())
    pointed.replace(files.where)


def copied_rows(folder: Path) -> CopiedRows | None:
    """What a plan has copied; None where it is not what it should be, or nothing."""
    try:
        return CopiedRows(ReuseFiles(folder).copied)
    except (BadVectorsError, OSError):
        return None


def _blocks(path: Path) -> Iterator[Where]:
    with open(path, "rb") as file:
        while data := file.read(_TEXTS_AT_ONCE * WHERE.itemsize):
            yield np.frombuffer(data, dtype=WHERE).copy()
