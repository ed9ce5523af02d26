"""Reads rows by DuckDB: of parquet, and of every source with `sql`, `where` or `columns`.

An expression is to depend on its row alone: one that looks at other rows or at the clock is
refused.
"""

import contextlib
import glob
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import numpy as np

from chunkvisor.errors import Halt, config_error
from chunkvisor.sources import readers
from chunkvisor.sources.readers import quoted
from chunkvisor.sources.resolve import IngestRequest, SourceFile, SourceFormat, yaml_line

_SHARE_BYTES = 256 << 20
"""Memory for Python and one batch of rows. DuckDB gets one thread for each such share of what is
left, since a thread holds row groups of parquet."""
_BATCH_ROWS = 8192
_BATCH_CHARS = 8 << 20
# Classes of nodes in a parsed expression that look at other rows or columns.
_BEYOND_ONE_ROW = {"window", "subquery", "unnest", "star", "positional_reference"}
# SQL calls these functions without brackets, so that the parser takes them for columns.
_CLOCK = {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"}
_TYPES = {
    type(None): '"NULL"',
    str: "VARCHAR",
    bool: "BOOLEAN",
    readers.Integer: "BIGINT",
    readers.Number: "DOUBLE",
    list: "JSON",
    dict: "JSON",
}
_WHOLE = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"}
_NESTED = re.compile(r"\]$|^(STRUCT|MAP|UNION|BLOB)")
Kinds: TypeAlias = tuple[str, ...]
"""The SQL types of a row's cells, in the order of the columns that the request uses, such as
("BIGINT", "VARCHAR"); "" is for a column that no row has."""
Row: TypeAlias = tuple[int, list[str | None], Kinds]
"""A row of a text format: its line, its text and then its used cells, and the types of these."""
Texts: TypeAlias = Iterator[tuple[int, str | None]]
"""The line of each row, or its number in parquet, and its text: None if `where` leaves it out."""
# Functions and types that take a number as its source writes it.
_TEXT_OPERATIONS = {"||", "concat", "concat_ws", "VARCHAR", "TEXT", "STRING"}


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _as_text(kind: str, sql: str) -> str:
    """Return the SQL that makes text of an expression of this type."""
    if kind == "BLOB":
        return f"decode({sql})"
    if kind == "JSON":
        return f"({sql}->>'$')"
    if kind == "VARCHAR[]":
        return f"array_to_string({sql}, chr(10))"
    if _NESTED.search(kind):
        return f"to_json({sql})::VARCHAR"
    return f"{sql}::VARCHAR"


def _takes_text(node: dict[str, Any]) -> bool:
    """Return whether this node of a parsed expression needs its operands as text.

    It does if it joins texts, casts to text, or compares with a string: in `'v' || version` the
    number 1.10 has to stay `1.10`.
    """
    # DuckDB before 2.0 calls the type of a cast `cast_type`.
    target = node.get("cast_type", {}).get("id") or node.get("type_expr", {}).get("type_name", "")
    if {node.get("function_name"), target.upper()} & _TEXT_OPERATIONS:
        return True
    sides = [node.get("left"), node.get("right"), *node.get("children", [])]
    constants = json.dumps([each for each in sides if each and each["class"] == "CONSTANT"])
    is_equality = re.match("COMPARE_(EQUAL|NOT|IN)", node.get("type", ""))
    return is_equality is not None and re.search('": "(STRING|VARCHAR)"', constants) is not None


def _column_uses(node: Any, as_text: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield each column that a parsed expression names, and whether its text is needed there.

    `node` is a part of the parsed expression: a node, a list of nodes, or a value.
    """
    if isinstance(node, dict):
        if node.get("class") == "COLUMN_REF":
            yield node["column_names"][0], as_text
        if "class" in node:
            as_text = _takes_text(node)
        node = list(node.values())
    for each in node if isinstance(node, list) else ():
        yield from _column_uses(each, as_text)


class SqlReader:
    """Reads the files of a request in their order, and collects the columns to carry along.

    In JSON lines a column may have 42 in one row and "42" in the next. Each row is computed with
    the types of its own values, so that its text depends on no other row; rows with the same types
    share a query. Parquet has one type for a column, and one query for a file.
    """

    def __init__(self, request: IngestRequest, scratch: Path) -> None:
        """Connect to a database that spills to `scratch`.

        Raises Halt (78) for SQL that looks at more than one row.
        """
        self._request = request
        self._kept_if = f"(\n{request.where or 'true'}\n)::BOOLEAN"
        self._rows_before = 0  # in earlier files and batches
        self._used = dict[str, str]()
        """Columns that `sql`, `where` or `columns` use, by their names in lower case."""
        self._typed = set[str]()
        """Those of which `sql` or `where` needs more than the text, in lower case."""
        self._columns = dict[str, str]()
        """Columns of the file that is being read, with their types."""
        self._line = 0  # the first of the rows that were tried last, for messages
        self._rows = ""  # SQL that selects these rows
        self._queries = dict[Kinds, str]()
        self._number = "DOUBLE"  # the cast to suggest where a number is needed
        self._found = {name: set[str]() for name in request.columns}
        """The types of the values in each column that is carried along."""
        self._kept = dict[str, str]()
        """The one type of each of these columns in the table `scratch.rows`."""
        self._names, self._compose = readers.composer(request)
        limit_bytes = max(
            request.memory_limit_bytes - _SHARE_BYTES, request.memory_limit_bytes // 2
        )
        self._connection = duckdb.connect(
            config={
                "memory_limit": f"{limit_bytes >> 10}KiB",
                "temp_directory": str(scratch),
                "threads": max(
                    1, min(4, len(os.sched_getaffinity(0)), limit_bytes // _SHARE_BYTES)
                ),
                "preserve_insertion_order": True,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                # SQL must not reach the variables of this program by their names.
                "python_enable_replacements": False,
            }
        )
        self._execute("SET GLOBAL TimeZone = 'UTC'")
        self._execute(f"ATTACH {_literal(str(scratch / 'rows.duckdb'))} AS scratch")
        for key, sql in (("sql", request.sql), ("where", request.where)):
            if sql is not None:
                self._check_expression(key, sql)
        for name in request.columns:
            self._used[name.casefold()] = name

    def _execute(self, sql: str, *values: str) -> list[Any]:
        return self._connection.execute(sql, values or None).fetchall()

    def _check_expression(self, key: str, sql: str) -> None:
        """Note the columns of an expression. Raises Halt (78) if it looks at more than one row."""
        ((tree,),) = self._execute("SELECT json_serialize_sql(?)", f"SELECT (\n{sql}\n)")
        parsed = json.loads(tree)
        if parsed["error"]:
            raise config_error(
                f"`{key}` cannot be parsed: {parsed['error_message']}",
                "Correct it; it is in DuckDB's dialect.",
                why=f"It is: {sql}",
            )
        node = parsed["statements"][0]["node"]
        single = len(parsed["statements"]) == len(node.get("select_list", ())) == 1
        if not single or node["from_table"]["type"] != "EMPTY":
            raise config_error(
                f"`{key}` is not one expression: {sql}", "Write one expression over the columns."
            )
        # error() is constant enough: DuckDB calls it volatile to keep it in its place. From 2.0.1
        # on it calls `+` and others unstable, but only those kinds of them that take a TIMESTAMPTZ:
        # they follow the time zone, which is set above.
        unstable = self._execute(
            "SELECT lower(function_name) AS name FROM duckdb_functions() GROUP BY name "
            "HAVING NOT bool_or(stability = 'CONSISTENT') AND name NOT IN ('error', 'assert_true')"
        )
        # Quotes within a string of the JSON are escaped, so this pattern cannot match there.
        called = {
            each.casefold() for each in re.findall(r'"(?:class|function_name)":"([^"]+)"', tree)
        }
        others = called & {*_BEYOND_ONE_ROW, *itertools.chain(*unstable)}
        for name, as_text in _column_uses(node):
            self._used[name.casefold()] = name
            if not as_text:
                self._typed.add(name.casefold())
            others |= _CLOCK & {name.casefold()}
        if others:
            raise config_error(
                f"`{key}` uses {min(others)}, whose value depends on more than the row: {sql}",
                "Write the value itself, or compute it beforehand, in parquet.",
                why="The same row could give another text when it is read again.",
            )
        if "%" in called:
            self._number = "BIGINT"

    def texts(self, file: SourceFile, limit: int) -> Texts:
        """Yield the first `limit` rows of the file.

        Raises Halt (78) for bad input, duckdb.Error for a lack of memory or disk.
        """
        self._columns = {}
        self._line = 0
        self._rows = ""
        is_parquet = file.format is SourceFormat.PARQUET
        try:
            yield from (
                self._parquet_rows(file, limit) if is_parquet else self._text_rows(file, limit)
            )
        except RecursionError as error:
            raise file.error("a value is nested too deeply.") from error
        except duckdb.Error as error:
            if isinstance(error, duckdb.OutOfMemoryException) or is_disk_fault(error):
                raise
            request = self._request
            asked = [f"`{key}`" for key in ("sql", "where", "columns") if getattr(request, key)]
            what = " or ".join(asked) + " fails" if asked else "the parquet data cannot be read"
            # Only the first line is for our users: the others list candidates and settings.
            reason = str(error).split("\n", 1)[0]
            if self._line:
                reason += f" (line {self._line})"
            remedies = [readers.other_delimiter(file, name) for name in self._used]
            if isinstance(error, duckdb.ConversionException):
                remedies.append("Correct the value, or use TRY_CAST, which makes NULL of it.")
            elif isinstance(error, duckdb.BinderException):
                remedies += [
                    self._repaired(key) for key in ("where", "sql") if getattr(request, key)
                ]
            columns = (
                readers.columns_in_words(list(self._columns))
                if asked
                else "Write or copy the file again."
            )
            raise file.error(
                f"{what}: {reason}", remedy=next(filter(None, remedies), columns)
            ) from error

    def _parquet_rows(self, file: SourceFile, limit: int) -> Texts:
        if not file.path.stat().st_size:
            raise file.error("the file is empty.", remedy="Remove it from the sources, or fill it.")
        # DuckDB would read a name as a pattern, and `/year=2024/` in a path as a column.
        name = _literal(glob.escape(str(file.path)))
        data = f"read_parquet({name}, hive_partitioning = false, union_by_name = false)"
        self._columns = {name: kind for name, kind, *_ in self._execute(f"DESCRIBE FROM {data}")}
        self._check_columns(file)
        metadata = f"parquet_file_metadata({name})"
        ((rows,),) = self._execute(f"SELECT num_rows FROM {metadata}")  # noqa: S608 - quoted
        rows = min(rows, limit)
        columns = "file_row_number AS __row, *"
        self._rows = f"(SELECT {columns} FROM {data} LIMIT {rows})"  # noqa: S608 - quoted
        cursor = self._connection.execute(self._query(file, self._parquet_text(file)))
        expected = 0
        while fetched := cursor.fetchmany(4096):
            for row, kept, text in fetched:
                assert row == expected, f"{file.path}: row {row} in the place of row {expected}"
                yield row, (text or "") if kept else None
                expected += 1
        assert expected == rows, f"{file.path}: {expected} texts of {rows} rows"
        for name, found in self._found.items():
            found.add(self._columns[name])
        self._keep_columns(self._columns, f"{self._rows} WHERE {self._kept_if}", rows)

    def _check_columns(self, file: SourceFile) -> None:
        for name in (*self._names, *self._request.columns):
            if name not in self._columns:
                raise readers.missing_column(file, name, self._columns)

    def _parquet_text(self, file: SourceFile) -> str:
        """Return the SQL that makes a text of parquet columns, by `column` or `template`.

        Raises Halt (78) for a column that does not hold text.
        """
        pieces = list[str]()
        for literal, column in self._request.parts:
            pieces.append(_literal(literal))
            if column is not None:
                kind = self._columns[column]
                text = _as_text(kind, quoted(column))
                is_text = kind in ("VARCHAR", '"NULL"') or self._request.column is None
                if not is_text or _NESTED.search(kind):
                    raise file.error(
                        f"column {column!r} holds {kind}, not text.",
                        remedy=f"If it is meant, write {yaml_line('sql', text)}",
                    )
                pieces.append(f"coalesce({text}, '')")
        return " || ".join(pieces)

    def _text_rows(self, file: SourceFile, limit: int) -> Texts:
        keys = dict[str, str]()  # columns of the file by their names in lower case
        batch = list[Row]()
        rows = 0
        chars = 0
        for line, item in readers.read_objects(file, self._request.skip_blank):
            if not item.keys() <= self._columns.keys():
                self._columns |= dict.fromkeys(item, "VARCHAR")
                keys |= {name.casefold(): name for name in item}
            if rows == limit:
                # The rest is only searched for columns that the first rows happen to lack.
                if self._used.keys() <= keys.keys():
                    break
                continue
            values = [item.get(keys.get(name, name)) for name in self._used]
            kinds = tuple(map(_kind_of, values))
            text = self._compose(file, line, [item.get(name) for name in self._names])
            cells = [text, *map(readers.cell_text, values)]
            batch.append((line, cells, kinds))
            rows += 1
            chars += len(readers.utf8_of(file, line, "".join(filter(None, cells))))
            if len(batch) == _BATCH_ROWS or chars >= _BATCH_CHARS:
                yield from self._compute(file, batch)
                batch = []
                chars = 0
        yield from self._compute(file, batch)
        if len(keys) < len(self._columns):
            raise file.error(
                "there are two columns whose names differ only in case, which SQL cannot tell "
                "apart.",
                remedy="Rename one of them.",
            )
        if rows:
            self._check_columns(file)
            # A column that `sql` or `where` names may be in no row: the query without it says so.
            self._line = 0
            found = [
                kind if name in keys else "" for name, kind in zip(self._used, kinds, strict=True)
            ]
            self._query_for(file, tuple(found))

    def _compute(self, file: SourceFile, batch: list[Row]) -> Texts:
        """Yield line and text of these rows, and keep the columns to carry along."""
        groups = dict[Kinds, list[int]]()
        texts = dict[int, str | None]()
        for number, (_, _, kinds) in enumerate(batch):
            groups.setdefault(kinds, []).append(number)
        for kinds, numbers in groups.items():
            for number, is_kept, text in self._run_query(file, kinds, batch, numbers):
                texts[number] = (text or "") if is_kept else None
            for name, kind in zip(self._used.values(), kinds, strict=True):
                self._found.get(name, set()).add(kind)
        kept = [number for number in range(len(batch)) if texts[number] is not None]
        self._register("__kept", self._used.values(), batch, kept)
        self._keep_columns(dict.fromkeys(self._found, "VARCHAR"), "__kept", len(batch))
        yield from ((line, texts[number]) for number, (line, *_) in enumerate(batch))

    def _run_query(
        self, file: SourceFile, kinds: Kinds, batch: list[Row], numbers: list[int]
    ) -> list[tuple[int, bool, str | None]]:
        """Return number, whether it is kept, and text of the rows `numbers` of the batch.

        All of them have these types. If the query fails, each half of the rows is tried alone,
        until one row is left; `_line` is its line.
        """
        self._line = batch[numbers[0]][0]
        self._register("__batch", [f"__{slot}" for slot in range(len(kinds))], batch, numbers)
        try:
            return self._execute(self._query_for(file, kinds))
        except duckdb.Error:
            if len(numbers) == 1:
                raise
            middle = len(numbers) // 2
            return [
                *self._run_query(file, kinds, batch, numbers[:middle]),
                *self._run_query(file, kinds, batch, numbers[middle:]),
            ]

    def _register(
        self, name: str, columns: Iterable[str], batch: list[Row], numbers: list[int]
    ) -> None:
        """Let SQL read these rows of the batch as a table of that name."""
        arrays = {"__row": np.array(numbers)}
        for slot, column in enumerate(["__text", *columns]):
            arrays[column] = np.array([batch[number][1][slot] for number in numbers], dtype=object)
        self._connection.register(name, arrays)

    def _query_for(self, file: SourceFile, kinds: Kinds) -> str:
        """Return the query for rows whose values have these types; a column of type "" is absent.

        DuckDB gets a value that is not text as the text that its source writes, if all uses of its
        column need only that. If it refuses such a query, all values are tried in their own types,
        then the text of one column after the other.
        """
        if kinds in self._queries:
            return self._queries[kinds]
        types = {name: kind for name, kind in zip(self._used, kinds, strict=True) if kind}
        others = [name for name, kind in types.items() if kind != "VARCHAR"]
        as_text = {name: "VARCHAR" for name in others if name not in self._typed}
        refused: Exception | None = None
        for changes in (as_text, {}, *(as_text | {name: "VARCHAR"} for name in others)):
            cells = ["*"]
            for slot, name in enumerate(self._used):
                if name in types:
                    kind = changes.get(name, types[name])
                    cells.append(f"CAST(__{slot} AS {kind}) AS {quoted(self._used[name])}")
            self._rows = f"(SELECT {', '.join(cells)} FROM __batch)"  # noqa: S608 - quoted
            try:
                self._queries[kinds] = self._query(file, "__text")
                return self._queries[kinds]
            except (duckdb.BinderException, Halt) as error:
                refused = refused or error
        assert refused is not None
        raise refused

    def _query(self, file: SourceFile, text: str) -> str:
        """Return the query for row, whether `where` keeps it, and its text.

        Raises Halt (78) if `sql` does not give text, duckdb.Error.
        """
        sql = self._request.sql
        select = text if sql is None else f"(\n{sql}\n)"
        query = (
            f"SELECT __row, coalesce({self._kept_if}, false) AS __kept, "  # noqa: S608 - their SQL
            f"CASE WHEN __kept THEN {select} END FROM {self._rows}"
        )
        kind = self._execute(f"DESCRIBE {query}")[2][1]
        if kind not in ("VARCHAR", '"NULL"'):
            raise file.error(
                f"`sql` gives {kind}, not text.",
                remedy=f"Write {yaml_line('sql', _as_text(kind, f'({sql})'))}",
            )
        return query

    def _repaired(self, key: str) -> str:
        """Return the advice to cast a column, or all columns, if that makes the expression valid.

        It is empty if no cast does, or if the expression is valid as it is.
        """
        sql = getattr(self._request, key)
        names = list(map(re.escape, self._used))
        casts = ("", f"::{self._number}", "::VARCHAR")
        for cast, name in itertools.product(casts, [*names, "|".join(names)]):
            column = rf"""(?<![':])"?\b({name})\b"?(?!')"""
            mended = re.sub(column, rf"\g<0>{cast}", sql, flags=re.IGNORECASE)
            with contextlib.suppress(duckdb.Error):
                query = f"DESCRIBE SELECT (\n{mended}\n) FROM {self._rows}"  # noqa: S608 - theirs
                given = self._execute(query)[0][1]
                if key == "sql" and given != "VARCHAR":
                    mended = _as_text(given, f"({mended})")
                return f"Write {yaml_line(key, mended)}" if cast else ""
        return ""

    def _keep_columns(self, kinds: dict[str, str], rows: str, count: int) -> None:
        """Put rows into the table `scratch.rows`: source_row, and the columns to carry along.

        `rows` is the SQL that selects them, `kinds` has the types of their columns, and `count` is
        how many rows were read. A column has one type for all files, so it is changed when a file
        has another: to BIGINT if all are whole numbers, else to VARCHAR.
        """
        cells = [f"CAST(__row + {self._rows_before} AS BIGINT) AS source_row"]
        self._rows_before += count
        for name in self._found:
            column = quoted(name)
            kind = kinds[name]
            value = column
            kept = self._kept.setdefault(name, kind)
            if kept != kind:
                is_whole = {kept, kind} <= _WHOLE
                goal = "BIGINT" if is_whole else "VARCHAR"
                if kept != goal:
                    old = column if is_whole else _as_text(kept, column)
                    self._execute(
                        f"ALTER TABLE scratch.rows ALTER {column} TYPE {goal} USING {old}"
                    )
                    self._kept[name] = goal
                value = column if is_whole else _as_text(kind, column)
            cells.append(f"CAST({value} AS {self._kept[name]}) AS {column}")
        if self._request.has_rows_file:
            select = f"SELECT {', '.join(cells)} FROM {rows}"  # noqa: S608 - quoted
            self._execute(f"CREATE TABLE IF NOT EXISTS scratch.rows AS {select} LIMIT 0")
            self._execute(f"INSERT INTO scratch.rows {select}")

    def write_rows(self, path: Path, wanted: range) -> None:
        """Write `rows.parquet`: row, source_row if `where` leaves rows out, carried columns.

        It has the rows with the numbers `wanted`, and numbers them from 0.
        """
        names = [f"CAST(rowid - {wanted.start} AS BIGINT) AS row"]
        for name, found in self._found.items():
            kind = self._kept[name]
            column = quoted(name)
            found.discard('"NULL"')
            # Columns of text formats were kept as text: one with values of a single type gets that
            # type again. Not HUGEINT: parquet has no integers of 128 bits.
            if kind == "VARCHAR" and len(found) == 1 and "HUGEINT" not in found:
                (kind,) = found
            names.append(f"CAST({column} AS {kind}) AS {column}")
        if self._request.where is not None:
            names.insert(1, "source_row")
        part = f"rowid BETWEEN {wanted.start} AND {wanted.stop - 1}"
        columns = ", ".join(names)
        rows = f"SELECT {columns} FROM scratch.rows WHERE {part}"  # noqa: S608 - quoted names
        self._execute(
            f"COPY ({rows}) TO {_literal(str(path))} (FORMAT parquet, COMPRESSION zstd, "
            f"ROW_GROUP_SIZE 20480)"
        )


def _kind_of(value: Any) -> str:
    """Return the SQL type of a value of a text format; HUGEINT from 2**63 on."""
    kind = _TYPES[type(value)]
    # A number may have millions of digits, of which the first 40 suffice to see that it is long.
    is_long = kind == "BIGINT" and len(value) > 18 and abs(int(value[:40])) >> 63
    return "HUGEINT" if is_long else kind


def is_disk_fault(error: BaseException) -> bool:
    """Return whether the disk is full or failing, which DuckDB says only in its message."""
    said = "No space left|Disk quota exceeded|Input/output error|fsync failed"
    return re.search(said, str(error)) is not None
