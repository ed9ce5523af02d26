"""SQL over CSV, JSON lines and plain text: rows from Python go to DuckDB in batches of bounded size.

DuckDB guesses no type: every value goes in as text, and is cast to the type of its column.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import Flag, auto
from typing import TypeAlias

import duckdb
import numpy as np

from chunkvisor.ingest.database import quoted
from chunkvisor.ingest.expression import ROW, check_names, evaluate, first_failing, is_about_data, reason
from chunkvisor.ingest.jsonlines import read_objects
from chunkvisor.ingest.problem import input_error, refuse_case_twins, too_deep
from chunkvisor.ingest.readers import TEXT_COLUMN, csv_columns, read_rows
from chunkvisor.ingest.request import IngestRequest
from chunkvisor.ingest.sources import Format, SourceFile
from chunkvisor.ingest.values import Cell, Number, Row, json_text

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
    relation = _relation(types)
    rows = read_rows(file, list(types), skip_blank=request.skip_blank, limit=limit)
    for batch in batched(file, rows, list(types.values())):
        register(connection, batch, len(types))
        try:
            texts = list(_evaluate(connection, file, request.sql, relation, batch))
        except duckdb.Error as error:
            if not is_about_data(error):
                raise
            raise _located(connection, file, request.sql, relation, batch, len(types), error) from error
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
        yield _relation(types), list(types), first
        first += len(batch)


def _evaluate(
    connection: duckdb.DuckDBPyConnection, file: SourceFile, sql: str, relation: str, batch: Batch
) -> Iterator[tuple[int, str | None]]:
    return evaluate(connection, file, sql, relation, lambda row: {"line": batch[row][0]})


def _located(
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


def _relation(types: dict[str, str]) -> str:
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
