"""Runs a query over an SQLite file, which is only read, and lays the rows down elsewhere.

By the standard library's sqlite3: DuckDB's extension for it would have to be downloaded. The file is opened as one
that nobody changes (`immutable`), so no lock is taken and nothing is written beside it. That is right only while there
is nothing to be added to it: with a write-ahead log, or a journal that has to be rolled back, a copy is read.
"""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import sqlite3
import struct
from collections.abc import Iterator
from enum import Flag, auto
from itertools import count, islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb

from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.ingest.batches import BATCH, batched, register
from chunkvisor.ingest.problem import input_error, refuse_case_twins, tables_in_words
from chunkvisor.ingest.query import Dialect, in_fixed_order, one_statement
from chunkvisor.ingest.signature import beside, check_unchanged, signature
from chunkvisor.ingest.sources import SourceFile
from chunkvisor.ingest.values import Row

_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_CHANGING = frozenset(
    {"random", "randomblob", "current_date", "current_time", "current_timestamp"}
    | {"changes", "total_changes", "last_insert_rowid", "load_extension"}
)
_NOW = re.compile(r"'now'|\b(date|time|datetime|julianday|unixepoch)\s*\(\s*\)", re.IGNORECASE)
_LOCKS = (0x40000000, 512)
"""First and number of the bytes by whose locks SQLite's processes agree (its os.h: PENDING_BYTE and what follows)."""
_FLOCK = "hhqqi4x"
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
_FAULTS = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_IOERR: errno.EIO, sqlite3.SQLITE_NOMEM: errno.ENOMEM}
_CACHE_KIB = 65_536


class _Kind(Flag):
    """What values a column has."""

    NUMBER = auto()
    FRACTION = auto()
    TEXT = auto()
    BINARY = auto()


_KINDS = {int: _Kind.NUMBER, float: _Kind.NUMBER | _Kind.FRACTION, str: _Kind.TEXT, bytes: _Kind.BINARY}


def lay_down_sqlite(
    target: duckdb.DuckDBPyConnection, file: SourceFile, limit: int | None, table: str, scratch: Path
) -> dict[str, str]:
    """Write the first `limit` rows of the query into a new table; returns SQL for each column, by its name.

    A column has one type for all of its values, that which holds them all. Raises Halt (exit 78) for bad input, (75)
    while another process writes; OSError and duckdb.Error for what is wrong with memory or disk.
    """
    _refuse_writer(file)
    with _opened(file, scratch) as connection:
        names, rows = _run(connection, file)
        refuse_case_twins(file.path, names)
        kinds = [_Kind(0)] * len(names)
        cells = [f"c{index}" for index in range(len(names))]
        target.execute(f"CREATE TABLE {table} ({', '.join(f'{cell} VARCHAR' for cell in cells)})")
        for batch in batched(file, islice(_as_cells(connection, file, rows, kinds), limit), ["VARCHAR"] * len(names)):
            register(target, batch, len(names))
            target.execute(f"INSERT INTO {table} SELECT {', '.join(cells)} FROM {BATCH}")  # noqa: S608 - names of ours
    return {name: _cast(file, name, cell, kind) for name, cell, kind in zip(names, cells, kinds, strict=True)}


def _refuse_writer(file: SourceFile) -> None:
    """Raise Halt (exit 75) where a process has a lock for writing; it is asked for, and none is taken."""
    with file.path.open("rb") as opened:
        wanted = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, *_LOCKS, 0)
        kind, *_, pid = struct.unpack(_FLOCK, fcntl.fcntl(opened, fcntl.F_GETLK, wanted))
    if kind != fcntl.F_UNLCK:
        raise Halt(
            ExitCode.TRY_AGAIN,
            f"{file.path} is being written to by another process (PID {pid}).",
            remedy="Run again once it has finished.",
        )


