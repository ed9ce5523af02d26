"""Runs a query over a DuckDB file, which is only read, and lays the rows down elsewhere.

The query sees the database and nothing else: no file, no network, no extension, no setting.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import duckdb

from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.ingest.condition import OF_THE_MOMENT
from chunkvisor.ingest.database import literal, quoted
from chunkvisor.ingest.expression import FAILING, is_about_data, named_in, reason, serialized, unstable_in
from chunkvisor.ingest.problem import input_error, tables_in_words
from chunkvisor.ingest.query import Dialect, in_fixed_order, one_statement
from chunkvisor.ingest.sources import SourceFile

_TAKEN = frozenset({"system", "temp", "memory"})


def lay_down_duckdb(
    target: duckdb.DuckDBPyConnection,
    file: SourceFile,
    limit: int | None,
    table: str,
    scratch: Path,  # noqa: ARG001 - as for SQLite, which may need a copy there
) -> dict[str, str]:
    """Write the first `limit` rows of the query into a new table; returns SQL for each column, by its name.

    Raises Halt (exit 78) for bad input, (75) where another process has the database open for writing; duckdb.Error for
    what is wrong with memory or disk.
    """
    assert file.query is not None
    name = _open(target, file)
    query = one_statement(file.query, Dialect.DUCKDB)
    _check(target, query)
    try:
        columns = len(target.execute(f"DESCRIBE ({query}\n)").fetchall())
        most = "" if limit is None else f" LIMIT {limit}"
        target.execute(f"CREATE TABLE {table} AS FROM (\n{in_fixed_order(query, Dialect.DUCKDB, columns)}\n){most}")
        described = target.execute(f"DESCRIBE {table}").fetchall()
    except duckdb.Error as error:
        if not is_about_data(error):
            raise
        raise input_error(
            file.path, f"the query fails: {reason(error)}", why=f"It is: {query}", remedy=_tables(target, name)
        ) from error
    return {column: quoted(column) for column, *_ in described}


def _open(target: duckdb.DuckDBPyConnection, file: SourceFile) -> str:
    """Attach the database under the name that it has anywhere else, and close all other ways; returns the name."""
    path = os.path.realpath(file.path)
    name = file.path.stem if file.path.stem.casefold() not in _TAKEN else f"{file.path.stem}_db"
    try:
        target.execute(f"ATTACH {literal(path)} AS {quoted(name)} (READ_ONLY)")
    except duckdb.Error as error:
        held = re.search(r"Conflicting lock is held in (.+?\))", str(error))
        if held is not None:
            raise Halt(
                ExitCode.TRY_AGAIN,
                f"{file.path} is open for writing in another process: {held[1]}.",
                remedy="Run again once it is closed there.",
            ) from error
        if not is_about_data(error):
            raise
        raise input_error(
            file.path,
            f"the database cannot be opened: {reason(error)}",
            remedy="Where a newer DuckDB has written it: pip install --upgrade duckdb. Else write or copy it again.",
        ) from error
    # A lock of POSIX is gone with the first descriptor of the file that is closed: a writer need not wait for us. If
    # one comes, the file is another one at the end, and what was read of it is thrown away.
    os.close(os.open(path, os.O_RDONLY))
    target.execute(f"USE {quoted(name)}")
    target.execute("SET threads = 1")  # what depends on the order of reading, such as list(), is the same each time
    target.execute("SET allow_persistent_secrets = false")
    target.execute("SET enable_external_access = false")
    target.execute("SET lock_configuration = true")
    return name


def _check(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    """Raise Halt (exit 78) for what is no SELECT, or gives something else each time."""
    tree = json.loads(serialized(connection, query))
    if tree["error"] or len(tree["statements"]) != 1:
        why = tree.get("error_message") or "there is more than one statement"
        raise config_error(f"`query` is not one SELECT: {query}", why=str(why))
    changing = [name for name in unstable_in(connection, tree) if name not in FAILING]
    changing += OF_THE_MOMENT.intersection(named_in(tree, "COLUMN_REF"))
    if _has_sample(tree):
        changing.append("a sample of the rows")
    if changing:
        raise config_error(
            f"`query` has {changing[0]}, which gives something else each time: {query}",
            why="Read again for a resume, the same row would be another one.",
            remedy="Write the value itself, or choose the rows by what is in them.",
        )


def _has_sample(node: Any) -> bool:
    if isinstance(node, list):
        return any(map(_has_sample, node))
    return isinstance(node, dict) and (bool(node.get("sample")) or any(map(_has_sample, node.values())))


def _tables(connection: duckdb.DuckDBPyConnection, name: str) -> str:
    try:
        found = connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_catalog = ? ORDER BY ALL", [name]
        ).fetchall()
    except duckdb.Error:
        return ""
    return tables_in_words(table for (table,) in found)
