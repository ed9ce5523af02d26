"""Writes the rows of a final in order, whatever the number of its files, and publishes all of them by one rename.

It never shows a file before all are complete and verified, and never holds more than the block it is given.
"""

import errno
import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from chunkvisor.artifact import BadVectorsError, Vectors, inspect, npy_header
from chunkvisor.digests import Digest
from chunkvisor.finalfiles import FinalPart, is_ours, mark_of, partial_of, parts_of, place_of, remove_final
from chunkvisor.layout import OutputLayout
from chunkvisor.pickrows import pick_rows
from chunkvisor.seal import write_sealed
from chunkvisor.stamp import Stamp, stamp_as
from chunkvisor_worker.contract.files import set_aside, sync_folder


class FinalWriter:
    """A final under its partial name, as a context."""

    def __init__(self, layout: OutputLayout, rows: int, dimension: int, shards: int | None) -> None:
        """For an array of shape (rows, dimension), in so many shards; None = one file."""
        self._layout = layout
        self._rows = rows
        self._dimension = dimension
        self._shards = shards
        self._partial = partial_of(layout, shards)
        self._parts = parts_of(self._partial, rows, shards)
        self._starts = np.array([part.start for part in self._parts])
        self._digests: list[str] = []
        # One thread for the digest of what is written, and one for whoever reads what is to be written.
        self.pool = ThreadPoolExecutor(2, thread_name_prefix="digest")
        """For digests while the files are written and verified."""
        self._hash = Digest(self.pool)
        self._file: io.FileIO | None = None
        self._left = 0

    def __enter__(self) -> "FinalWriter":
        """Clear the place, also of what was begun in the other form. Raises OSError."""
        set_aside(self._layout.partial)
        remove_final(self._layout.partial)
        if self._layout.partial_shards.is_dir():
            remove_final(self._layout.partial_shards)
        if self._shards is not None:
            set_aside(self._partial, files_too=True)
            self._partial.mkdir(mode=0o700)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close what is open; what was written stays until the next attempt replaces it."""
        self.pool.shutdown()
        if self._file is not None:
            self._file.close()
            self._file = None

    def write(self, block: Vectors) -> None:
        """Append rows. Raises OSError."""
        while len(block):
            if self._file is None:
                self._file = self._begin(self._parts[len(self._digests)])
            data = np.ascontiguousarray(block[: self._left]).data.cast("B")
            self._hash.update(data)
            _write(self._file, data)
            written = min(self._left, len(block))
            block, self._left = block[written:], self._left - written
            if not self._left:
                os.fsync(self._file.fileno())
                self._file.close()
                self._file = None
                self._digests.append(self._hash.hexdigest())

    def read(self, rows: npt.NDArray[np.int64]) -> Vectors:
        """Rows that are written already, by number, in that order."""
        found = np.empty((len(rows), self._dimension), dtype="<f4")
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        for owner in np.unique(owners):
            part, hits = self._parts[owner], owners == owner
            header_bytes = len(npy_header(part.rows, self._dimension))
            found[hits] = pick_rows(part.path, "<f4", header_bytes, self._dimension, rows[hits] - part.start)
        return found

    def verify(self, nan_rows: int, on_block: Callable[[], None]) -> int:
        """Read everything once more; returns the number of rows that are zero throughout.

        Raises OSError (EIO) where the files do not hold what was written; what `on_block` raises.
        """
        not_finite = zero = 0
        for part, digest in zip(self._parts, self._digests, strict=True):
            try:
                found = inspect(part.path, on_block=on_block, pool=self.pool)
            except BadVectorsError:
                raise _unlike(part.path) from None
            if found.digest != digest:
                raise _unlike(part.path)
            not_finite, zero = not_finite + found.not_finite_count, zero + found.zero_count
        if not_finite != nan_rows:
            raise _unlike(self._partial)
        return zero

    def publish(self) -> tuple[Stamp, ...]:
        """Give all that is verified its final name; returns a stamp for each file. Raises OSError.

        A final of ours without a manifest, as a kill or `retry` leaves it, is replaced; anything else that stands at
        that place is set aside.
        """
        if self._shards is not None:
            sync_folder(self._partial)
        place = place_of(self._layout, self._shards)
        marks = [mark_of(self._partial)]
        if is_ours(self._layout, place):
            marks.append(mark_of(place))
        # Before the rename: whoever finds the file after a kill knows it by this.
        write_sealed(self._layout.published, {"marks": marks})
        if len(marks) == 1:
            set_aside(place, files_too=True)
        elif self._shards is not None:
            remove_final(place)  # no rename replaces a folder that is not empty
        self._partial.replace(place)
        sync_folder(self._layout.workdir)
        parts = parts_of(place, self._rows, self._shards)
        return tuple(stamp_as(part.path, digest) for part, digest in zip(parts, self._digests, strict=True))

    def _begin(self, part: FinalPart) -> io.FileIO:
        header = npy_header(part.rows, self._dimension)
        file = open(part.path, "w+b", buffering=0, opener=_private)  # noqa: SIM115 - closed when it is full
        try:
            os.posix_fallocate(file.fileno(), 0, len(header) + 4 * part.rows * self._dimension)
            _write(file, header)
        except BaseException:
            file.close()
            raise
        self._hash, self._left = Digest(self.pool, header), part.rows
        return file


def _unlike(path: Path) -> OSError:
    return OSError(errno.EIO, "it does not hold what was written to it", str(path))


def _write(file: io.FileIO, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view.nbytes:
        view = view[file.write(view) :]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
