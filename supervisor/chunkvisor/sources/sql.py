"""Reads rows by DuckDB: parquet, and every source of a request with `sql`, `where` or `columns`.

SQL sees one row at a time: what looks at other rows or at the clock is refused, and the rows are counted.
"""

import glob
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb
import numpy as np

from chunkvisor.errors import config_error
from chunkvisor.sources.readers import (
    Cell,
    Number,
    columns_of_text,
    composer,
    in_words,
    input_error,
    json_text,
    missing_column,
    read_objects,
    read_rows,
)
from chunkvisor.sources.resolve import Format, IngestRequest, SourceFile, parse_template
from chunkvisor.store.disk import DISK_ERRNOS

_SHARE_BYTES = 256 << 20
"""Of memory for Python and one batch of rows; and for a thread, which holds row groups of parquet."""
_DISK_PHRASES = ("No space left on device", "Disk quota exceeded", "Input/output error", "max_temp_directory_size")
_BATCH_ROWS = 8192
_BATCH_CHARS = 8 << 20
_MOST_KEYS = 2000
_ROW = "__chunkvisor_row"
_CLOCK = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})
"""SQL calls these functions without brackets; to the parser they are columns."""


class _Batch(NamedTuple):
    """Rows that one query goes over."""

    lines: Sequence[int]
    """Of parquet, numbers of rows."""
    cells: list[Sequence[Cell]]
    """Of a text format."""


def is_disk_fault(error: BaseException) -> bool:
    """Return whether the disk is full or failing; DuckDB says so in words alone."""
    by_number = isinstance(error, OSError) and error.errno in DISK_ERRNOS
    return by_number or any(phrase in str(error) for phrase in _DISK_PHRASES)


def columns_of(file: SourceFile) -> list[str]:
    """Return the columns of a file; of JSON lines, those of the first 100. Raises Halt (78)."""
    if file.format is not Format.PARQUET:
        return columns_of_text(file)
    try:
        with duckdb.connect() as connection:
            return list(_parquet_types(connection, file))
    except duckdb.Error as error:
        raise input_error(file.path, f"the parquet data cannot be read: {error}") from error


def _parquet_types(connection: duckdb.DuckDBPyConnection, file: SourceFile) -> dict[str, str]:
    return {name: kind for name, kind, *_ in connection.execute(f"DESCRIBE FROM {_parquet(file)}").fetchall()}


def _parquet(file: SourceFile, function: str = "read_parquet") -> str:
    # DuckDB takes every name for a pattern, and parts of a path for columns.
    options = ", hive_partitioning = false, union_by_name = false" * (function == "read_parquet")
    return f"{function}({_literal(glob.escape(str(file.path)))}{options})"


def _quoted(name: str) -> str:
    name.encode()  # raises UnicodeError for half a character, of which DuckDB makes a bad_cast
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    text.encode()  # as above
    return "'" + text.replace("'", "''") + "'"


