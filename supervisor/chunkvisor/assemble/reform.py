"""Makes a final of another form from rows that are on the disk, block by block.

It reads the rows once, and once more before where int8 needs their ranges; it encodes nothing.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chunkvisor.assemble.finalwriter import FinalWriter
from chunkvisor.assemble.form import FinalPart, Form
from chunkvisor.assemble.formats import FORMATS
from chunkvisor.assemble.numbers import Numbers, Positions, Ranges, Stored, TooLargeError
from chunkvisor.config.choices import FinalDtype
from chunkvisor.errors import config_error
from chunkvisor.store.artifact import BadVectorsError, Vectors
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.records import Stamp


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
