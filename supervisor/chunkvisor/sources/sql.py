"""Reads rows by DuckDB: parquet, and every source of a request with `sql`, `where` or `columns`.

SQL sees one row at a time: what looks at other rows or at the clock is refused, and the rows are counted.
"""

import glob
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from chunkvisor.errors import config_error
from chunkvisor.sources.readers import (
    Number,
    columns_of,
    composer,
    in_words,
    input_error,
    missing_column,
    read_objects,
    read_rows,
)
from chunkvisor.sources.resolve import IngestRequest, SourceFile, SourceFormat, parse_template
from chunkvisor.store.disk import DISK_ERRNOS

_SHARE_BYTES = 256 << 20
"""Of memory for Python and one batch of rows; and for a thread, which holds row groups of parquet."""
_BATCH_ROWS = 8192
_BATCH_CHARS = 8 << 20
_CLOCK = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})
"""SQL calls these functions without brackets; to the parser they are columns."""


def is_disk_fault(error: BaseException) -> bool:
    """Return whether the disk is full or failing; DuckDB says so in words alone."""
    by_number = isinstance(error, OSError) and error.errno in DISK_ERRNOS
    return by_number or bool(re.search("No space left|Disk quota exceeded|Input/output error", str(error)))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
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
        self._connection.execute(f"ATTACH {_literal(str(scratch / 'carried.duckdb'))} AS scratch")
        self._rows_before = 0
        for key, sql in (("sql", request.sql), ("where", request.where)):
            if sql is not None:
                self._check(key, sql)

    def _all(self, sql: str, *values: str) -> list[Any]:
        return self._connection.execute(sql, values or None).fetchall()

    def _check(self, key: str, sql: str) -> None:
        """Refuse what is not one expression over one row. Raises Halt (78)."""
        ((tree,),) = self._all("SELECT json_serialize_sql(?)", f"SELECT (\n{sql}\n)")
        parsed = json.loads(tree)
        if parsed["error"]:
            raise config_error(f"`{key}` cannot be parsed: {parsed['error_message']}", why=f"It is: {sql}")
        node = parsed["statements"][0]["node"]
        single = len(parsed["statements"]) == len(node.get("select_list", ())) == 1
        if not single or node["from_table"]["type"] != "EMPTY":
            raise config_error(f"`{key}` is not one expression: {sql}")
        # error() is volatile to DuckDB, so that it is not moved about; it depends on the row all the same.
        unstable = self._all(
            "SELECT lower(function_name) FROM duckdb_functions() "
            "WHERE stability <> 'CONSISTENT' AND function_name NOT IN ('error', 'assert_true')"
        )
        # Inside a string of the tree, quotes are escaped: these patterns match its own names alone.
        others = {f"a {each.lower()}" for each in re.findall(r'"class":"(WINDOW|SUBQUERY)"', tree)}
        called = {each.casefold() for each in re.findall(r'"function_name":"([^"]+)"', tree)}
        others |= called & {"unnest", *(name for (name,) in unstable)}
        others |= _CLOCK & {each.casefold() for each in re.findall(r'"column_names":\["([^"]+)"\]', tree)}
        if others:
            what = f"`{key}` uses {min(others)}, whose value is not made of the row alone: {sql}"
            why = "Read again, the same row could give another text."
            raise config_error(what, why=why, remedy="Write the value itself, or compute it beforehand, in parquet.")

    def texts(self, file: SourceFile, limit: int | None) -> Iterator[tuple[int, str | None]]:
        """Yield line (or row of parquet) and text of the first rows; the text is None if `where` is not true.

        Raises Halt (78) for bad input, duckdb.Error for a lack of memory or disk.
        """
        request, types = self._request, dict[str, str]()
        try:
            relation, rows = (self._parquet if file.format is SourceFormat.PARQUET else self._text)(file, limit, types)
            for name in request.columns:
                if name not in types:
                    raise missing_column(file.path, name, types)
            cursor, expected = self._connection.execute(self._query(file, types, relation)), 0
            while fetched := cursor.fetchmany(4096):
                for row, line, kept, text in fetched:
                    assert row == expected, f"{file.path}: row {row} in the place of row {expected}"
                    yield line, (text or "") if kept else None
                    expected += 1
            assert expected == rows, f"{file.path}: {expected} texts of {rows} rows"
            if request.has_rows_table:
                wanted = "".join(f", {_quoted(name)}" for name in request.columns)
                select = f"SELECT CAST(__row + {self._rows_before} AS BIGINT) AS source_row{wanted} FROM {relation}"  # noqa: S608 - quoted
                self._all(f"CREATE TABLE IF NOT EXISTS scratch.rows AS {select} LIMIT 0")
                self._all(f"INSERT INTO scratch.rows {select} WHERE ((\n{request.where or 'true'}\n)::BOOLEAN)")
            self._rows_before += rows
        except (duckdb.Error, RuntimeError) as error:  # a RuntimeError for half a character in a name
            if isinstance(error, duckdb.OutOfMemoryException) or is_disk_fault(error):
                raise
            asked = [f"`{key}`" for key in ("sql", "where", "columns") if getattr(request, key)]
            what = " or ".join(asked) + " fails" if asked else "the parquet data cannot be read"
            reason = str(error).split("\n\n", 1)[0].replace("\n", " ")  # the rest is advice about DuckDB's settings
            remedy = in_words(list(types)) if types else "Write or copy the file again."
            raise input_error(file.path, f"{what}: {reason}", remedy=remedy) from error

    def write_rows(self, path: Path) -> None:
        """Write what is known of each row: row, source_row if `where` leaves rows out, and the carried columns."""
        names = ["source_row"] * (self._request.where is not None) + [_quoted(name) for name in self._request.columns]
        columns = ", ".join(["CAST(rowid AS BIGINT) AS row", *names])
        self._all(
            f"COPY (SELECT {columns} FROM scratch.rows) TO {_literal(str(path))} "  # noqa: S608 - quoted names
            "(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 20480)"
        )

    def _parquet(self, file: SourceFile, limit: int | None, types: dict[str, str]) -> tuple[str, int]:
        """Return SQL that can stand after FROM, and the number of rows; note the types of the columns."""
        if not file.path.stat().st_size:
            raise input_error(file.path, "the file is empty.", remedy="Remove it from the sources, or fill it.")
        # DuckDB takes every name for a pattern, and parts of a path for columns.
        name = _literal(glob.escape(str(file.path)))
        data = f"read_parquet({name}, hive_partitioning = false, union_by_name = false)"
        types |= {name: kind for name, kind, *_ in self._all(f"DESCRIBE FROM {data}")}
        ((rows,),) = self._all(f"SELECT num_rows FROM parquet_file_metadata({name})")  # noqa: S608 - quoted
        rows = rows if limit is None else min(rows, limit)
        return f"(SELECT file_row_number AS __row, file_row_number AS __line, * FROM {data} LIMIT {rows})", rows  # noqa: S608 - quoted

    def _text(self, file: SourceFile, limit: int | None, types: dict[str, str]) -> tuple[str, int]:
        """Copy a text format into the database, each row as an object of JSON, and return the same.

        The whole file is read for the types, under any limit: the same row must give the same text in a trial run.
        """
        request, names, compose = self._request, tuple[str, ...](), None
        if request.sql is None:
            names, compose = composer(request)
        is_json = file.format is SourceFormat.JSONL
        kinds = dict[str, set[str]]() if is_json else {name: {"VARCHAR"} for name in columns_of(file) if name}
        self._all("CREATE OR REPLACE TABLE scratch.source (line BIGINT, object VARCHAR, text VARCHAR)")
        batch, rows, chars = list[tuple[int, str, str | None]](), 0, 0
        for line, item, json_text in self._objects(file, limit, list(kinds)):
            for name, cell in item.items() if is_json else ():
                kinds.setdefault(name, set()).add(_kind(cell))
            if limit is not None and rows >= limit:
                continue
            # Made of the cells, which keeps a JSON number as its source writes it.
            text = compose(file.path, line, [item.get(name) for name in names]) if compose is not None else None
            batch.append((line, json_text, text))
            rows, chars = rows + 1, chars + len(json_text)
            if len(batch) == _BATCH_ROWS or chars >= _BATCH_CHARS:
                self._insert(batch)
                batch, chars = [], 0
        self._insert(batch)
        types |= {name: _type_of(found - {"NULL"}) for name, found in kinds.items() if name}
        for name in names:
            if name not in types:
                raise missing_column(file.path, name, types)
        if len({name.casefold() for name in types}) < len(types):
            what = "there are two columns whose names differ only in case, which SQL cannot tell apart."
            raise input_error(file.path, what, remedy="Rename one of them.")
        columns = ["rowid AS __row", "line AS __line", "text AS __text"]
        for name, kind in types.items():
            path = _literal("/" + name.replace("~", "~0").replace("/", "~1"))  # a JSON pointer (RFC 6901)
            value = f"CAST(json_extract_string(object, {path}) AS {kind})"
            value = f"nullif(json_extract(object, {path}), 'null')" if kind == "JSON" else value
            columns.append(f"{value} AS {_quoted(name)}")
        return f"(SELECT {', '.join(columns)} FROM scratch.source)", rows  # noqa: S608 - quoted

    def _objects(
        self, file: SourceFile, limit: int | None, columns: list[str]
    ) -> Iterator[tuple[int, dict[str, Any], str]]:
        skip_blank = self._request.skip_blank
        if file.format is SourceFormat.JSONL:
            yield from ((line, item, text) for line, text, item in read_objects(file, skip_blank))
            return
        for line, cells in read_rows(file, columns, skip_blank=skip_blank, limit=limit):
            item = dict(zip(columns, cells, strict=True))
            yield line, item, json.dumps(item)

    def _insert(self, batch: list[tuple[int, str, str | None]]) -> None:
        if batch:
            lines, *others = zip(*batch, strict=True)
            objects, texts = (np.array(each, dtype=object) for each in others)
            self._connection.register("__batch", {"line": np.array(lines), "object": objects, "text": texts})
            self._all("INSERT INTO scratch.source BY NAME FROM __batch")

    def _query(self, file: SourceFile, types: dict[str, str], relation: str) -> str:
        """Return SQL for row, line, whether it is kept, and text. Raises Halt (78) for another type, duckdb.Error."""
        request = self._request
        if request.sql is not None:
            select = f"(\n{request.sql}\n)"
        elif file.format is not SourceFormat.PARQUET:
            select = "__text"
        else:
            parts = [("", request.column), ("", None)] if request.column else parse_template(request.template or "")
            pieces = list[str]()
            for literal, column in parts:
                pieces.append(_literal(literal))
                if column is None:
                    continue
                if column not in types:
                    raise missing_column(file.path, column, types)
                nested = types[column].endswith("]") or types[column].startswith(("STRUCT", "MAP", "UNION", "BLOB"))
                if nested or (request.column is not None and types[column] not in ("VARCHAR", '"NULL"')):
                    remedy = f"If it is meant, use sql: {_quoted(column)}::VARCHAR, or decode({_quoted(column)})"
                    raise input_error(file.path, f"column {column!r} holds {types[column]}, not text.", remedy=remedy)
                pieces.append(f"coalesce(CAST({_quoted(column)} AS VARCHAR), '')")
            select = " || ".join(pieces)
        kept = "true" if request.where is None else f"coalesce((\n{request.where}\n)::BOOLEAN, false)"
        query = f"SELECT __row, __line, {kept} AS __kept, CASE WHEN __kept THEN {select} END FROM {relation}"  # noqa: S608 - their SQL
        kind = self._all(f"DESCRIBE {query}")[3][1]
        if kind not in ("VARCHAR", '"NULL"'):
            raise input_error(file.path, f"`sql` gives {kind}, not text.", remedy="Convert it: (...)::VARCHAR")
        return query


def _kind(cell: Any) -> str:
    if isinstance(cell, Number):
        if not cell.lstrip("-").isdigit():
            return "DOUBLE"
        return "BIGINT" if len(cell) <= 20 and abs(int(cell)) < 2**63 else "JSON"
    return {str: "VARCHAR", bool: "BOOLEAN", type(None): "NULL"}.get(type(cell), "JSON")


def _type_of(kinds: set[str]) -> str:
    if kinds == {"BIGINT", "DOUBLE"}:
        return "DOUBLE"
    return "JSON" if len(kinds) > 1 else min(kinds, default="VARCHAR")
