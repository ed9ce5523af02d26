"""Joins the chunks of an output into its final, in bounded memory.

The rows are put together in float32. A final of another form is made from a file of them that is
not published.
"""

import contextlib
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from chunkvisor.config.choices import FinalDtype, FinalFormat
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.outputs.forms import (
    FORMATS,
    Carried,
    Form,
    HashedFile,
    Numbers,
    Stored,
    clear_partial,
    digest_in,
    form_of,
)
from chunkvisor.sources.table import StagedTable, TableFiles
from chunkvisor.store.artifact import (
    BadVectorsError,
    Vectors,
    bad_rows,
    blocks,
    chunk_key,
    npy_header,
    pick_rows,
    read_shape,
)
from chunkvisor.store.chunkfiles import chunk_files
from chunkvisor.store.identity import BadText
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.ledger import Ledger
from chunkvisor.store.records import digest_file
from chunkvisor.store.reuse import Reuse

BLOCK_BYTES = 4 << 20  # vectors are joined in blocks of about this size

# numpy pads the header of every 2-D array of ours to this length
_HEADER_BYTES = len(npy_header(1, 1))


class ChunkDamagedError(Exception):
    """A committed chunk is not what was committed; it has to be computed again."""

    def __init__(self, chunk: int, why: str) -> None:
        super().__init__(f"chunk {chunk}: {why}")
        self.chunk = chunk
        self.why = why


class CopiesDamagedError(Halt):
    """Vectors that were copied from elsewhere are not what they were."""

    def __init__(self, why: str) -> None:
        remedy = (
            "Run the same command again: it looks them up again, and encodes what it does not find."
        )
        what = "the copies of vectors that were to be reused are damaged"
        super().__init__(ExitCode.TRY_AGAIN, what, why=why, remedy=remedy)


