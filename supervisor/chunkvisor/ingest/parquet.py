"""Rows of a parquet file, by DuckDB, whatever the request makes the text of.

DuckDB must not fold or rename a column, nor take a part of the path for a column or a pattern.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import duckdb

from chunkvisor.errors import Halt
from chunkvisor.ingest.condition import folded
from chunkvisor.ingest.database import literal, quoted
from chunkvisor.ingest.expression import ROW, check_names, evaluate, fails_over, first_failing, is_about_data, reason
from chunkvisor.ingest.problem import input_error, missing_column, refuse_case_twins
from chunkvisor.ingest.request import IngestRequest, parse_template
from chunkvisor.ingest.sources import SourceFile

_ROW_NUMBER = "file_row_number"
_SIMPLE_TYPES = {
    *("VARCHAR", '"NULL"', "BOOLEAN", "UUID", "DATE", "FLOAT", "DOUBLE"),
    *(f"{sign}{size}" for sign in ("", "U") for size in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")),
}
_EVALUATION_FAULTS = (duckdb.ConversionException, duckdb.InvalidInputException, duckdb.OutOfRangeException)
_SIMPLE_PREFIXES = ("DECIMAL(", "TIME", "ENUM(")


def parquet_rows(
    connection: duckdb.DuckDBPyConnection, file: SourceFile, request: IngestRequest, limit: int | None, folder: Path
) -> Iterator[tuple[int, str | None]]:
    """Row (from 0) and text of the first `limit` rows; `folder` is for a link to the file.

    Raises Halt (exit 78) for bad input.
    """
    link = _link(file, folder)
    rows_in_file, columns = _open(connection, file, link)
    wanted = rows_in_file if limit is None else min(limit, rows_in_file)
    sql = columns_expression(connection, file, request, columns)
    if request.where is not None:
        refuse_case_twins(file.path, columns)
        sql = folded(request.where, sql)
    found, by_sql = 0, request.sql is not None or request.where is not None
    try:
        for row, text in evaluate(connection, file, sql, _relation(link, wanted), lambda row: {"row": row}):
            found += 1
            yield row, text
    except duckdb.Error as error:
        if not is_about_data(error):
            raise
        raise _located(
            connection,
            file,
            link,
            sql,
            (found, wanted),
            error,
            by_sql=by_sql,
        ) from error
    if found != wanted:
        raise input_error(file.path, f"`sql` gives {found} texts for {wanted} rows: {sql}")


def parquet_relation(
    connection: duckdb.DuckDBPyConnection, file: SourceFile, limit: int | None, folder: Path
) -> tuple[str, list[str]]:
    """The first `limit` rows as SQL that can stand after FROM, and its columns. Raises as `parquet_rows`."""
    link = _link(file, folder)
    rows_in_file, columns = _open(connection, file, link)
    return _relation(link, rows_in_file if limit is None else min(limit, rows_in_file)), list(columns)


def rows_in(connection: duckdb.DuckDBPyConnection, file: SourceFile, folder: Path) -> int:
    """Rows of the file, as its footer has them; `folder` is for a link to it. Raises duckdb.Error."""
    return _count(connection, _link(file, folder))


def _count(connection: duckdb.DuckDBPyConnection, link: Path) -> int:
    ((rows,),) = connection.execute(
        f"SELECT num_rows FROM parquet_file_metadata({literal(str(link))})"  # noqa: S608 - a quoted literal
    ).fetchall()
    return int(rows)


def _link(file: SourceFile, folder: Path) -> Path:
    """A name for the file without any glob character: read_parquet takes every name for a pattern."""
    link = folder / "source.parquet"
    link.unlink(missing_ok=True)
    link.symlink_to(file.path.absolute())
    return link


def _open(
    connection: duckdb.DuckDBPyConnection, file: SourceFile, link: Path
) -> tuple[int, dict[str, tuple[str, str]]]:
    """Rows of the file; and for each column, by its own name, DuckDB's name for it and its type."""
    if not file.path.stat().st_size:
        raise input_error(file.path, "the file is empty.", remedy="Remove it from the sources, or fill it.")
    path = literal(str(link))
    try:
        rows = _count(connection, link)
        schema = connection.execute(f"SELECT name, num_children FROM parquet_schema({path})").fetchall()  # noqa: S608 - a quoted literal
        described = connection.execute(f"DESCRIBE SELECT * FROM {_read(link)}").fetchall()  # noqa: S608 - as above
    except duckdb.Error as error:
        if isinstance(error, duckdb.OutOfMemoryException):
            raise
        raise _damaged(file, link, error) from error
    except UnicodeDecodeError as error:
        raise input_error(file.path, "the file is damaged: a column's name is not UTF-8.") from error
    names = _top_level(schema)
    assert len(names) == len(described), "DuckDB shows another number of columns than the file has"
    for name, count in Counter(names).items():
        if count > 1:
            raise input_error(file.path, f"there are two columns {name!r}.", remedy="Rename one of them.")
        if name.lower() in (_ROW_NUMBER, ROW):
            raise input_error(
                file.path,
                f"a column is named {name!r}, the name that the parquet reader gives to the number of the row.",
                remedy="Rename the column.",
            )
    return rows, {name: (column[0], column[1]) for name, column in zip(names, described, strict=True)}


