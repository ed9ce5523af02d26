"""Rows of a query over a DuckDB or SQLite file: its result is laid down once, in a scratch file, and read from there.

So text, condition and carried columns are of the same rows, and the database is open only while the query runs.
"""

from collections.abc import Iterator
from pathlib import Path

import duckdb

from chunkvisor.errors import Halt
from chunkvisor.ingest.condition import folded
from chunkvisor.ingest.database import connect, literal, quoted
from chunkvisor.ingest.duckdbfile import lay_down_duckdb
from chunkvisor.ingest.expression import ROW, evaluate, fails_over, first_failing, is_about_data, reason
from chunkvisor.ingest.parquet import columns_expression
from chunkvisor.ingest.problem import input_error, refuse_case_twins
from chunkvisor.ingest.request import IngestRequest
from chunkvisor.ingest.signature import check_unchanged, signature
from chunkvisor.ingest.sources import SourceFile
from chunkvisor.ingest.sqlitefile import lay_down_sqlite

_LAID = "__chunkvisor_laid"
"""The scratch file, as a catalog."""
_CELLS = f"{_LAID}.main.cells"
_ROWS = f"{_LAID}.main.rows"
"""The cells with their names, types and numbers."""
_MAGIC_BYTES = 16


def queried_rows(
    connection: duckdb.DuckDBPyConnection, file: SourceFile, request: IngestRequest, limit: int | None, folder: Path
) -> Iterator[tuple[int, str | None]]:
    """Row (from 0) and text of the first `limit` rows; `folder` is for the scratch file.

    Raises Halt (exit 78) for bad input, (75) while another process writes.
    """
    relation, columns = queried_relation(connection, file, request, limit, folder)
    ((count,),) = connection.execute(f"SELECT count(*) FROM {_ROWS}").fetchall()  # noqa: S608 - a constant
    sql = columns_expression(connection, file, request, columns)
    if request.where is not None:
        sql = folded(request.where, sql)
    found = 0
    try:
        for row, text in evaluate(connection, file, sql, relation, lambda row: {"row": row}):
            found += 1
            yield row, text
    except duckdb.Error as error:
        if not is_about_data(error):
            raise
        raise _located(connection, file, sql, (found, count), error) from error
    if found != count:
        raise input_error(file.path, f"`sql` gives {found} texts for {count} rows: {sql}")


def queried_relation(
    connection: duckdb.DuckDBPyConnection, file: SourceFile, request: IngestRequest, limit: int | None, folder: Path
) -> tuple[str, dict[str, tuple[str, str]]]:
    """The first `limit` rows as SQL that can stand after FROM; its columns, as `parquet.columns_expression` has them.

    Raises as `queried_rows`.
    """
    place = folder / "laid.duckdb"
    if not place.exists():
        _lay_down(file, request, limit, place)
        connection.execute(f"ATTACH {literal(str(place))} AS {_LAID} (READ_ONLY)")
    described = connection.execute(f"DESCRIBE SELECT * EXCLUDE ({ROW}) FROM {_ROWS}").fetchall()  # noqa: S608 - a constant
    columns = {name: (name, kind) for name, kind, *_ in described}
    refuse_case_twins(file.path, columns)
    return f"(FROM {_ROWS})", columns


def _lay_down(file: SourceFile, request: IngestRequest, limit: int | None, place: Path) -> None:
    try:
        with file.path.open("rb") as opened:
            magic = opened.read(_MAGIC_BYTES)
    except OSError as error:
        raise input_error(
            file.path, f"it cannot be read: {error.strerror}.", remedy="Check its permissions."
        ) from error
    lay_down = lay_down_sqlite if magic == b"SQLite format 3\0" else lay_down_duckdb if magic[8:12] == b"DUCK" else None
    if lay_down is None:
        what = "the file is empty." if not magic else "the file is neither a DuckDB nor an SQLite database."
        raise input_error(file.path, what, remedy="Name a database that can be opened without a password.")
    before = signature([file])
    with connect(request.memory_limit_bytes, place.parent) as target:
        target.execute(f"ATTACH {literal(str(place))} AS {_LAID}")
        try:
            casts = lay_down(target, file, limit, _CELLS, place.parent)
        except (Halt, duckdb.Error):
            check_unchanged([file], before)  # what was half written may look like anything
            raise
        columns = ", ".join(f"{cast} AS {quoted(name)}" for name, cast in casts.items())
        target.execute(f"CREATE VIEW {_ROWS} AS SELECT rowid AS {ROW}, {columns} FROM {_CELLS}")  # noqa: S608 - names are quoted


def _located(
    connection: duckdb.DuckDBPyConnection, file: SourceFile, sql: str, between: tuple[int, int], error: duckdb.Error
) -> Halt:
    row = first_failing(*between, lambda stop: fails_over(connection, sql, f"{_ROWS} WHERE {ROW} < {stop}"))
    return input_error(file.path, f"`sql` fails: {reason(error)}", row=row, why=f"It is: {sql}")
