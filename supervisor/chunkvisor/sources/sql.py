"""DuckDB: the connection, and SQL over the columns of one row, as an expression or a condition.

The rows are counted: an expression cannot drop, add, merge or move one, whatever SQL it smuggles in. A condition is
folded into the expression that gives the text: a row for which it does not hold has none.
"""

import errno
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb

from chunkvisor.errors import Halt, config_error
from chunkvisor.sources.problems import MAX_TEXT_BYTES, input_error, missing_column, too_large
from chunkvisor.sources.request import IngestRequest
from chunkvisor.sources.resolve import SourceFile
from chunkvisor.store.disk import DISK_ERRNOS

_PYTHON_BYTES = 256 << 20
"""For the interpreter, its libraries and one batch of rows."""
_BYTES_PER_THREAD = 256 << 20
"""A thread holds row groups of parquet while it decodes them."""
_MAX_THREADS = 4
_DISK_PHRASES = ("No space left on device", "Disk quota exceeded", "Input/output error", "max_temp_directory_size")
_REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def connect(memory_limit_bytes: int, temp_folder: Path) -> duckdb.DuckDBPyConnection:
    """An in-memory database that spills to `temp_folder`, under a limit for the whole process of about this size."""
    limit_bytes = max(memory_limit_bytes - _PYTHON_BYTES, memory_limit_bytes // 2)
    connection = duckdb.connect(
        config={
            "memory_limit": f"{limit_bytes >> 10}KiB",
            "temp_directory": str(temp_folder),
            "threads": max(1, min(_MAX_THREADS, len(os.sched_getaffinity(0)), limit_bytes // _BYTES_PER_THREAD)),
            "preserve_insertion_order": True,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            # An SQL expression must not reach the variables of this program by their names.
            "python_enable_replacements": False,
        }
    )
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    return connection


def is_disk_fault(error: BaseException) -> bool:
    """Whether the disk is full or failing, by errno or, from DuckDB, by the words."""
    if isinstance(error, OSError) and error.errno in DISK_ERRNOS:
        return True
    return any(phrase in str(error) for phrase in _DISK_PHRASES)


def as_os_error(error: BaseException) -> OSError | None:
    """What the machine has refused; DuckDB has the reason in the words of strerror(3) alone. None for other errors."""
    if isinstance(error, OSError):
        return error
    if isinstance(error, duckdb.IOException):
        for number in _REFUSALS:
            if os.strerror(number) in str(error):
                named = re.search(r'"(/[^"]+)"', str(error))
                return OSError(number, os.strerror(number), named[1] if named else None)
    return None


def quoted(name: str) -> str:
    """The name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """The text as an SQL string."""
    return "'" + text.replace("'", "''") + "'"


ROW = "__chunkvisor_row"
"""Column of a source that numbers its rows from 0."""
_OURS = "__chunkvisor_"
_FETCH_ROWS = 4096
_VALUES = frozenset(
    {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp", "current_user", "current_role"}
    | {"session_user", "user", "current_catalog", "current_schema"}
)
"""Words that SQL takes for the clock or the session where no column bears the name, though they are parsed as one."""
FAILING = frozenset({"error", "assert_true"})
"""Volatile to DuckDB, so that they are not moved about; whether they fail is a matter of the row."""
_STATEMENT_FAULTS = (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException, duckdb.SyntaxException)


def check_expression(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raise Halt (exit 78) for what is no expression over one row, as far as the text alone can tell."""
    if name := next((each for each in changing_calls(connection, sql, "sql") if each not in FAILING), None):
        raise _no_function_of_the_row(f"{name}()", sql)


def changing_calls(connection: duckdb.DuckDBPyConnection, sql: str, key: str) -> list[str]:
    """Functions in one expression over one row whose value is not made of the row, in their order.

    Raises Halt (exit 78), with the key in its words, for what is no such expression.
    """
    tree = json.loads(_serialized(connection, sql))
    if tree["error"]:
        raise config_error(f"`{key}` cannot be parsed: {tree['error_message']}", why=f"It is: {sql}")
    node = tree["statements"][0]["node"]
    if len(tree["statements"]) != 1 or len(node.get("select_list", ())) != 1 or node["from_table"]["type"] != "EMPTY":
        raise config_error(f"`{key}` is not one expression: {sql}")
    if other := _other_rows(tree):
        raise config_error(
            f"`{key}` has {other}: {sql}",
            why="It may look at the columns of its own row; only that can be told to be unchanged at a resume.",
            remedy="Compute it beforehand and write it to a parquet file.",
        )
    if not _BUILT_IN:
        _BUILT_IN.append(_unstable(connection))
    return [name for name in named_in(tree, "FUNCTION") if name in _BUILT_IN[0]]


_BUILT_IN: list[frozenset[str]] = []
"""What `_unstable` says of a connection to which nothing is attached, once it was asked: that takes 35 ms."""


def check_names(connection: duckdb.DuckDBPyConnection, file: SourceFile, sql: str, columns: Iterable[str]) -> None:
    """Raise Halt (exit 78) where a name in the expression does not mean a column of the file, though it looks like one.

    `current_date` is the clock unless there is such a column; a column with a name of ours would be ours.
    """
    known = {column.casefold() for column in columns}
    for name in bare_names(connection, sql):
        if name in _VALUES and name not in known:
            raise _no_function_of_the_row(name, sql)
    if clash := next((column for column in columns if column.casefold().startswith(_OURS)), None):
        raise input_error(
            file.path,
            f"a column is named {clash!r}, and such names are used while the SQL is evaluated.",
            remedy="Rename the column, or use column or template, which can take it.",
        )


def bare_names(connection: duckdb.DuckDBPyConnection, sql: str) -> list[str]:
    """Names in the expression that no table stands before, in lower case."""
    return list(named_in(json.loads(_serialized(connection, sql)), "COLUMN_REF"))


def evaluate(
    connection: duckdb.DuckDBPyConnection,
    file: SourceFile,
    sql: str,
    relation: str,
    place_of: Callable[[int], dict[str, int]],
) -> Iterator[tuple[int, str | None]]:
    """`ROW` and text of each row of `relation` (SQL that can stand after FROM), in its order.

    Raises Halt (exit 78) where the expression does not fit the columns, gives a text that is too large (`place_of` is
    the `line` or `row` of a row), or anything but one text for each row as far as rows come (the caller counts them);
    duckdb.Error where the evaluation of some row fails, with no word about which.
    """
    inner = f"SELECT {ROW}, (\n{sql}\n) AS __chunkvisor_text FROM {relation}"  # noqa: S608 - the person's own SQL, in a process of their own
    _check_type(connection, file, sql, inner, relation)
    cursor = connection.execute(
        f"SELECT {ROW}, strlen(t), CASE WHEN strlen(t) <= {MAX_TEXT_BYTES} THEN t END "  # noqa: S608 - as above
        f"FROM ({inner}) AS texts({ROW}, t)"
    )
    expected = 0
    while batch := cursor.fetchmany(_FETCH_ROWS):
        for row, size_bytes, text in batch:
            if row != expected:
                raise config_error(f"{file.path}: `sql` does not give one text for each row: {sql}")
            expected += 1
            if size_bytes is not None and size_bytes > MAX_TEXT_BYTES:
                raise too_large(file.path, size_bytes, **place_of(row))
            yield row, text


def fails_over(connection: duckdb.DuckDBPyConnection, sql: str, relation: str) -> bool:
    """Whether the expression, as text, cannot be had of some row of what stands after FROM."""
    try:
        # length() and not strlen(): the latter alone makes the reader of parquet skip its check of the encoding.
        connection.execute(f"SELECT max(length((\n{sql}\n)::VARCHAR)) FROM {relation}").fetchall()  # noqa: S608 - the person's own SQL
    except duckdb.Error:
        return True
    return False


def first_failing(start: int, stop: int, fails: Callable[[int], bool]) -> int:
    """The row in start..stop whose evaluation fails, where `fails(k)` says whether one before row k does."""
    low, high = start, stop
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    return low


def reason(error: duckdb.Error) -> str:
    """The first paragraph of DuckDB's message: the rest is advice about its own settings."""
    return str(error).split("\n\n", 1)[0].replace("\n", " ")


def is_about_data(error: duckdb.Error) -> bool:
    """Whether the source made the evaluation fail, rather than memory or disk."""
    return not isinstance(error, duckdb.OutOfMemoryException) and not is_disk_fault(error)


def _check_type(connection: duckdb.DuckDBPyConnection, file: SourceFile, sql: str, inner: str, relation: str) -> None:
    try:
        described = connection.execute(f"DESCRIBE {inner}").fetchall()
    except _STATEMENT_FAULTS as error:
        raise _unfit(connection, file, relation, error) from error
    if len(described) != 2:
        raise config_error("`sql` is not one expression: it gives several columns.")
    kind = described[1][1]
    if kind == '"NULL"' and "error" in named_in(json.loads(_serialized(connection, sql)), "FUNCTION"):
        raise input_error(file.path, f"`sql` fails for every row: {sql}")
    if kind not in ("VARCHAR", '"NULL"'):
        remedy = "Take the text out of it with ->> instead of ->." if kind == "JSON" else "Convert it: (...)::VARCHAR"
        raise input_error(file.path, f"`sql` gives {kind}, not text.", remedy=remedy)


def _unfit(connection: duckdb.DuckDBPyConnection, file: SourceFile, relation: str, error: duckdb.Error) -> Halt:
    message = reason(error)
    described = connection.execute(f"DESCRIBE SELECT * EXCLUDE {ROW} FROM {relation}").fetchall()  # noqa: S608 - of quoted names
    columns = [name for name, *_ in described]
    if message.startswith("Binder Error: Referenced column ") and '"' in message:
        return missing_column(file.path, message.split('"')[1], columns, why="`sql` or `where` asks for it.")
    if "GROUP BY" in message:
        message = "it has an aggregate, but a text is made of one row."
    return input_error(
        file.path,
        f"`sql` does not fit its columns: {message}",
        remedy=f"The columns are: {', '.join(repr(column) for column in columns)}.",
    )


def _no_function_of_the_row(name: str, sql: str) -> Halt:
    return config_error(
        f"`sql` uses {name}, whose value is not made of the row: {sql}",
        why="Read again for a resume, the same row would give another text.",
        remedy="Write the value itself, or compute it beforehand and write it to a parquet file.",
    )


def _unstable(connection: duckdb.DuckDBPyConnection) -> frozenset[str]:
    """Functions whose value may differ between two calls with the same arguments, and macros that call them."""
    rows = connection.execute(
        "SELECT lower(function_name), stability, lower(macro_definition) FROM duckdb_functions()"
    ).fetchall()
    found = {name for name, stability, _ in rows if stability not in (None, "CONSISTENT")}
    called = re.compile(
        rf"\b({'|'.join(map(re.escape, sorted(found - FAILING)))})\"?\(|\b({'|'.join(sorted(_VALUES - {'user'}))})\b"
    )
    return frozenset(found | {name for name, _, macro in rows if macro and called.search(macro)})


def named_in(node: Any, kind: str) -> Iterator[str]:
    """In lower case, the functions that are called in the tree, or the bare names that are not known to be anything."""
    if isinstance(node, list):
        for each in node:
            yield from named_in(each, kind)
    elif isinstance(node, dict):
        if node.get("class") == kind:
            names = [node["function_name"]] if kind == "FUNCTION" else node["column_names"]
            if len(names) == 1:
                yield str(names[0]).casefold()
        yield from named_in(list(node.values()), kind)


def _serialized(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    return serialized(connection, f"SELECT (\n{sql}\n)")


def serialized(connection: duckdb.DuckDBPyConnection, statement: str) -> str:
    """The tree of a SELECT as JSON, or what is wrong with it under `error_message`."""
    # fetchall() wherever a result is small: one that is not fetched to its end blocks the connection.
    ((tree,),) = connection.execute(f"SELECT json_serialize_sql({literal(statement)})").fetchall()
    return str(tree)


def _other_rows(node: Any) -> str:
    """What in the tree looks at other rows than its own; empty for nothing."""
    if isinstance(node, list):
        return next(filter(None, map(_other_rows, node)), "")
    if not isinstance(node, dict):
        return ""
    if node.get("class") == "WINDOW":
        return "a window function"
    table = node.get("type")
    if table == "BASE_TABLE" or (table == "TABLE_FUNCTION" and node["function"]["function_name"] != "unnest"):
        return "a table"
    return next(filter(None, map(_other_rows, node.values())), "")


OF_THE_MOMENT = frozenset(
    {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp", "current_user"}
)
"""Functions that SQL calls without brackets: to the parser they are columns."""


def check_condition(connection: duckdb.DuckDBPyConnection, where: str) -> None:
    """Raise Halt (exit 78) for what is no condition over one row, or would not hold for the same rows tomorrow."""
    changing = {
        *changing_calls(connection, where, "where"),
        *OF_THE_MOMENT.intersection(bare_names(connection, where)),
    }
    if names := sorted(changing):
        raise config_error(
            f"`where` has {names[0]}, which gives something else each time: {where}",
            why="The next run would take other rows for those that are done.",
            remedy="Write the value itself, such as a date.",
        )


def folded(where: str, sql: str) -> str:
    """The expression that gives the text of rows for which the condition holds, and NULL for the others."""
    return f"CASE WHEN ((\n{where}\n)::BOOLEAN) THEN coalesce((\n{sql}\n), '') END"


def question(request: IngestRequest) -> IngestRequest:
    """The request for the condition alone: its rows have a text where it holds."""
    assert request.where is not None
    return replace(request, column=None, template=None, sql=folded(request.where, "''"))
