"""The forms of a final file: its format (npy, parquet), and the type of its numbers."""

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chunkvisor.config.choices import FinalDtype, FinalFormat
from chunkvisor.config.model import OutputConfig
from chunkvisor.store.artifact import (
    BLOCK_BYTES,
    BadVectorsError,
    Vectors,
    blocks,
    npy_header,
    read_shape,
)
from chunkvisor.store.layout import OutputLayout
from chunkvisor_worker.contract.files import open_regular
from chunkvisor_worker.contract.frozen import frozen

Stored = npt.NDArray[Any]
"""Rows as a final file has them, of shape (rows, dimension)."""
Manifest = dict[str, Any]
"""What `<output>.json` says of a final file, such as {"rows": 1000, "dimension": 384, …}."""
BadRow = dict[str, Any]
"""A row without a vector, as a manifest lists it: its `row`, `outcome`, `reason` and `place`."""


class VectorType(NamedTuple):
    """The type of the vectors of a final file, such as 768 numbers of float16.

    A row without a vector is NaN throughout.
    """

    dtype: FinalDtype
    dimension: int

    @property
    def numpy(self) -> str:
        """Name of their type for numpy, such as "<f2"."""
        return np.dtype(str(self.dtype)).str

    @property
    def row_bytes(self) -> int:
        """Size of a row."""
        return self.dimension * np.dtype(self.numpy).itemsize

    def convert(self, block: Vectors) -> Stored:
        """Convert the rows. Raises FloatingPointError for what float16 cannot hold."""
        with np.errstate(over="raise"):
            stored: Stored = block.astype(self.numpy, copy=False)
        return stored


_SYNC_BYTES = 64 << 20
"""The file is synced whenever it has grown by so much, so that little is left for the end."""

_WRITE_BYTES = 256 << 10
"""Written by one call. Calls of 4 MB took up to ten times the processor time on ext4 in a virtual
machine; the cause is not known."""


class HashedFile(io.FileIO):
    """A new file that is hashed and synced in threads while it grows.

    The caller must not change an array after it has written it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w")
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="final-file")
        self._hash = hashlib.sha256()
        self._unsynced_bytes = 0
        self._hashing = self._syncing = self._pool.submit(lambda: None)

    def write(self, data: Any) -> int:
        """Append all of it. Raises OSError, also of an earlier sync."""
        left = view = memoryview(data).cast("B")
        self._hashing.result()
        self._hashing = self._pool.submit(self._hash.update, view)
        while left.nbytes:
            left = left[super().write(left[:_WRITE_BYTES]) :]
        self._unsynced_bytes += view.nbytes
        if self._unsynced_bytes >= _SYNC_BYTES and self._syncing.done():
            # An error of writing back is reported once for each descriptor, perhaps here
            # (errseq_t of the kernel).
            self._syncing.result()
            self._syncing = self._pool.submit(os.fsync, self.fileno())
            self._unsynced_bytes = 0
        return view.nbytes

    def finish_sync(self) -> str:
        """Sync it, and return its sha256, hex. Raises OSError."""
        self._syncing.result()
        os.fsync(self.fileno())
        self._hashing.result()
        return self._hash.hexdigest()

    def close(self) -> None:
        """Close it, complete or not."""
        # The threads end first: after the close, the descriptor's number may be another file's.
        self._pool.shutdown(cancel_futures=True)
        super().close()


ROW = "row"
VECTOR = "vector"

_GROUP_BYTES = 32 << 20
"""Size of the vectors in a row group of a parquet file. A reader takes a group at a time, and the
writer has some of it in memory twice."""

_BATCH_VALUES = 1 << 16
"""Numbers that parquet encodes at a time. Its default of 1,024 is less than three vectors, and
takes 1.4 times the CPU time."""


class Carried:
    """Reads the carried columns from the rows table, once, from the first row to the last."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        file = pq.ParquetFile(path)
        self.fields = [field for field in file.schema_arrow if field.name != ROW]
        names = [field.name for field in self.fields]
        self._batches = file.iter_batches(4096, columns=names)
        self._left = file.schema_arrow.empty_table().select(names)

    def next_rows(self, count: int) -> Any:
        """Return the next `count` rows, as a list of columns."""
        import pyarrow as pa

        while self._left.num_rows < count:
            self._left = pa.concat_tables(
                [self._left, pa.Table.from_batches([next(self._batches)])]
            )
        columns = self._left.slice(0, count).columns
        self._left = self._left.slice(count)
        return columns


Append = Callable[[Stored], object]
"""Appends rows to a file. Raises OSError."""


class Format(NamedTuple):
    """How a format is written and read; its name is the suffix of its files."""

    write: Callable[[HashedFile, int, VectorType, Carried | None], AbstractContextManager[Append]]
    """(new file, number of rows, type of their vectors, columns that go with them) to a context in
    which they are written."""
    read: Callable[[Path, int, VectorType, str | None], Iterator[Stored]]
    """(path, number of rows, type of their vectors, sha256 in hex or None) to all rows, in blocks.

    Rows without a vector are NaN. Raises BadVectorsError if the file is not what it should be, or
    has another sha256 than the one that is given; OSError.
    """


OTHER_DIGEST = "has another digest than its manifest says: it was changed or damaged"


@contextmanager
def _write_npy(
    file: HashedFile, rows: int, vector_type: VectorType, *_: object
) -> Iterator[Append]:
    header = npy_header(rows, vector_type.dimension, vector_type.numpy)
    os.posix_fallocate(file.fileno(), 0, len(header) + rows * vector_type.row_bytes)
    file.write(header)
    yield lambda block: file.write(np.ascontiguousarray(block).data)


