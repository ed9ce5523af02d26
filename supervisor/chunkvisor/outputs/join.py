"""Joins the chunks of an output into its final file, in bounded memory.

The rows are written in float32. A final file of another form is then made from that file, which is
removed.
"""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import xxhash

from chunkvisor.child import OnWait
from chunkvisor.config.choices import FinalDtype, FinalFormat
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.outputs.forms import (
    FORMATS,
    Carried,
    Form,
    HashedFile,
    Manifest,
    Stored,
    VectorType,
    clear_partial,
    digest_in,
    form_of,
)
from chunkvisor.sources.table import StagedTable, TableFiles
from chunkvisor.store.artifact import (
    HEADER_BYTES,
    BadVectorsError,
    Vectors,
    bad_rows,
    blocks,
    pick_rows,
    read_shape,
)
from chunkvisor.store.chunkfiles import chunk_files
from chunkvisor.store.identity import BadText
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.ledger import Ledger
from chunkvisor.store.records import has_digest
from chunkvisor.store.reuse import Reuse
from chunkvisor_worker.contract.frozen import frozen

BLOCK_BYTES = 4 << 20  # vectors are joined in blocks of about this size


@frozen
class JoinInputs:
    """What the rows of a final file are made from."""

    ledger: Ledger
    """Of the output: its chunks, and the texts that have no vector."""
    table: StagedTable
    """The staged texts: which row has which text."""
    reuse: Reuse | None = None
    """Vectors that were copied from elsewhere, if there are any."""

    def bad_texts(self) -> dict[int, BadText]:
        """Return the texts without a vector, by their numbers in the table.

        Raises DamagedError, OSError.
        """
        bad = self.ledger.bad
        if not self.reuse:
            return bad
        return {int(self.reuse.encoded_texts(n, n + 1)[0]): each for n, each in bad.items()}

    def damage_at(self, text: int) -> Exception:
        """Return the error for a text that has no vector but should, or has one but should not."""
        words = "has other rows without a vector than its record says"
        if self.reuse:
            where = int(self.reuse.where_of(np.array([text]))[0])
            if where >= 0:
                return CopiesDamagedError(f"{self.reuse.files.copied} {words}")
            text = ~where
        return ChunkDamagedError(text // self.ledger.plan.chunk_size, words)


class ChunkDamagedError(Exception):
    """A committed chunk is not what was committed; it has to be computed again."""

    def __init__(self, chunk: int, why: str) -> None:
        super().__init__(f"chunk {chunk}: {why}")
        self.chunk = chunk
        self.why = why


class CopiesDamagedError(Halt):
    """Vectors that were copied from elsewhere are not what they were."""

    def __init__(self, why: str) -> None:
        super().__init__(
            ExitCode.TRY_AGAIN,
            "the copies of vectors that were to be reused are damaged",
            "Run the same command again: it looks them up again, and encodes what it cannot find.",
            why=why,
        )


def read_ahead(found: Iterator[Stored]) -> Generator[Stored]:
    """Give the same blocks; a thread reads the next one while the caller works on one."""
    with ThreadPoolExecutor(1, thread_name_prefix="read-rows") as pool:
        coming = pool.submit(next, found, None)
        while (block := coming.result()) is not None:
            coming = pool.submit(next, found, None)
            yield block


class Portions:
    """Cuts a stream of blocks into portions of any number of rows."""

    def __init__(self, found: Iterator[Stored]) -> None:
        self._blocks = found
        self._left: Stored = np.empty(0)

    def next_rows(self, count: int) -> Stored:
        """Return the next `count` rows; `count` is at least 1."""
        taken: list[Stored] = []
        while count:
            block = self._left if len(self._left) else next(self._blocks)
            taken.append(block[:count])
            self._left = block[count:]
            count -= len(taken[-1])
        return taken[0] if len(taken) == 1 else np.concatenate(taken)


def chunk_blocks(ledger: Ledger) -> Iterator[Vectors]:
    """Give the vectors of all chunks in order, in blocks. Raises ChunkDamagedError, OSError."""
    assert ledger.facts
    listed = chunk_files(ledger.layout)
    for chunk in range(ledger.plan.count):
        number, path = next(listed, (None, Path()))
        try:
            if number != chunk:
                raise BadVectorsError("its file is gone")
            with open(path, "rb", buffering=0) as file:
                shape = read_shape(file)
                wanted = ledger.plan.size(chunk), ledger.facts.dimension
                if (shape.rows, shape.dimension) != wanted:
                    raise BadVectorsError(f"holds {shape.rows} x {shape.dimension}")
                file.seek(0)
                digest = xxhash.xxh3_128(file.read(shape.offset_bytes))
                for block in blocks(file, shape):
                    digest.update(block.data.cast("B"))
                    yield block
            if not ledger.files.is_name_of(chunk, path, digest.hexdigest()):
                raise BadVectorsError("its content does not have the digest in its name")
        except (BadVectorsError, FileNotFoundError) as error:
            raise ChunkDamagedError(chunk, str(error)) from None


def next_texts(
    chunks: Portions, reuse: Reuse | None, start: int, stop: int, dimension: int
) -> Vectors:
    """Return the vectors of the texts start..stop, shape (stop - start, dimension).

    Those that were copied from elsewhere come from the copies, all others are the next in `chunks`.

    Raises ChunkDamagedError, CopiesDamagedError, OSError.
    """
    if not reuse:
        return chunks.next_rows(stop - start)
    found = np.empty((stop - start, dimension), dtype="<f4")
    where = reuse.where_of(np.arange(start, stop))
    copied = where >= 0
    path = reuse.files.copied
    if not copied.all():
        found[~copied] = chunks.next_rows(int(np.count_nonzero(~copied)))
    try:
        found[copied] = pick_rows(path, "<f4", HEADER_BYTES, dimension, where[copied])
    except (ValueError, FileNotFoundError) as error:
        raise CopiesDamagedError(f"{path}: {error}") from error
    return found


def final_rows(layout: OutputLayout, manifest: Manifest) -> Iterator[Stored]:
    """Give all rows of the final file that a manifest describes, in blocks.

    Raises BadVectorsError, OSError.
    """
    form = form_of(manifest)
    path = layout.file(form.format)
    vector_type = VectorType(form.dtype, int(manifest["dimension"]))
    try:
        yield from FORMATS[form.format].read(
            path, manifest["rows"], vector_type, digest_in(manifest)
        )
    except BadVectorsError as error:
        raise BadVectorsError(f"{path} {error}") from None


@dataclass(slots=True)
class Final:
    """A final file that is complete under its partial name, and on the disk."""

    dimension: int
    digest: str = ""
    """sha256 of the file, hex."""
    zero_rows: int = 0
    """Rows that are zero throughout; only blank texts have such vectors."""


def assemble(inputs: JoinInputs, form: Form, on_wait: OnWait) -> Final:
    """Make the final file in that form under its partial name; `publish` gives it its name.

    Raises ChunkDamagedError, CopiesDamagedError, OSError; Halt (78) if the numbers do not fit into
    the form.
    """
    assert inputs.ledger.facts
    layout = inputs.ledger.layout
    rows = inputs.table.rows
    clear_partial(layout)
    final = Final(inputs.ledger.facts.dimension)
    vector_type = VectorType(FinalDtype.FLOAT32, final.dimension)
    direct = form.is_float32_npy
    at = layout.partial(form.format) if direct else layout.partial_rows
    found = _rows_in_order(inputs, final, at, on_wait)
    final.digest = write_final(layout, at, rows, vector_type, form if direct else Form(), found)
    if not direct:
        read = partial(FORMATS[FinalFormat.NPY].read, at, rows, vector_type, None)
        final.digest = write_form(layout, form, rows, final.dimension, read, on_wait)
        at.unlink()
    return final


def _rows_in_order(
    inputs: JoinInputs, final: Final, at: Path, on_wait: OnWait
) -> Generator[Vectors]:
    """Give all rows in blocks, which the caller writes to `at`; count the zero rows in `final`.

    Row i gets the vector of its text. Texts are numbered in the order of their first row, so the
    chunks are read once, from the first to the last; a row whose text came before gets its vector
    from the file `at`, where it is written already.
    """
    table = inputs.table
    per_block = max(1, BLOCK_BYTES // (4 * final.dimension))
    seen = 0  # texts so far
    bad = np.fromiter(inputs.bad_texts(), dtype=np.int64)
    with closing(read_ahead(chunk_blocks(inputs.ledger))) as blocks:
        chunks = Portions(blocks)
        for start in range(0, table.rows, per_block):
            ids = table.row_text(start, min(start + per_block, table.rows))
            stop = max(seen, int(ids.max()) + 1)
            block = np.zeros((1, final.dimension), dtype="<f4")
            if stop > seen:
                block = next_texts(chunks, inputs.reuse, seen, stop, final.dimension)
            # If all texts are new, their numbers rise by one from row to row.
            if stop - seen < len(ids):
                # Rows of texts that came before get some vector here (`clip`), and theirs below.
                block = np.take(block, ids - seen, axis=0, mode="clip")
                old = np.flatnonzero(ids < seen)
                first = table.first_row_at(ids[old])
                block[old] = pick_rows(at, "<f4", HEADER_BYTES, final.dimension, first)
            seen = stop
            not_finite, zero = bad_rows(block)
            unexpected = np.setxor1d(not_finite, np.flatnonzero(np.isin(ids, bad)))
            if len(unexpected):
                raise inputs.damage_at(int(ids[unexpected[0]]))
            final.zero_rows += len(zero)
            yield block
            on_wait()
        next(blocks, None)  # the digest of the last chunk is compared at its end


def find_rows_table(layout: OutputLayout, digest: str) -> Path | None:
    """Return the rows table among the staged texts, or next to the final file, if it is whole.

    Raises OSError.
    """
    places = (TableFiles(layout.table).rows, layout.rows_table)
    return next((path for path in places if has_digest(path, digest)), None)


def write_final(
    layout: OutputLayout,
    at: Path,
    rows: int,
    vector_type: VectorType,
    form: Form,
    found: Generator[Stored],
) -> str:
    """Write the blocks of `found`, `rows` rows, into the file `at`; return its sha256, hex.

    The file is synced. Raises what `found` raises, and OSError; the file is removed then, so that a
    full disk has its space back. `found` is closed in any case: left to the garbage collector, it
    would wait for its thread while Python's threading holds a lock, and hang.
    """
    carried = None
    try:
        if form.carried and not form.has_rows_table:
            rows_table = find_rows_table(layout, form.carried)
            assert rows_table, "it is staged again if it is lost"
            carried = Carried(rows_table)
        with closing(found), HashedFile(at) as file:
            with FORMATS[form.format].write(file, rows, vector_type, carried) as append:
                for block in found:
                    append(block)
            return file.finish_sync()
    except BaseException:
        with suppress(OSError):
            clear_partial(layout)
        raise


def write_form(
    layout: OutputLayout,
    form: Form,
    rows: int,
    dimension: int,
    read: Callable[[], Iterator[Stored]],
    on_wait: OnWait,
) -> str:
    """Write float32 rows, which `read` gives in blocks, in another form; return the sha256, hex.

    The file gets the form's partial name. Raises as `write_final`; Halt (78) for numbers that the
    form cannot hold.
    """
    vector_type = VectorType(form.dtype, dimension)

    def converted() -> Generator[Stored]:
        with closing(read_ahead(read())) as blocks:
            for block in blocks:
                yield vector_type.convert(block)
                on_wait()

    try:
        return write_final(
            layout, layout.partial(form.format), rows, vector_type, form, converted()
        )
    except FloatingPointError:
        raise config_error(
            f"the vectors of {layout.name} do not fit into float16",
            "Choose dtype: float32. No vector is lost.",
            why="One of them has a number above 65,504.",
        ) from None