def _top_level(schema: list[tuple[str, int | None]]) -> list[str]:
    """Names of the columns from the file's tree in depth-first order, its root first."""
    names = []
    pending = 0
    for name, children in schema[1:]:
        if not pending:
            names.append(name)
            pending = 1
        pending += (children or 0) - 1
    return names


def columns_expression(
    connection: duckdb.DuckDBPyConnection, file: SourceFile, request: IngestRequest, columns: dict[str, tuple[str, str]]
) -> str:
    """SQL for the text of a row; for each column, by its own name, DuckDB's name for it and its type.

    Raises Halt (exit 78) where the request does not fit the columns.
    """
    if request.sql is not None:
        refuse_case_twins(file.path, columns)
        check_names(connection, file, request.sql, columns)
        return request.sql
    if request.column is not None:
        name, kind = _column(file, columns, request.column)
        if kind not in ("VARCHAR", '"NULL"'):
            raise input_error(
                file.path,
                f"column {request.column!r} holds {kind}, not text.",
                remedy=f"If it is meant, use sql: decode({quoted(name)})"
                if kind == "BLOB"
                else f"If it is meant, use sql: {quoted(name)}::VARCHAR",
            )
        return quoted(name)
    assert request.template is not None
    pieces = []
    for part in parse_template(request.template):
        if part.column is None:
            pieces.append(literal(part.literal))
            continue
        name, kind = _column(file, columns, part.column)
        if (kind not in _SIMPLE_TYPES and not kind.startswith(_SIMPLE_PREFIXES)) or kind.endswith("]"):
            raise input_error(file.path, f"column {part.column!r} holds {kind}, which a template cannot take.")
        pieces.append(f"coalesce(CAST({quoted(name)} AS VARCHAR), '')")
    return " || ".join(pieces)


def _column(file: SourceFile, columns: dict[str, tuple[str, str]], name: str) -> tuple[str, str]:
    if name not in columns:
        raise missing_column(file.path, name, columns)
    return columns[name]


def _read(link: Path) -> str:
    return f"read_parquet({literal(str(link))}, hive_partitioning = false, union_by_name = false)"


def _relation(link: Path, rows: int) -> str:
    return f"(SELECT {_ROW_NUMBER} AS {ROW}, * FROM {_read(link)} WHERE {_ROW_NUMBER} < {rows})"  # noqa: S608 - a quoted literal


def _located(
    connection: duckdb.DuckDBPyConnection,
    file: SourceFile,
    link: Path,
    sql: str,
    between: tuple[int, int],
    error: duckdb.Error,
    *,
    by_sql: bool,
) -> Halt:
    def fails(stop: int) -> bool:
        return fails_over(connection, sql, _relation(link, stop))

    # After an internal error DuckDB answers nothing more: no row can be looked for.
    if isinstance(error, duckdb.InternalException | duckdb.FatalException) or not fails(between[1]):
        return _damaged(file, link, error)
    row = first_failing(*between, fails)
    message = reason(error).replace(str(link), file.path.name)
    if "Invalid string encoding" in message:
        # A dictionary is checked as a whole, so the row may be any later one that shares it.
        return input_error(file.path, f"invalid UTF-8, in this row or a later one of its row group: {message}", row=row)
    if by_sql and isinstance(error, _EVALUATION_FAULTS):
        return input_error(file.path, f"`sql` fails: {message}", row=row, why=f"It is: {sql}")
    return _damaged(file, link, error, row=row)


def _damaged(file: SourceFile, link: Path, error: duckdb.Error, *, row: int | None = None) -> Halt:
    return input_error(
        file.path,
        f"the parquet data cannot be read: {reason(error).replace(str(link), file.path.name)}",
        row=row,
        remedy="Write or copy the file again.",
    )