def _read_npy(
    path: Path, rows: int, vector_type: VectorType, digest: str | None
) -> Iterator[Stored]:
    with open(path, "rb", opener=open_regular) as file:
        shape = read_shape(file, vector_type.numpy)
        if (shape.rows, shape.dimension) != (rows, vector_type.dimension):
            there = f"{shape.rows} x {shape.dimension}"
            said = f"{rows} x {vector_type.dimension}"
            raise BadVectorsError(f"has {there}, its manifest says {said}")
        file.seek(0)
        found = hashlib.sha256(file.read(shape.offset_bytes))
        for block in blocks(file, shape, vector_type.numpy):
            if digest:
                found.update(block.data.cast("B"))
            yield block
        if digest and found.hexdigest() != digest:
            raise BadVectorsError(OTHER_DIGEST)


@contextmanager
def _write_parquet(
    file: HashedFile, _rows: int, vector_type: VectorType, carried: Carried | None
) -> Iterator[Append]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields = carried.fields if carried else []
    column_type = pa.list_(pa.from_numpy_dtype(np.dtype(vector_type.numpy)), vector_type.dimension)
    schema = pa.schema(
        [pa.field(ROW, pa.int64(), nullable=False), *fields, pa.field(VECTOR, column_type)]
    )
    others = [ROW, *(field.name for field in fields)]
    pending: list[pa.Table] = []
    next_row = 0

    def append(block: Stored) -> None:
        nonlocal next_row
        mask = np.isnan(block[:, 0])
        vectors = pa.FixedSizeListArray.from_arrays(
            pa.array(block.reshape(-1)), vector_type.dimension, mask=pa.array(mask)
        )
        columns = carried.next_rows(len(block)) if carried else []
        number = pa.array(np.arange(next_row, next_row + len(block)))
        pending.append(pa.table([number, *columns, vectors], schema=schema))
        next_row += len(block)
        if sum(table.num_rows for table in pending) * vector_type.row_bytes >= _GROUP_BYTES:
            flush()

    def flush() -> None:
        writer.write_table(pa.concat_tables(pending), row_group_size=1 << 40)
        pending.clear()

    # Vectors do not compress, and no query selects rows by their numbers: statistics of them would
    # only take time.
    with pq.ParquetWriter(
        file,
        schema,
        compression={**dict.fromkeys(others, "zstd"), f"{VECTOR}.list.element": "none"},
        use_dictionary=others[1:],
        write_statistics=others,
        write_batch_size=_BATCH_VALUES,
    ) as writer:
        yield append
        if pending:
            flush()


def _read_parquet(
    path: Path, _rows: int, vector_type: VectorType, digest: str | None
) -> Iterator[Stored]:
    import pyarrow.parquet as pq

    with open(path, "rb", opener=open_regular) as file:
        if digest and hashlib.file_digest(file, "sha256").hexdigest() != digest:
            raise BadVectorsError(OTHER_DIGEST)
        file.seek(0)
        table = pq.ParquetFile(file)
        for batch in table.iter_batches(
            max(1, BLOCK_BYTES // vector_type.row_bytes), columns=[VECTOR]
        ):
            column = batch.column(0)
            block = np.full((len(column), vector_type.dimension), np.nan, vector_type.numpy)
            # flatten() leaves out what is null.
            flat = (
                column.flatten().to_numpy(zero_copy_only=False).reshape(-1, vector_type.dimension)
            )
            block[column.is_valid().to_numpy(zero_copy_only=False)] = flat
            yield block


FORMATS = {
    FinalFormat.NPY: Format(_write_npy, _read_npy),
    FinalFormat.PARQUET: Format(_write_parquet, _read_parquet),
}

FORM_KEYS = ("format", "dtype", "columns")
"""Keys of an output in the config that make its form."""


@frozen
class Form:
    """The form of a final file, as the config asks for it or as a manifest describes it.

    `Form(FinalFormat.PARQUET, FinalDtype.FLOAT16)` is a parquet file of float16 vectors.
    """

    format: FinalFormat = FinalFormat.NPY
    dtype: FinalDtype = FinalDtype.FLOAT32
    carried: str | None = None
    """sha256, hex, of the rows table with the columns that are carried along."""

    @property
    def is_exact(self) -> bool:
        """Whether it holds the vectors as they are committed, not rounded."""
        return self.dtype is FinalDtype.FLOAT32

    @property
    def is_float32_npy(self) -> bool:
        """Whether it is what a join writes: another form is made from that."""
        return self.is_exact and self.format is FinalFormat.NPY

    @property
    def has_rows_table(self) -> bool:
        """Whether the carried columns are a side file; parquet has them inside."""
        return bool(self.carried) and self.format is FinalFormat.NPY


def asked_form(output: OutputConfig, carried: str | None = None) -> Form:
    """Return the form that the config asks for, with that rows table."""
    return Form(output.format, output.dtype, carried)


def form_of(manifest: Manifest) -> Form:
    """Return the form of the file that the manifest describes."""
    carried = digest_in(manifest["carried"]) if "carried" in manifest else None
    return Form(
        FinalFormat(manifest.get("format", "npy")),
        FinalDtype(manifest.get("dtype", "float32")),
        carried,
    )


def file_of(layout: OutputLayout, manifest: Manifest) -> Path:
    """Return the final file that the manifest describes."""
    return layout.file(form_of(manifest).format)


def digest_in(record: dict[str, Any]) -> str:
    """Return the sha256, hex, of the file that a manifest, or a section of it, describes."""
    return str(record["digest"]).removeprefix("sha256:")


def clear_partial(layout: OutputLayout) -> None:
    """Remove final files, of all forms, that a killed run has not finished. Raises OSError.

    Such a file takes its whole size of the disk from the beginning.
    """
    for path in (*map(layout.partial, FinalFormat), layout.partial_rows):
        path.unlink(missing_ok=True)