@contextlib.contextmanager
def _opened(file: SourceFile, scratch: Path) -> Iterator[sqlite3.Connection]:
    """The database, or a copy in which what lies beside it has its effect. Raises Halt (exit 75), OSError."""
    path, copy = os.path.realpath(file.path), scratch / "copy.sqlite"
    uri = f"file:{quote(path)}?mode=ro&immutable=1"
    if pending := [each for each in beside(file) if _is_pending(each)]:
        before = signature([file])
        for each in (Path(path), *pending):
            shutil.copyfile(each, f"{copy}{str(each).removeprefix(path)}")
        check_unchanged([file], before)
        uri = f"file:{quote(str(copy))}?mode=rw"
    variable = os.environ.get("SQLITE_TMPDIR")
    os.environ["SQLITE_TMPDIR"] = str(scratch)  # where it sorts what does not fit into its cache
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()
        os.environ.pop("SQLITE_TMPDIR")
        if variable is not None:
            os.environ["SQLITE_TMPDIR"] = variable
        for each in scratch.glob("copy.sqlite*"):
            each.unlink()


def _is_pending(path: Path) -> bool:
    """Whether the file beside a database says that the database alone is not what was committed last."""
    if path.name.endswith("-journal"):
        with path.open("rb") as opened:
            return opened.read(len(_JOURNAL_MAGIC)) == _JOURNAL_MAGIC
    return path.name.endswith("-wal")


def _run(connection: sqlite3.Connection, file: SourceFile) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    """Names of the result's columns, and its rows in their order. Raises Halt (exit 78), OSError."""
    assert file.query is not None
    query, denied = one_statement(file.query, Dialect.SQLITE), list[str]()

    def allowed(action: int, first: str | None, second: str | None, *_: object) -> int:
        is_function = action == sqlite3.SQLITE_FUNCTION
        ours = action == sqlite3.SQLITE_PRAGMA and first == "data_version"  # by which a full-text index knows its age
        if action in _READING or ours or (is_function and (second or "").casefold() not in _CHANGING):
            return sqlite3.SQLITE_OK
        denied.append(f"{second}()" if is_function else f"{first or 'a change'}")
        return sqlite3.SQLITE_DENY

    try:
        for setting in ("trusted_schema = OFF", f"cache_size = -{_CACHE_KIB}"):
            connection.execute(f"PRAGMA {setting}")
        connection.set_authorizer(allowed)
        described = connection.execute(f"SELECT * FROM (\n{query}\n) LIMIT 0").description  # noqa: S608 - the person's own
        if now := _NOW.search(query):
            denied.append(now[0])
            raise sqlite3.DatabaseError
        names = [column[0] or f"column{number}" for number, column in enumerate(described, start=1)]
        return names, connection.execute(in_fixed_order(query, Dialect.SQLITE, len(names)))
    except sqlite3.Error as error:
        if denied:
            raise config_error(
                f"`query` has {denied[0]}: {query}",
                why="It may only read, and has to give the same rows each time.",
                remedy="Keep one SELECT; write the value itself instead of one that changes.",
            ) from error
        raise _failed(connection, file, error) from error


def _failed(
    connection: sqlite3.Connection, file: SourceFile, error: sqlite3.Error, *, row: int | None = None
) -> Exception:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _FAULTS:
        return OSError(_FAULTS[code], f"{file.path}: {error}")
    try:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name")
        remedy = tables_in_words(name for (name,) in found)
    except sqlite3.Error:
        remedy = "Look at it with: sqlite3 FILE 'PRAGMA integrity_check'"
    return input_error(file.path, f"the query fails: {error}", row=row, why=f"It is: {file.query}", remedy=remedy)


def _as_cells(
    connection: sqlite3.Connection, file: SourceFile, rows: Iterator[tuple[Any, ...]], kinds: list[_Kind]
) -> Iterator[Row]:
    """Number and cells of each row, as text; notes what kinds of values the columns have."""
    for number in count():
        try:
            values = next(rows, None)
        except sqlite3.Error as error:
            raise _failed(connection, file, error, row=number) from error
        if values is None:
            return
        for index, value in enumerate(values):
            if value is not None:
                kinds[index] |= _KINDS[type(value)]
        yield number, [each.hex() if type(each) is bytes else each if each is None else str(each) for each in values]


def _cast(file: SourceFile, name: str, cell: str, kind: _Kind) -> str:
    if kind == _Kind.BINARY:
        return f"from_hex({cell})"
    if kind & _Kind.BINARY:
        raise input_error(
            file.path, f"column {name!r} holds binary data and text.", remedy=f"Convert it: CAST({name} AS TEXT)"
        )
    if kind & _Kind.TEXT or not kind:
        return cell
    return f"CAST({cell} AS {'DOUBLE' if kind & _Kind.FRACTION else 'BIGINT'})"
