"""The rows table: which row of the sources each row of the output is, and the columns that are carried along.

DuckDB collects the table in a file of its own, in bounded
memory, and writes it as parquet.
"""

from collections.abc import Iterator
from pathlib import Path

import duckdb

from chunkvisor.ingest.batches import relations
from chunkvisor.ingest.database import literal, quoted
from chunkvisor.ingest.expression import ROW, is_about_data, reason
from chunkvisor.ingest.parquet import parquet_relation
from chunkvisor.ingest.problem import input_error, missing_column, refuse_case_twins
from chunkvisor.ingest.request import IngestRequest
from chunkvisor.ingest.sources import Format, SourceFile

SOURCE_ROW = "source_row"
_GROUP_ROWS = 20_480
"""Of a row group: what a reader of the table holds at a time."""
_TABLE = "carried.rows"


class RowsTable:
    """Takes the source files in their order; `write` makes the parquet file."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, request: IngestRequest, scratch: Path) -> None:
        connection.execute(f"ATTACH {literal(str(scratch / 'carried.duckdb'))} AS carried")
        self._connection = connection
        self._request = request
        self._scratch = scratch
        self._before = 0
        self._made = False

    def add(self, file: SourceFile, limit: int | None, rows: int) -> None:
        """Collect from the first `limit` rows of a file, which has `rows` of those. Raises Halt (exit 78)."""
        try:
            for relation, columns, first in self._relations(file, limit):
                self._insert(file, relation, columns, first)
        except duckdb.Error as error:
            if not is_about_data(error):
                raise
            columns_in_words = ", ".join(map(repr, self._request.columns))
            raise input_error(
                file.path,
                f"the columns to carry along, {columns_in_words}, cannot be read: {reason(error)}",
                why="All sources of an output must have them in the type of the first one.",
            ) from error
        self._before += rows

    def write(self, path: Path, rows: int) -> None:
        """Write the table: row, source_row where rows have other numbers, and the columns. Raises Halt, OSError."""
        names = [SOURCE_ROW] * self._request.numbers_rows
        names += [f"each.{quoted(name)}" for name in self._request.columns]
        ((count,),) = self._connection.execute(f"SELECT count(*) FROM {_TABLE}").fetchall()  # noqa: S608 - a constant
        if count != rows:
            raise AssertionError(f"{count} rows carried, {rows} rows of text")
        columns = ", ".join(["CAST(each.rowid AS BIGINT) AS row", *names])
        self._connection.execute(
            f"COPY (SELECT {columns} FROM {_TABLE} each) TO {literal(str(path))} "  # noqa: S608 - names are quoted
            f"(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {_GROUP_ROWS})"
        )
        self._connection.execute("DETACH carried")

    def _relations(self, file: SourceFile, limit: int | None) -> Iterator[tuple[str, list[str], int]]:
        """(SQL that can stand after FROM, its columns, number in the file of its first row)."""
        if file.format is Format.PARQUET:
            relation, columns = parquet_relation(self._connection, file, limit, self._scratch)
            yield relation, columns, 0
        else:
            yield from relations(self._connection, file, limit, skip_blank=self._request.skip_blank)

    def _insert(self, file: SourceFile, relation: str, columns: list[str], first: int) -> None:
        for name in self._request.columns:
            if name not in columns:
                raise missing_column(file.path, name, columns, why="`columns` asks for it.")
        refuse_case_twins(file.path, columns)
        wanted = "".join(f", {quoted(name)}" for name in self._request.columns)
        select = f"SELECT CAST({ROW} + {self._before + first} AS BIGINT) AS {SOURCE_ROW}{wanted} FROM {relation}"  # noqa: S608 - quoted
        if not self._made:
            self._connection.execute(f"CREATE TABLE {_TABLE} AS {select} LIMIT 0")
            self._made = True
        condition = "" if self._request.where is None else f" WHERE ((\n{self._request.where}\n)::BOOLEAN)"
        self._connection.execute(f"INSERT INTO {_TABLE} {select}{condition}")