def read_ahead(found: Iterator[Stored]) -> Generator[Stored]:
    """Give the same.

    The next block is read and hashed in a thread while the last is made into something else.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="read-rows") as pool:
        coming = pool.submit(next, found, None)
        while (block := coming.result()) is not None:
            coming = pool.submit(next, found, None)
            yield block


class Portions:
    """The rows of blocks, in portions of any size."""

    def __init__(self, found: Iterator[Stored]) -> None:
        self._blocks, self._left = found, np.empty(0)

    def next_rows(self, count: int) -> Stored:
        """Return so many of the next rows, at least one."""
        taken: list[Stored] = []
        while count:
            block = self._left if len(self._left) else next(self._blocks)
            taken.append(block[:count])
            self._left = block[count:]
            count -= len(taken[-1])
        return taken[0] if len(taken) == 1 else np.concatenate(taken)


def chunk_blocks(ledger: Ledger) -> Iterator[Vectors]:
    """Give the vectors of all chunks in order, in blocks. Raises ChunkDamagedError, OSError."""
    assert ledger.facts is not None
    listed = chunk_files(ledger.layout)
    for chunk in range(ledger.plan.count):
        number, path = next(listed, (None, Path()))
        try:
            if number != chunk:
                raise BadVectorsError("its file is gone")
            with open(path, "rb", buffering=0) as file:
                shape = read_shape(file)
                if (shape.rows, shape.dimension) != (
                    ledger.plan.size(chunk),
                    ledger.facts.dimension,
                ):
                    raise BadVectorsError(f"holds {shape.rows} x {shape.dimension}")
                file.seek(0)
                digest = xxhash.xxh3_128(file.read(shape.offset_bytes))
                for block in blocks(file, shape):
                    digest.update(block.data.cast("B"))
                    yield block
            key = chunk_key(ledger.fingerprint, *ledger.plan.bounds(chunk), digest.hexdigest())
            if not path.name.endswith(f"-{key}.npy"):
                raise BadVectorsError("its content does not have the digest in its name")
        except (BadVectorsError, FileNotFoundError) as error:
            raise ChunkDamagedError(chunk, str(error)) from None


def next_texts(
    chunks: Portions, reuse: Reuse | None, start: int, stop: int, dimension: int
) -> Vectors:
    """Return the vectors of the next texts, start..stop, from the chunks and from copies.

    Raises ChunkDamagedError, CopiesDamagedError, OSError.
    """
    if reuse is None:
        return chunks.next_rows(stop - start)
    found = np.empty((stop - start, dimension), dtype="<f4")
    where = reuse.where_of(np.arange(start, stop))
    copied = where >= 0
    path = reuse.files.copied
    if count := int(np.count_nonzero(~copied)):
        found[~copied] = chunks.next_rows(count)
    try:
        found[copied] = pick_rows(path, "<f4", _HEADER_BYTES, dimension, where[copied])
    except (ValueError, FileNotFoundError) as error:
        raise CopiesDamagedError(f"{path}: {error}") from error
    return found


def final_rows(layout: OutputLayout, manifest: dict[str, Any]) -> Iterator[Stored]:
    """Give all rows of the final that a manifest describes, in blocks.

    Raises BadVectorsError, OSError.
    """
    form = form_of(manifest)
    path = layout.file(form.format)
    numbers = Numbers(form.dtype, int(manifest["dimension"]))
    try:
        yield from FORMATS[form.format].read(path, manifest["rows"], numbers, digest_in(manifest))
    except BadVectorsError as error:
        raise BadVectorsError(f"{path} {error}") from None


@dataclass(slots=True)
class Final:
    """What is complete under its partial name, and on the disk."""

    dimension: int
    digest: str = ""  # sha256 of its file, hex
    zero_rows: int = 0  # rows that are zero throughout; only blank texts have such vectors


def assemble(
    ledger: Ledger,
    table: StagedTable,
    on_block: Callable[[], None],
    form: Form,
    reuse: Reuse | None = None,
) -> Final:
    """Make the final in that form under its partial name; `manifest.publish` gives it its name.

    Calls `on_block` now and then; it may raise to stop. Raises ChunkDamagedError,
    CopiesDamagedError, OSError; Halt (78) if the numbers do not go into the form.
    """
    assert ledger.facts is not None
    layout = ledger.layout
    rows = table.rows
    clear_partial(layout)
    final = Final(ledger.facts.dimension)
    numbers = Numbers(FinalDtype.FLOAT32, final.dimension)
    if form.is_float32_npy:
        at = layout.partial(form.format)
        found = _rows_in_order(ledger, table, reuse, final, at, on_block)
        final.digest = write_final(layout, at, rows, numbers, form, found)
        return final
    at = layout.partial_rows
    found = _rows_in_order(ledger, table, reuse, final, at, on_block)
    write_final(layout, at, rows, numbers, Form(), found)
    read = partial(FORMATS[FinalFormat.NPY].read, at, rows, numbers, None)
    final.digest = write_form(layout, form, rows, final.dimension, read, on_block)
    at.unlink()
    return final


def _rows_in_order(
    ledger: Ledger,
    table: StagedTable,
    reuse: Reuse | None,
    final: Final,
    at: Path,
    on_block: Callable[[], None],
) -> Iterator[Vectors]:
    """Give the rows, which are written to `at`, in blocks.

    Row i gets the vector of text `row_text[i]`.

    Texts are numbered in the order of their first row, so the chunks are read once, from the first
    to the last; a row whose text came before gets its vector from the file, where it is written
    already.
    """
    per_block = max(1, BLOCK_BYTES // (4 * final.dimension))
    seen = 0
    numbers = np.fromiter(bad_texts(ledger, reuse), dtype=np.int64)
    with contextlib.closing(read_ahead(chunk_blocks(ledger))) as blocks:
        chunks = Portions(blocks)
        for start in range(0, table.rows, per_block):
            ids = table.row_text(start, min(start + per_block, table.rows))
            upto = max(seen, int(ids.max()) + 1)
            block = np.zeros((1, final.dimension), dtype="<f4")
            if upto > seen:
                block = next_texts(chunks, reuse, seen, upto, final.dimension)
            if upto - seen < len(
                ids
            ):  # else no text came before, and ids rise by one from row to row
                # Clipped, so that the rows of old texts get some vector for now: one copy instead
                # of two.
                block = np.take(block, ids - seen, axis=0, mode="clip")
                old = np.flatnonzero(ids < seen)
                first = table.first_row_at(ids[old])
                block[old] = pick_rows(at, "<f4", _HEADER_BYTES, final.dimension, first)
            seen = upto
            hits = np.flatnonzero(np.isin(ids, numbers))
            not_finite, zero = bad_rows(block)
            if len(others := np.setxor1d(not_finite, hits)):
                raise _other_rows(int(ids[others[0]]), ledger, reuse)
            final.zero_rows += len(zero)
            yield block
            on_block()
        next(blocks, None)  # the digest of the last chunk is compared at its end


def bad_texts(ledger: Ledger, reuse: Reuse | None) -> dict[int, BadText]:
    """Return the texts without a vector, by their numbers in the table.

    Raises DamagedError, OSError.
    """
    if reuse is None:
        return ledger.bad
    return {
        int(reuse.encoded_texts(number, number + 1)[0]): bad for number, bad in ledger.bad.items()
    }


def _other_rows(text: int, ledger: Ledger, reuse: Reuse | None) -> Exception:
    """The text has no vector, or has one against its record."""
    words = "has other rows without a vector than its record says"
    if reuse is not None:
        where = int(reuse.where_of(np.array([text]))[0])
        if where >= 0:
            return CopiesDamagedError(f"{reuse.files.copied} {words}")
        text = ~where
    return ChunkDamagedError(text // ledger.plan.chunk_size, words)


def find_rows_table(layout: OutputLayout, digest: str) -> Path | None:
    """Return the rows table, from the staged texts or from next to the final, if it is there.

    Raises OSError.
    """
    places = (TableFiles(layout.table).rows, layout.rows_table)
    return next((path for path in places if path.is_file() and digest_file(path) == digest), None)


def write_final(
    layout: OutputLayout, at: Path, rows: int, numbers: Numbers, form: Form, found: Iterator[Stored]
) -> str:
    """Write so many rows, which come in blocks, into the file `at`; return its sha256, hex.

    It is on the disk then. Raises what `found` raises, and OSError, and then leaves nothing:
    whoever waits for space would wait for this.
    """
    carried = None
    try:
        if form.carried is not None and not form.has_rows_table:
            rows_table = find_rows_table(layout, form.carried)
            assert rows_table is not None, "it is staged again if it is lost"
            carried = Carried(rows_table)
        with HashedFile(at) as file:
            with FORMATS[form.format].write(file, rows, numbers, carried) as append:
                for block in found:
                    append(block)
            return file.finish_sync()
    except BaseException:
        with contextlib.suppress(OSError):
            clear_partial(layout)
        raise


def write_form(
    layout: OutputLayout,
    form: Form,
    rows: int,
    dimension: int,
    read: Callable[[], Iterator[Stored]],
    on_block: Callable[[], None],
) -> str:
    """Write the rows that `read` gives in another form under its partial name; return its sha256.

    Raises as `write_final`; Halt (78) for numbers that the form cannot hold.
    """
    numbers = Numbers(form.dtype, dimension)

    def made() -> Iterator[Stored]:
        with contextlib.closing(read_ahead(read())) as blocks:
            for block in blocks:
                yield numbers.convert(block)
                on_block()

    try:
        return write_final(layout, layout.partial(form.format), rows, numbers, form, made())
    except FloatingPointError:
        raise config_error(
            f"the vectors of {layout.name} do not fit into float16",
            "Choose dtype: float32. No vector is lost.",
            why="One of them has a number above 65,504.",
        ) from None