class SqlReader:
    """Reads the files of one request in their order, and collects the columns that are carried along."""

    def __init__(self, request: IngestRequest, scratch: Path) -> None:
        """Connect to a database that spills to `scratch`. Raises Halt (78) for SQL that is not of one row."""
        self._request = request
        limit_bytes = max(request.memory_limit_bytes - _SHARE_BYTES, request.memory_limit_bytes // 2)
        self._connection = duckdb.connect(
            config={
                "memory_limit": f"{limit_bytes >> 10}KiB",
                "temp_directory": str(scratch),
                "threads": max(1, min(4, len(os.sched_getaffinity(0)), limit_bytes // _SHARE_BYTES)),
                "preserve_insertion_order": True,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                # SQL must not reach the variables of this program by their names.
                "python_enable_replacements": False,
            }
        )
        self._connection.execute("SET GLOBAL TimeZone = 'UTC'")
        self._connection.execute(f"ATTACH {_literal(str(scratch / 'carried.duckdb'))} AS carried")
        self._rows_before = 0
        for key, sql in (("sql", request.sql), ("where", request.where)):
            if sql is not None:
                self._check(key, sql)

    def _check(self, key: str, sql: str) -> None:
        """Refuse what is not one expression over one row. Raises Halt (78)."""
        ((tree,),) = self._connection.execute("SELECT json_serialize_sql(?)", [f"SELECT (\n{sql}\n)"]).fetchall()
        parsed = json.loads(tree)
        if parsed["error"]:
            raise config_error(f"`{key}` cannot be parsed: {parsed['error_message']}", why=f"It is: {sql}")
        node = parsed["statements"][0]["node"]
        single = len(parsed["statements"]) == len(node.get("select_list", ())) == 1
        if not single or node["from_table"]["type"] != "EMPTY":
            raise config_error(f"`{key}` is not one expression: {sql}")
        # Inside a string of the tree, quotes are escaped: these patterns match its own names alone.
        others = {f"a {each.lower()}" for each in re.findall(r'"class":"(WINDOW|SUBQUERY)"', tree)}
        called = {each.casefold() for each in re.findall(r'"function_name":"([^"]+)"', tree)}
        words = {each.casefold() for each in re.findall(r'"column_names":\["([^"]+)"\]', tree)}
        # error() is volatile to DuckDB, so that it is not moved about; it depends on the row all the same.
        unstable = self._connection.execute(
            "SELECT lower(function_name) FROM duckdb_functions() "
            "WHERE stability <> 'CONSISTENT' AND function_name NOT IN ('error', 'assert_true')"
        ).fetchall()
        others |= (called & {"unnest", *(name for (name,) in unstable)}) | (words & _CLOCK)
        if others:
            what = f"`{key}` uses {min(others)}, whose value is not made of the row alone: {sql}"
            why = "Read again, the same row could give another text."
            raise config_error(what, why=why, remedy="Write the value itself, or compute it beforehand, in parquet.")

    def texts(self, file: SourceFile, limit: int | None) -> Iterator[tuple[int, str | None]]:
        """Yield line (or row of parquet) and text of the first rows; the text is None if `where` is not true.

        Raises Halt (78) for bad input, duckdb.Error for a lack of memory or disk.
        """
        types, (lines, cells) = dict[str, str](), _Batch((), [])
        names, compose = composer(self._request) if self._request.sql is None else ((), None)
        try:
            types, relation, batches = self._parts(file, limit)
            for name in (*names, *self._request.columns):
                if name not in types:
                    raise missing_column(file.path, name, types)
            indexes = [list(types).index(name) for name in names]
            query = f"SELECT {_ROW}, {self._select(file, types, relation)} FROM {relation}"  # noqa: S608 - their SQL
            for lines, cells in batches:
                cursor, expected = self._connection.execute(query), 0
                while fetched := cursor.fetchmany(4096):
                    for row, text in fetched:
                        assert row == expected, f"{file.path}: row {row} in the place of row {expected}"
                        if text is not None and cells and compose is not None:
                            text = compose(file.path, lines[row], [cells[row][index] for index in indexes])
                        yield lines[row], text
                        expected += 1
                assert expected == len(lines), f"{file.path}: {expected} texts of {len(lines)} rows"
                if self._request.has_rows_table:
                    self._carry(relation)
                self._rows_before += len(lines)
        except (duckdb.Error, UnicodeError) as error:
            if isinstance(error, duckdb.OutOfMemoryException) or is_disk_fault(error):
                raise
            asked = [f"`{key}`" for key in ("sql", "where", "columns") if getattr(self._request, key)]
            what = " or ".join(asked) + " fails" if asked else "the parquet data cannot be read"
            where = f" between line {lines[0]} and line {lines[-1]}" if cells else ""
            reason = str(error).split("\n\n", 1)[0].replace("\n", " ")  # the rest is advice about DuckDB's settings
            why = "All sources must have the carried columns in the same type." * bool(self._request.columns)
            remedy = in_words(list(types)) if types else "Write or copy the file again."
            raise input_error(file.path, f"{what}{where}: {reason}", why=why, remedy=remedy) from error

    def write_rows(self, path: Path, rows: int) -> None:
        """Write what is known of each row: row, source_row if `where` leaves rows out, and the carried columns."""
        names = ["source_row"] * (self._request.where is not None) + [_quoted(name) for name in self._request.columns]
        ((count,),) = self._connection.execute("SELECT count(*) FROM carried.rows").fetchall()
        assert count == rows, f"{count} rows carried, {rows} rows of text"
        columns = ", ".join(["CAST(rowid AS BIGINT) AS row", *names])
        self._connection.execute(
            f"COPY (SELECT {columns} FROM carried.rows) TO {_literal(str(path))} "  # noqa: S608 - quoted names
            "(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 20480)"
        )

    def _carry(self, relation: str) -> None:
        wanted = "".join(f", {_quoted(name)}" for name in self._request.columns)
        select = f"SELECT CAST({_ROW} + {self._rows_before} AS BIGINT) AS source_row{wanted} FROM {relation}"  # noqa: S608 - quoted
        self._connection.execute(f"CREATE TABLE IF NOT EXISTS carried.rows AS {select} LIMIT 0")
        where = self._request.where or "true"
        self._connection.execute(f"INSERT INTO carried.rows {select} WHERE ((\n{where}\n)::BOOLEAN)")

    def _parts(self, file: SourceFile, limit: int | None) -> tuple[dict[str, str], str, Iterable[_Batch]]:
        """Return the types of the columns, SQL that can stand after FROM, and the batches that it stands for."""
        if file.format is Format.PARQUET:
            if not file.path.stat().st_size:
                raise input_error(file.path, "the file is empty.", remedy="Remove it from the sources, or fill it.")
            types = _parquet_types(self._connection, file)
            schema = self._connection.execute(f"SELECT name FROM {_parquet(file, 'parquet_schema')}").fetchall()  # noqa: S608 - quoted
            metadata = _parquet(file, "parquet_file_metadata")
            ((rows,),) = self._connection.execute(f"SELECT num_rows FROM {metadata}").fetchall()  # noqa: S608 - quoted
            rows = rows if limit is None else min(rows, limit)
            # DuckDB renames the second of two columns that it takes for the same.
            twins = {*types} - {name for (name,) in schema} | ({*types} & {_ROW})
            relation = f"(SELECT file_row_number AS {_ROW}, * FROM {_parquet(file)} LIMIT {rows})"  # noqa: S608 - quoted
            batches: Iterable[_Batch] = [_Batch(range(rows), [])]
        else:
            types = _column_types(file, self._request.skip_blank)
            counts = Counter(name.casefold() for name in (_ROW, *types))
            twins = {name for name, count in counts.items() if count > 1}
            casts = [f"CAST(c{index} AS {kind}) AS {_quoted(name)}" for index, (name, kind) in enumerate(types.items())]
            relation = f"(SELECT {', '.join([f'row AS {_ROW}', *casts])} FROM __chunkvisor_batch)"  # noqa: S608 - quoted
            self._register([], len(types))
            batches = self._batches(file, limit, types)
        if twins:
            what = f"there are two columns {min(twins)!r}, or their names differ only in case."
            raise input_error(file.path, what, remedy="Rename one of them, or use column or template without `where`.")
        return types, relation, batches

    def _batches(self, file: SourceFile, limit: int | None, types: dict[str, str]) -> Iterator[_Batch]:
        rows = read_rows(file, list(types), skip_blank=self._request.skip_blank, limit=limit)
        while True:
            lines, cells, texts, chars = list[int](), list[Sequence[Cell]](), list[list[str | None]](), 0
            for line, row in rows:
                try:
                    texts.append([_as_text(cell, kind) for cell, kind in zip(row, types.values(), strict=True)])
                except RecursionError as error:
                    raise input_error(file.path, "the JSON is nested too deeply.", line=line) from error
                lines.append(line)
                cells.append(row)
                chars += sum(len(text) for text in texts[-1] if text is not None)
                if len(texts) == _BATCH_ROWS or chars >= _BATCH_CHARS:
                    break
            if not texts:
                return
            self._register(texts, len(types))
            yield _Batch(lines, cells)

    def _register(self, texts: Sequence[Sequence[str | None]], width: int) -> None:
        """Let SQL read the rows, with all columns as text, by position: DuckDB renames what it cannot tell apart."""
        columns = {"row": np.arange(len(texts))}
        for index in range(width):
            columns[f"c{index}"] = column = np.empty(len(texts), dtype=object)
            column[:] = [row[index] for row in texts]
        self._connection.register("__chunkvisor_batch", columns)

    def _select(self, file: SourceFile, types: dict[str, str], relation: str) -> str:
        """Return SQL for the text of a row, NULL for a row that is left out. Raises Halt (78), duckdb.Error."""
        request = self._request
        if request.sql is not None:
            select = request.sql
            ((_, kind, *_),) = self._connection.execute(f"DESCRIBE SELECT (\n{select}\n) FROM {relation}").fetchall()  # noqa: S608 - their SQL
            if kind not in ("VARCHAR", '"NULL"'):
                raise input_error(file.path, f"`sql` gives {kind}, not text.", remedy="Convert it: (...)::VARCHAR")
        elif file.format is not Format.PARQUET:
            select = "''"  # the text is made of the cells, which keeps a JSON number as its source writes it
        elif request.column is not None:
            select, kind = _quoted(request.column), types[request.column]
            if kind not in ("VARCHAR", '"NULL"'):
                remedy = f"If it is meant, use sql: {f'decode({select})' if kind == 'BLOB' else f'{select}::VARCHAR'}"
                raise input_error(file.path, f"column {request.column!r} holds {kind}, not text.", remedy=remedy)
        else:
            pieces = list[str]()
            for literal, column in parse_template(request.template or ""):
                pieces.append(_literal(literal))
                if column is not None:
                    kind = types[column]
                    if kind.endswith("]") or kind.startswith(("STRUCT", "MAP", "UNION", "BLOB")):
                        raise input_error(file.path, f"column {column!r} holds {kind}, which a template cannot take.")
                    pieces.append(f"coalesce(CAST({_quoted(column)} AS VARCHAR), '')")
            select = " || ".join(pieces)
        if request.where is None:
            return f"(\n{select}\n)"
        return f"CASE WHEN ((\n{request.where}\n)::BOOLEAN) THEN coalesce((\n{select}\n), '') END"


def _as_text(cell: Cell, kind: str) -> str | None:
    if cell is None:
        return None
    return str(cell) if isinstance(cell, str) and kind != "JSON" else json_text(cell)


def _column_types(file: SourceFile, skip_blank: bool) -> dict[str, str]:
    if file.format is not Format.JSONL:
        return {name: "VARCHAR" for name in columns_of_text(file) if name}
    # The whole file is read for the types, under any limit: the same row must give the same text in a trial run.
    kinds: dict[str, set[str]] = {}
    for line, item in read_objects(file, skip_blank):
        for name, cell in item.items():
            if name:
                kinds.setdefault(name, set()).add(_kind(cell))
        if len(kinds) > _MOST_KEYS:
            what = f"the objects have more than {_MOST_KEYS:,} different keys, and for SQL each is a column."
            raise input_error(file.path, what, line=line, remedy="Move what is data out of the keys.")
    return {name: _type_of(found - {"NULL"}) for name, found in kinds.items()}


def _kind(cell: Cell) -> str:
    if isinstance(cell, Number):
        if not cell.lstrip("-").isdigit():
            return "DOUBLE"
        value = int(cell) if len(cell) <= 20 else 2**64
        # A double cannot hold each integer above 2**53, so such a column does not become one.
        return "BIGINT" if abs(value) <= 2**53 else "WIDE" if -(2**63) <= value < 2**63 else "JSON"
    return {str: "VARCHAR", bool: "BOOLEAN", type(None): "NULL"}.get(type(cell), "JSON")


def _type_of(kinds: set[str]) -> str:
    if kinds and kinds <= {"BIGINT", "WIDE"}:
        return "BIGINT"
    if kinds == {"BIGINT", "DOUBLE"}:
        return "DOUBLE"
    return "JSON" if len(kinds) > 1 else min(kinds, default="VARCHAR")
