"""Finals as parquet: the columns `row` and `vector`, a fixed-size list that is null where a row has no vector.

pyarrow is imported once a file is opened. Row groups are small enough that a few of them fit in memory.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkvisor.assemble.checkedfile import CheckedFile
from chunkvisor.assemble.numbers import Numbers, Positions, Stored
from chunkvisor.store.artifact import BLOCK_BYTES, BadVectorsError, Hash

if TYPE_CHECKING:
    import pyarrow as pa

ROW, VECTOR = "row", "vector"

_GROUP_BYTES = 32 << 20
"""Of vectors in a row group. Readers take a group at a time; some of what is written of one is in memory twice."""

_BATCH_VALUES = 1 << 16
"""Encoded by parquet at a time. Its default of 1,024 is less than three vectors, and takes 1.4 times the CPU time."""

_READ_BYTES = 1 << 20

_CARRIED_ROWS = 4096
"""Of the rows table at a time."""


class ParquetWriter:
    """One new file, as a context."""

    def __init__(self, path: Path, numbers: Numbers, first_row: int, rows_table: Path | None = None) -> None:
        """Begin it. Raises OSError."""
        import pyarrow.parquet as pq

        self._numbers = numbers
        self._next_row = first_row
        self._group_rows = max(1, _GROUP_BYTES // numbers.row_bytes)
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._carried = None if rows_table is None else _Carried(rows_table, first_row)
        self._schema = _schema(numbers, self._carried.fields if self._carried is not None else ())
        own = [name for name in self._schema.names if name != VECTOR]
        with contextlib.ExitStack() as stack:
            self._file = stack.enter_context(CheckedFile(path, None))
            # Vectors do not compress, and no reader prunes by them: statistics would only take time.
            self._writer = pq.ParquetWriter(
                self._file,
                self._schema,
                compression=_compression(own),
                use_dictionary=own[1:],
                write_statistics=own,
                write_batch_size=_BATCH_VALUES,
            )
            self._open = stack.pop_all()

    def __enter__(self) -> "ParquetWriter":
        return self

    def __exit__(self, *error: object) -> None:
        """Close it, complete or not."""
        if self._carried is not None:
            self._carried.close()
        with contextlib.suppress(Exception):  # it writes the footer of what is not to be complete
            self._writer.close()
        self._open.close()

    def write(self, rows: Stored, missing: Positions) -> None:
        """Append rows. Raises OSError."""
        import pyarrow as pa

        mask = np.zeros(len(rows), dtype=bool)
        mask[missing] = True
        numbers = np.arange(self._next_row, self._next_row + len(rows))
        flat = pa.array(rows.reshape(-1).copy())
        vectors = pa.FixedSizeListArray.from_arrays(flat, self._numbers.width, mask=pa.array(mask))
        carried = [] if self._carried is None else self._carried.take(len(rows))
        self._pending.append(pa.table([pa.array(numbers), *carried, vectors], schema=self._schema))
        self._pending_rows += len(rows)
        self._next_row += len(rows)
        if self._pending_rows >= self._group_rows:
            self._flush()

    def finish(self) -> str:
        """Write the last group and the footer; the sha256 of the file, which has been read back. Raises OSError."""
        self._flush()
        self._writer.close()
        return self._file.finish()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._pending:
            self._writer.write_table(pa.concat_tables(self._pending), row_group_size=1 << 40)
            self._pending, self._pending_rows = [], 0


def create(path: Path, rows: int, numbers: Numbers, first_row: int, rows_table: Path | None) -> ParquetWriter:  # noqa: ARG001 - no space is reserved
    """See `forms.Format`."""
    return ParquetWriter(path, numbers, first_row, rows_table)


def read(path: Path, rows: int, numbers: Numbers, digest: Hash | None) -> Iterator[tuple[Stored, Positions | None]]:
    """See `forms.Format`; rows without a vector are NaN, or zero where the numbers have no NaN."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open(path, "rb") as file:
        while digest is not None and (data := file.read(_READ_BYTES)):
            digest.update(memoryview(data))
        file.seek(0)
        try:
            table = pq.ParquetFile(file)
            there, wanted = table.schema_arrow, _schema(numbers)
            if VECTOR not in there.names or there.field(VECTOR).type != wanted.field(VECTOR).type:
                raise BadVectorsError(f"has no column {VECTOR} of {wanted.field(VECTOR).type}")
            if table.metadata.num_rows != rows:
                raise BadVectorsError(f"has {table.metadata.num_rows:,} rows, its manifest says {rows:,}")
            per_batch = max(1, BLOCK_BYTES // numbers.row_bytes)
            for batch in table.iter_batches(per_batch, columns=[VECTOR]):
                yield _vectors(batch.column(0), numbers)
        except (pa.ArrowException, OSError) as error:
            raise BadVectorsError(f"not a parquet file: {error}") from None


class _Carried:
    """The columns of the rows table but for the number of the row, from one row on."""

    def __init__(self, path: Path, first_row: int) -> None:
        import pyarrow.parquet as pq

        self._file = pq.ParquetFile(path)
        self.fields = [field for field in self._file.schema_arrow if field.name != ROW]
        names = [field.name for field in self.fields]
        groups, passed = list(range(self._file.num_row_groups)), 0
        while groups and passed + (rows := self._file.metadata.row_group(groups[0]).num_rows) <= first_row:
            passed += rows
            groups.pop(0)
        self._batches = self._file.iter_batches(_CARRIED_ROWS, row_groups=groups, columns=names)
        self._left: list[Any] = []
        self._rows_left = 0
        self.take(first_row - passed)

    def take(self, count: int) -> list[Any]:
        """The next rows, column by column. Raises ValueError where there are not so many."""
        import pyarrow as pa

        while self._rows_left < count:
            batch = next(self._batches, None)
            if batch is None:
                raise ValueError("the rows table has fewer rows than there are vectors")
            self._left.append(batch)
            self._rows_left += batch.num_rows
        if not self._left:
            return [pa.array([], field.type) for field in self.fields]
        table = pa.Table.from_batches(self._left)
        taken, rest = table.slice(0, count), table.slice(count)
        self._left, self._rows_left = rest.to_batches(), rest.num_rows
        return list(taken.columns)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _compression(columns: list[str]) -> dict[str, str]:
    """Vectors do not compress; the rest does."""
    return {**dict.fromkeys(columns, "zstd"), f"{VECTOR}.list.element": "none"}


def _schema(numbers: Numbers, carried: Sequence["pa.Field"] = ()) -> "pa.Schema":
    import pyarrow as pa

    vector = pa.list_(pa.from_numpy_dtype(np.dtype(numbers.numpy)), numbers.width)
    return pa.schema([pa.field(ROW, pa.int64(), nullable=False), *carried, pa.field(VECTOR, vector)])


def _vectors(column: Any, numbers: Numbers) -> tuple[Stored, Positions]:
    """(rows, which of them are null) of a column of fixed-size lists."""
    missing = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)) if column.null_count else _NONE
    # flatten() leaves out what is null.
    flat = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, numbers.width)
    if not len(missing):
        return flat, missing
    found = np.full((len(column), numbers.width), np.nan if numbers.is_float else 0, dtype=numbers.numpy)
    found[np.setdiff1d(np.arange(len(column)), missing)] = flat
    return found, missing


_NONE = np.empty(0, dtype=np.int64)
