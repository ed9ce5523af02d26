"""Writes the rows of a final in order, into one file or shards, and publishes all by one rename once verified."""

import contextlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from chunkvisor.assemble.checkedfile import CheckedFile
from chunkvisor.assemble.finalfiles import FinalPart, is_ours, mark_of, partial_of, parts_of, place_of, remove_final
from chunkvisor.store.artifact import Vectors, bad_rows, npy_header
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.pickrows import expect_rows, pick_rows
from chunkvisor.store.seal import write_sealed
from chunkvisor.store.stamp import Stamp, stamp_as
from chunkvisor_worker.contract.files import RESULT, set_aside, sync_folder, umask


def clear_partial(layout: OutputLayout) -> None:
    """Remove what was begun of a final, in either form: its whole size is reserved. Raises OSError."""
    set_aside(layout.partial)
    remove_final(layout.partial)
    if layout.partial_shards.is_dir():
        remove_final(layout.partial_shards)


class FinalWriter:
    """A final under its partial name, as a context."""

    def __init__(self, layout: OutputLayout, rows: int, dimension: int, shards: int | None) -> None:
        """For an array of shape (rows, dimension), in `shards` files; None = one file."""
        self.zero_rows = 0
        """Rows so far that are zero throughout."""
        self._layout = layout
        self._rows = rows
        self._dimension = dimension
        self._shards = shards
        self._partial = partial_of(layout, shards)
        self._parts = parts_of(self._partial, rows, shards)
        self._starts = np.array([part.start for part in self._parts])
        self._digests: list[str] = []
        self._open = contextlib.ExitStack()
        self._file: CheckedFile | None = None
        self._left = 0

    def __enter__(self) -> "FinalWriter":
        """Clear the place, also of what was begun in the other form. Raises OSError."""
        clear_partial(self._layout)
        if self._shards is not None:
            set_aside(self._partial, files_too=True)
            self._partial.mkdir(mode=0o700)
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        """Close what is open; what is not complete goes, so that nobody waits for the space that it takes."""
        self._open.close()
        if kind is not None:
            with contextlib.suppress(OSError):
                clear_partial(self._layout)

    def write(self, block: Vectors) -> npt.NDArray[np.int64]:
        """Append rows; returns which of the block's have a NaN or an infinity.

        Raises OSError; EIO where a file does not hold what was written to it.
        """
        not_finite, zero = bad_rows(block)
        self.zero_rows += len(zero)
        while len(block):
            if self._file is None:
                self._file = self._begin(self._parts[len(self._digests)])
            fitting = block[: self._left]
            self._file.write(np.ascontiguousarray(fitting).data)
            block, self._left = block[len(fitting) :], self._left - len(fitting)
            if not self._left:
                self._digests.append(self._file.finish())
                self._open.close()
                self._file = None
        return not_finite

    def read(self, rows: npt.NDArray[np.int64]) -> Vectors:
        """Rows that are written already, by number, in that order. Raises OSError."""
        found = np.empty((len(rows), self._dimension), dtype="<f4")
        for part, offset_bytes, hits in self._owners(rows):
            found[hits] = pick_rows(part.path, "<f4", offset_bytes, self._dimension, rows[hits] - part.start)
        return found

    def expect(self, rows: npt.NDArray[np.int64]) -> None:
        """Have rows that are written already be in memory when they are read. Raises OSError."""
        for part, offset_bytes, hits in self._owners(rows):
            expect_rows(part.path, offset_bytes, 4 * self._dimension, rows[hits] - part.start)

    def _owners(self, rows: npt.NDArray[np.int64]) -> Iterator[tuple[FinalPart, int, npt.NDArray[np.bool_]]]:
        """Each file that has some of the rows, where its rows begin in it, and which of them it has."""
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        for owner in np.unique(owners):
            part = self._parts[owner]
            yield part, len(npy_header(part.rows, self._dimension)), owners == owner

    def publish(self) -> tuple[Stamp, ...]:
        """Give what is complete its final name; returns a stamp for each file. Raises OSError.

        A final of ours without a manifest, as a kill or `retry` leaves it, is replaced; anything else that stands at
        that place is set aside.
        """
        assert len(self._digests) == len(self._parts)
        if self._shards is not None:
            sync_folder(self._partial)
        place = place_of(self._layout, self._shards)
        self._share()
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

    def _share(self) -> None:
        """Results are for others to read, as far as the umask lets them; until they are complete they are not."""
        for part in self._parts:
            part.path.chmod(RESULT & ~umask())
        if self._shards is not None:
            self._partial.chmod(0o777 & ~umask())

    def _begin(self, part: FinalPart) -> CheckedFile:
        header = npy_header(part.rows, self._dimension)
        file = self._open.enter_context(CheckedFile(part.path, len(header) + 4 * part.rows * self._dimension))
        file.write(header)
        self._left = part.rows
        return file
