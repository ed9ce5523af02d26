"""Writes the rows of a final in order, into one file or shards, and publishes all by one rename once verified."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chunkvisor.assemble.form import (
    FinalPart,
    Form,
    all_partials,
    all_places,
    is_ours,
    mark_of,
    partial_of,
    parts_of,
    place_of,
    remove_final,
)
from chunkvisor.assemble.formats import FORMATS, PartWriter
from chunkvisor.assemble.numbers import Numbers, Positions, Stored
from chunkvisor.assemble.sides import find_rows_table
from chunkvisor.store.artifact import npy_header
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.pickrows import expect_rows, pick_rows
from chunkvisor.store.records import Stamp, stamp_as, write_sealed
from chunkvisor_worker.contract.files import set_aside, sync_folder


def clear_partial(layout: OutputLayout) -> None:
    """Remove what was begun of a final, in whatever form: its whole size is reserved. Raises OSError."""
    for path in all_partials(layout):
        remove_final(path)


def remove_replaced(hidden: Path, place: Path) -> None:
    """Remove what was replaced; what somebody has put among the shards is kept beside them. Raises OSError."""
    remove_final(hidden)
    if os.path.lexists(hidden):
        kept = place.with_name(f"{place.name}.before")
        set_aside(kept)
        hidden.replace(kept)


class FinalWriter:
    """A final under its partial name, as a context; the place is to be cleared before."""

    def __init__(
        self, layout: OutputLayout, rows: int, dimension: int, form: Form, partial: Path | None = None
    ) -> None:
        """For that number of vectors; with `partial` they are written there, and are not to be published."""
        self.numbers = Numbers(form.dtype, dimension)
        self._layout = layout
        self._rows = rows
        self._form = form
        self._partial = partial or partial_of(layout, form)
        self._parts = parts_of(self._partial, rows, form)
        self._starts = np.array([part.start for part in self._parts])
        self._rows_table = None if form.carried is None else find_rows_table(layout, form.carried)
        if form.carried is not None and not form.has_rows_table and self._rows_table is None:
            raise FileNotFoundError(errno.ENOENT, "the columns to carry along are gone", str(layout.table))
        self._digests: list[str] = []
        self._open = contextlib.ExitStack()
        self._file: PartWriter | None = None
        self._left = 0

    def __enter__(self) -> "FinalWriter":
        """Make the folder of shards. Raises OSError."""
        if self._form.shards is not None:
            self._partial.mkdir()
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        """Close what is open; what is not complete goes, so that nobody waits for the space that it takes."""
        self._open.close()
        if kind is not None:
            with contextlib.suppress(OSError):
                clear_partial(self._layout)

    def write(self, block: Stored, missing: Positions) -> None:
        """Append rows; `missing` are the positions of those without a vector.

        Raises OSError; EIO where a file does not hold what was written to it.
        """
        while len(block):
            if self._file is None:
                self._file = self._begin(self._parts[len(self._digests)])
            count = min(self._left, len(block))
            self._file.write(block[:count], missing[missing < count])
            block, missing, self._left = block[count:], missing[missing >= count] - count, self._left - count
            if not self._left:
                self._digests.append(self._file.finish())
                self._open.close()
                self._file = None

    def read(self, rows: Positions) -> Stored:
        """Rows that are written already, by number, in that order; of an array only. Raises OSError."""
        found = np.empty((len(rows), self.numbers.width), dtype=self.numbers.numpy)
        for part, offset_bytes, hits in self._owners(rows):
            found[hits] = pick_rows(part.path, found.dtype.str, offset_bytes, found.shape[1], rows[hits] - part.start)
        return found

    def expect(self, rows: Positions) -> None:
        """Have rows that are written already be in memory when they are read. Raises OSError."""
        for part, offset_bytes, hits in self._owners(rows):
            expect_rows(part.path, offset_bytes, self.numbers.row_bytes, rows[hits] - part.start)

    def _owners(self, rows: Positions) -> Iterator[tuple[FinalPart, int, npt.NDArray[np.bool_]]]:
        """Each file that has some of the rows, where its rows begin in it, and which of them it has."""
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        for owner in np.unique(owners):
            part = self._parts[owner]
            yield part, len(npy_header(part.rows, self.numbers.width, self.numbers.numpy)), owners == owner

    @property
    def complete(self) -> bool:
        """Whether all rows are written, and read back."""
        return len(self._digests) == len(self._parts)

    def stamps(self) -> tuple[Stamp, ...]:
        """A stamp for each file of what is complete, before it has its final name. Raises OSError."""
        assert self.complete
        return tuple(stamp_as(part.path, digest) for part, digest in zip(self._parts, self._digests, strict=True))

    def publish(self) -> tuple[Stamp, ...]:
        """Give what is complete its final name; returns a stamp for each file. Raises OSError.

        The name is on the disk once the manifest's is, which follows.
        A final of ours without a manifest, as a kill or `retry` leaves it, is replaced; anything else that stands at
        that place is set aside. A final of ours of another form, in another place, goes.
        """
        assert self.complete
        if self._form.shards is not None:
            sync_folder(self._partial)
        place = place_of(self._layout, self._form)
        marks = [mark_of(self._partial)]
        if is_ours(self._layout, place):
            marks.append(mark_of(place))
        others = [other for other in all_places(self._layout) if other != place and is_ours(self._layout, other)]
        # Before the rename: whoever finds the file after a kill knows it by this.
        write_sealed(self._layout.published, {"marks": marks})
        hidden = self._layout.replaced(place)
        in_the_way = len(marks) == 2 and self._form.shards is not None
        if len(marks) == 1:
            set_aside(place)
        elif in_the_way:
            place.replace(hidden)  # no rename replaces a folder that is not empty
        self._partial.replace(place)
        if others or in_the_way:
            sync_folder(self._layout.workdir)  # the new one is there before another form of it goes
        if in_the_way:
            remove_replaced(hidden, place)
        for other in others:
            remove_final(other)
        parts = parts_of(place, self._rows, self._form)
        return tuple(stamp_as(part.path, digest) for part, digest in zip(parts, self._digests, strict=True))

    def _begin(self, part: FinalPart) -> PartWriter:
        self._left = part.rows
        new = FORMATS[self._form.format].create(part.path, part.rows, self.numbers, part.start, self._rows_table)
        return self._open.enter_context(new)
