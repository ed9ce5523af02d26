"""Rows by DuckDB: of parquet files, of text files with SQL, and the columns that are carried along.

DuckDB must not fold or rename a column, nor take a part of the path for a column or a pattern.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import Flag, auto
from pathlib import Path
from typing import TypeAlias

import duckdb
import numpy as np

from chunkvisor.errors import Halt
from chunkvisor.sources.problems import input_error, missing_column, refuse_case_twins, too_deep
from chunkvisor.sources.readers import TEXT_COLUMN, Cell, Number, Row, csv_columns, json_text, read_objects, read_rows
from chunkvisor.sources.request import IngestRequest, parse_template
from chunkvisor.sources.resolve import Format, SourceFile
from chunkvisor.sources.sql import (
    ROW,
    check_names,
    evaluate,
    fails_over,
    first_failing,
    folded,
    is_about_data,
    literal,
    quoted,
    reason,
)

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


Batch: TypeAlias = list[tuple[int, list[str | None]]]
"""Line and cells of each row, the cells as text that DuckDB casts to the type of their column."""

_BATCH_ROWS = 8192
_BATCH_CHARS = 8 << 20
_MAX_KEYS = 2000
BATCH = "__chunkvisor_batch"


class _Kind(Flag):
    """What values a JSON key has."""

    TEXT = auto()
    BOOLEAN = auto()
    INTEGER = auto()
    WIDE_INTEGER = auto()
    """Above 2**53: a double cannot hold each of them."""
    HUGE_INTEGER = auto()
    """Beyond 64 bits."""
    REAL = auto()
    NESTED = auto()


def sql_rows(
    connection: duckdb.DuckDBPyConnection, file: SourceFile, request: IngestRequest, limit: int | None
) -> Iterator[tuple[int, str | None]]:
    """Line and text of the first `limit` rows. Raises Halt (exit 78) for bad input, with its line."""
    assert request.sql is not None
    types = _column_types(file, skip_blank=request.skip_blank)
    refuse_case_twins(file.path, types)
    check_names(connection, file, request.sql, types)
    _refuse_surrogates(file, types)
    relation = _relation_of(types)
    rows = read_rows(file, list(types), skip_blank=request.skip_blank, limit=limit)
    for batch in batched(file, rows, list(types.values())):
        register(connection, batch, len(types))
        try:
            texts = list(_evaluate(connection, file, request.sql, relation, batch))
        except duckdb.Error as error:
            if not is_about_data(error):
                raise
            raise _located_in_batch(connection, file, request.sql, relation, batch, len(types), error) from error
        if len(texts) != len(batch):
            raise input_error(
                file.path,
                f"`sql` gives {len(texts)} texts for {len(batch)} rows.",
                line=batch[0][0],
                why=f"It must give one text for each row: {request.sql}",
            )
        for (line, _), (_, text) in zip(batch, texts, strict=True):
            yield line, text


def relations(
    connection: duckdb.DuckDBPyConnection, file: SourceFile, limit: int | None, *, skip_blank: bool
) -> Iterator[tuple[str, list[str], int]]:
    """The first `limit` rows, batch by batch: SQL that can stand after FROM, its columns, the first row's number.

    Raises Halt (exit 78) for bad input.
    """
    types = _column_types(file, skip_blank=skip_blank)
    first = 0
    for batch in batched(file, read_rows(file, list(types), skip_blank=skip_blank, limit=limit), list(types.values())):
        register(connection, batch, len(types))
        yield _relation_of(types), list(types), first
        first += len(batch)


def _evaluate(
    connection: duckdb.DuckDBPyConnection, file: SourceFile, sql: str, relation: str, batch: Batch
) -> Iterator[tuple[int, str | None]]:
    return evaluate(connection, file, sql, relation, lambda row: {"line": batch[row][0]})


def _located_in_batch(
    connection: duckdb.DuckDBPyConnection,
    file: SourceFile,
    sql: str,
    relation: str,
    batch: Batch,
    width: int,
    error: duckdb.Error,
) -> Exception:
    def fails(stop: int) -> bool:
        try:
            register(connection, batch[:stop], width)
            for _ in _evaluate(connection, file, sql, relation, batch):
                pass
        except duckdb.Error:
            return True
        return False

    index = first_failing(0, len(batch), fails)
    return input_error(file.path, f"`sql` fails: {reason(error)}", line=batch[index][0], why=f"It is: {sql}")


def _refuse_surrogates(file: SourceFile, columns: Iterable[str]) -> None:
    for column in columns:
        try:
            column.encode()
        except UnicodeEncodeError:
            raise input_error(
                file.path,
                f"the key {column!r} has a lone surrogate, which SQL cannot name.",
                remedy="Correct the key in the source, or use column or template.",
            ) from None


def batched(file: SourceFile, rows: Iterator[Row], types: Sequence[str]) -> Iterator[Batch]:
    """The rows in batches of bounded size. Raises Halt (exit 78) for JSON that is nested too deeply."""
    batch: Batch = []
    chars = 0
    for line, cells in rows:
        try:
            texts = [_as_text(cell, kind) for cell, kind in zip(cells, types, strict=True)]
        except RecursionError as error:
            raise too_deep(file.path, line) from error
        batch.append((line, texts))
        chars += sum(len(text) for text in texts if text is not None)
        if len(batch) == _BATCH_ROWS or chars >= _BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


def _as_text(cell: Cell, kind: str) -> str | None:
    if cell is None:
        return None
    return str(cell) if isinstance(cell, str) and kind != "JSON" else json_text(cell)


def register(connection: duckdb.DuckDBPyConnection, batch: Batch, width: int) -> None:
    """Let SQL read the batch as `BATCH`: the columns row, c0, c1 and so on, of text."""
    # Columns go by position: DuckDB would rename those whose names differ only in case.
    columns = {"row": np.arange(len(batch))}
    for index in range(width):
        columns[f"c{index}"] = column = np.empty(len(batch), dtype=object)
        column[:] = [cells[index] for _, cells in batch]
    connection.register(BATCH, columns)


def _relation_of(types: dict[str, str]) -> str:
    casts = [f"CAST(c{index} AS {kind}) AS {quoted(name)}" for index, (name, kind) in enumerate(types.items())]
    return f"(SELECT {', '.join([f'row AS {ROW}', *casts])} FROM {BATCH})"  # noqa: S608 - names are quoted


def _column_types(file: SourceFile, *, skip_blank: bool) -> dict[str, str]:
    if file.format is Format.TXT:
        return {TEXT_COLUMN: "VARCHAR"}
    if file.format is not Format.JSONL:
        return {name: "VARCHAR" for name in csv_columns(file) if name}
    # The whole file is read for the types, under any limit: the same row must give the same text in a trial run.
    kinds: dict[str, _Kind] = {}
    for line, item in read_objects(file, skip_blank=skip_blank):
        for name, cell in item.items():
            if name:
                kinds[name] = kinds.get(name, _Kind(0)) | _kind(cell)
        if len(kinds) > _MAX_KEYS:
            raise input_error(
                file.path,
                f"the objects have more than {_MAX_KEYS:,} different keys, and for `sql` each is a column.",
                line=line,
                remedy="Use column or template, or move what is data out of the keys.",
            )
    return {name: _json_type(kind) for name, kind in kinds.items()}


def _kind(cell: Cell) -> _Kind:
    if cell is None:
        return _Kind(0)
    if isinstance(cell, Number):
        return _number_kind(cell)
    if isinstance(cell, str):
        return _Kind.TEXT
    return _Kind.BOOLEAN if isinstance(cell, bool) else _Kind.NESTED


def _number_kind(number: Number) -> _Kind:
    if not number.lstrip("-").isdigit():
        return _Kind.REAL
    if len(number) > 20:
        return _Kind.HUGE_INTEGER
    value = int(number)
    if not -(2**63) <= value < 2**63:
        return _Kind.HUGE_INTEGER
    return _Kind.INTEGER if abs(value) <= 2**53 else _Kind.WIDE_INTEGER


def _json_type(kind: _Kind) -> str:
    if not kind or kind is _Kind.TEXT:
        return "VARCHAR"
    if kind is _Kind.BOOLEAN:
        return "BOOLEAN"
    if kind in _Kind.INTEGER | _Kind.WIDE_INTEGER:
        return "BIGINT"
    if kind in _Kind.INTEGER | _Kind.REAL:
        return "DOUBLE"
    return "JSON"


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
