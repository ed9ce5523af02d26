"""Rows of an Arrow file, by DuckDB in batches of bounded size: .arrow and .feather, and what HF `datasets` writes.

pyarrow reads the file, in either of Arrow's two forms; a Feather file of version 1 is not one of them.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import duckdb

from chunkvisor.errors import config_error
from chunkvisor.ingest.condition import folded
from chunkvisor.ingest.expression import ROW, evaluate, is_about_data, reason
from chunkvisor.ingest.parquet import columns_expression
from chunkvisor.ingest.problem import input_error, refuse_case_twins
from chunkvisor.ingest.request import IngestRequest
from chunkvisor.ingest.sources import SourceFile

_BATCH_ROWS = 8192
_VIEW = "__chunkvisor_arrow"


def arrow_rows(
    connection: duckdb.DuckDBPyConnection, file: SourceFile, request: IngestRequest, limit: int | None
) -> Iterator[tuple[int, str | None]]:
    """Row (from 0) and text of the first `limit` rows. Raises Halt (exit 78) for bad input."""
    for relation, columns, first in arrow_relations(connection, file, limit):
        described = connection.execute(f"DESCRIBE SELECT * EXCLUDE ({ROW}) FROM {relation}").fetchall()  # noqa: S608 - a constant
        types = {name: (name, str(column[1])) for name, column in zip(columns, described, strict=True)}
        sql = columns_expression(connection, file, request, types)
        if request.where is not None:
            sql = folded(request.where, sql)
        try:
            for row, text in evaluate(connection, file, sql, relation, partial(_place, first)):
                yield first + row, text
        except duckdb.Error as error:
            if not is_about_data(error):
                raise
            raise input_error(
                file.path,
                f"`sql` fails, in this row or one of the {_BATCH_ROWS:,} after it: {reason(error)}",
                row=first,
            ) from error


def _place(first: int, row: int) -> dict[str, int]:
    return {"row": first + row}


def arrow_relations(
    connection: duckdb.DuckDBPyConnection, file: SourceFile, limit: int | None
) -> Iterator[tuple[str, list[str], int]]:
    """The first `limit` rows, batch by batch: SQL that can stand after FROM, its columns, the first row's number."""
    import pyarrow as pa

    first = 0
    for batch in _batches(file):
        names = batch.schema.names
        refuse_case_twins(file.path, names)
        for name in names:
            if names.count(name) > 1 or name == ROW:
                raise input_error(file.path, f"there are two columns {name!r}.", remedy="Rename one of them.")
        for start in range(0, batch.num_rows, _BATCH_ROWS):
            part = batch.slice(start, _BATCH_ROWS if limit is None else min(_BATCH_ROWS, limit - first))
            if not part.num_rows:
                return
            table = pa.Table.from_batches([part]).append_column(ROW, pa.array(range(part.num_rows), pa.int64()))
            connection.register(_VIEW, table)
            yield f"(FROM {_VIEW})", names, first
            first += part.num_rows


def _batches(file: SourceFile) -> Iterator[Any]:
    """The record batches of the file; only one of them is in memory."""
    try:
        import pyarrow as pa
    except ImportError:
        raise config_error(
            f"{file.path}: Arrow files are read by pyarrow, which is not installed",
            remedy="pip install 'chunkvisor[arrow]', or write the data as parquet",
        ) from None
    try:
        with pa.OSFile(str(file.path)) as opened:
            try:
                reader = pa.ipc.open_file(opened)
            except pa.ArrowInvalid:  # no file with an index at its end, but a stream, as `datasets` writes it
                opened.seek(0)
                yield from pa.ipc.open_stream(opened)
                return
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
    except (pa.ArrowException, OSError) as error:
        raise input_error(
            file.path, f"the Arrow data cannot be read: {error}", remedy="Write or copy the file again."
        ) from error
