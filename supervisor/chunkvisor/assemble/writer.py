"""Writes the rows of a final in order, into one file or shards, and publishes all by one rename once verified.

Rows that are on the disk already are made into another form block by block; nothing is encoded again.
"""

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chunkvisor.assemble.forms import (
    FORMATS,
    FinalPart,
    Form,
    PartWriter,
    all_partials,
    all_places,
    is_ours,
    mark_of,
    partial_of,
    parts_of,
    place_of,
    remove_final,
)
from chunkvisor.assemble.numbers import Numbers, Positions, Ranges, Stored, TooLargeError
from chunkvisor.assemble.sides import find_rows_table
from chunkvisor.config.choices import FinalDtype
from chunkvisor.errors import config_error
from chunkvisor.store.artifact import BadVectorsError, Vectors, expect_rows, npy_header, pick_rows
from chunkvisor.store.layout import OutputLayout
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


@dataclass(frozen=True, slots=True)
class Source:
    """The rows that a final is made from."""

    layout: OutputLayout
    rows: int
    dimension: int
    form: Form
    missing: Sequence[int]
    """Rows without a vector, in order."""
    ranges: Vectors | None = None
    """Of all vectors, float32, shape (2, dimension); None = not known."""


@dataclass(frozen=True, slots=True)
class Reformed:
    """What is complete and has to be published yet."""

    writer: FinalWriter
    ranges: Vectors | None
    """Of int8."""

    def publish(self) -> tuple[Stamp, ...]:
        """See FinalWriter."""
        return self.writer.publish()


@contextmanager
def reform(
    source: Source, read: Callable[[bool], Iterator[Stored]], form: Form, on_block: Callable[[], None]
) -> Iterator[Reformed]:
    """The rows in another form, complete within the context; what is not published at its end by an error goes.

    `read` gives all rows in the source's own numbers, as often as it is called; told so, it compares their digests.
    Calls `on_block` now and then; it may raise to stop. Raises BadVectorsError where the rows are not what was written,
    OSError; Halt (78) for numbers that the form cannot hold.
    """
    missing, ranges = np.array(source.missing, dtype=np.int64), source.ranges
    as_it_is = source.form.dtype is form.dtype
    assert as_it_is or source.form.dtype is FinalDtype.FLOAT32, "what is rounded cannot be made exact again"
    if form.dtype is FinalDtype.INT8 and ranges is None:
        found = Ranges(source.dimension)
        for _, block, positions in _numbered(_ahead(read(False)), missing):
            found.take(block, positions)
            on_block()
        ranges = found.values
    with FinalWriter(source.layout, source.rows, source.dimension, form) as writer:
        for first, block, positions in _numbered(_ahead(read(True)), missing):
            stored = block if as_it_is else _encoded(writer.numbers, first, block, positions, ranges)
            writer.write(stored, positions)
            on_block()
        if not writer.complete:
            raise BadVectorsError("has fewer rows than its manifest says")
        yield Reformed(writer, ranges if form.dtype is FinalDtype.INT8 else None)


def _encoded(numbers: Numbers, first: int, block: Vectors, missing: Positions, ranges: Vectors | None) -> Stored:
    try:
        return numbers.of(block, missing, ranges)
    except TooLargeError as error:
        raise config_error(
            f"row {first + error.row} does not go into a final of float16",
            why=str(error),
            remedy="choose dtype: float32, or encode.normalize: true; no vector is lost",
        ) from None


def _ahead(blocks: Iterator[Stored]) -> Iterator[Stored]:
    """The same; the next block is read and hashed in a thread while the last is made into something else."""
    with ThreadPoolExecutor(1, thread_name_prefix="read-rows") as pool:
        coming = pool.submit(next, blocks, None)
        while (block := coming.result()) is not None:
            coming = pool.submit(next, blocks, None)
            yield block


def _numbered(blocks: Iterator[Stored], missing: Positions) -> Iterator[tuple[int, Stored, Positions]]:
    """(first row, block, positions in it of rows without a vector)."""
    first = 0
    for block in blocks:
        start, stop = np.searchsorted(missing, (first, first + len(block)))
        yield first, block, missing[start:stop] - first
        first += len(block)


def rows_of(path: Path, source: Source) -> Iterator[Stored]:
    """The rows of one file, of which no digest is kept. Raises BadVectorsError, OSError."""
    yield from _rows(FinalPart(path, 0, source.rows), source, None)


def rows_of_parts(parts: Sequence[tuple[FinalPart, str]], source: Source, *, compare: bool = True) -> Iterator[Stored]:
    """The rows of files with these digests (sha256, hex), which are compared if asked for.

    Raises BadVectorsError, OSError.
    """
    for part, digest in parts:
        yield from _rows(part, source, digest if compare else None)


def _rows(part: FinalPart, source: Source, digest: str | None) -> Iterator[Stored]:
    """Those of one file; which rows have no vector has to be what is recorded."""
    numbers, first = Numbers(source.form.dtype, source.dimension), part.start
    recorded, said = np.array(source.missing, dtype=np.int64), hashlib.sha256() if digest is not None else None
    for block, missing in FORMATS[source.form.format].read(part.path, part.rows, numbers, said):
        start, stop = np.searchsorted(recorded, (first, first + len(block)))
        if missing is not None and not np.array_equal(missing, recorded[start:stop] - first):
            raise BadVectorsError("has other rows without a vector than its manifest says")
        first += len(block)
        yield block
    if said is not None and said.hexdigest() != digest:
        raise BadVectorsError("has another digest than its manifest says")
