"""Queries over DuckDB and SQLite files give what the same rows give as JSON lines, and leave the files alone."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from chunkvisor.errors import Halt
from chunkvisor.ingest.request import IngestRequest
from chunkvisor.ingest.stage import stage
from chunkvisor.ingest.table import StagedTable
from chunkvisor.ingest.tablefiles import TableFiles
from ingest_files import Stage

ROWS: list[dict[str, Any]] = [
    {"id": number, "kind": number % 3, "half": number / 2, "text": None if number == 4 else f"text {number % 7}"}
    for number in range(9)
]
KINDS = ["duckdb", "sqlite"]


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the rows as data.duckdb and data.sqlite, and as rows.jsonl; nothing in it is changed by a test."""
    folder = tmp_path_factory.mktemp("databases")
    rows = [tuple(row.values()) for row in ROWS]
    schema = "CREATE TABLE rows (id INTEGER PRIMARY KEY, kind INTEGER, half DOUBLE, text VARCHAR)"
    with duckdb.connect(str(folder / "data.duckdb")) as connection:
        connection.execute(schema)
        connection.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", rows)
    lite = sqlite3.connect(folder / "data.sqlite")
    lite.execute(schema)
    lite.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", rows)
    lite.commit()
    lite.close()
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    before = {path.name: path.stat() for path in folder.iterdir()}
    yield folder
    after = {path.name: path.stat() for path in folder.iterdir()}
    assert {name: (each.st_mtime_ns, each.st_size) for name, each in after.items()} == {
        name: (each.st_mtime_ns, each.st_size) for name, each in before.items()
    }


def staged(path: Path, folder: Path, query: str | None = None, **wanted: Any) -> StagedTable:
    """The table of the request, in a folder to be made."""
    folder.mkdir()
    stage(IngestRequest(sources=(str(path),), query=query, **wanted), folder)
    return StagedTable.open(folder)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "wanted",
    [
        {"column": "text"},
        {"template": "{id} {half}: {text}"},
        {"sql": "upper(text) || (id + half)::VARCHAR", "where": "kind > 0 AND half < 4", "columns": ("half", "id")},
        {"column": "text", "max_rows": 5, "where": "id > 1"},
    ],
)
def test_the_same_as_json(databases: Path, tmp_path: Path, kind: str, wanted: dict[str, Any]) -> None:
    """The table is that of the same rows in JSON lines, rows left out and columns carried along as well."""
    table = staged(databases / f"data.{kind}", tmp_path / "a", "SELECT * FROM rows ORDER BY id", **wanted)
    same = staged(databases / "rows.jsonl", tmp_path / "b", **wanted)
    assert (table.digest, table.rows) == (same.digest, same.rows)
    assert table.place_of(0) == f"{databases / f'data.{kind}'}, row {table.locate(0)[1]}"
    if "columns" in wanted:
        with duckdb.connect() as connection:
            queries = [f"FROM read_parquet('{TableFiles(each.folder).rows}')" for each in (table, same)]
            found, same_rows = (connection.execute(query).fetchall() for query in queries)
        assert found == same_rows


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_tie(databases: Path, tmp_path: Path, rows_of: Any, kind: str) -> None:
    """Rows that the ORDER BY does not tell apart come by their columns, from left to right, under a LIMIT as well."""
    query = "SELECT text, id FROM rows WHERE text IS NOT NULL ORDER BY kind LIMIT 5; -- the first"
    by_hand = sorted((row["kind"], row["text"], row["id"]) for row in ROWS if row["text"] is not None)
    table = staged(databases / f"data.{kind}", tmp_path / "a", query, column="text")
    assert rows_of(table) == [text for _, text, _ in by_hand[:5]]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT * FROM rows", "no ORDER BY at its end"),
        ("SELECT text, random() AS r FROM rows ORDER BY id", "`query` has random"),
        ("SELECT text, current_timestamp AS now FROM rows ORDER BY id", "`query` has current_timestamp"),
        ("SELECT text FROM row ORDER BY 1", r"(?s)the query fails: .*Its tables are: 'rows'"),
        ("SELECT txt FROM rows ORDER BY 1", 'the query fails: .*"?txt'),
        ("SELECT id FROM rows ORDER BY id", "there is no column 'text'"),
        ("SELECT id AS text FROM rows ORDER BY id", r"column 'text' holds (INTEGER|BIGINT), not text"),
        ("SELECT text FROM rows WHERE id > 99 ORDER BY id", "The sources have no rows"),
        ("DELETE FROM rows", "not one SELECT|syntax error"),
        ("ATTACH 'other.db' AS other", "not one SELECT|syntax error"),
        ("SELECT load_extension('x') AS text ORDER BY 1", "does not exist|load_extension|not authorized"),
        ("SELECT content AS text FROM read_text('/etc/passwd') ORDER BY 1", "disabled by configuration|no such table"),
        ("SELECT name AS text FROM pragma_table_info('rows') ORDER BY 1; INSERT INTO rows VALUES (1)", "statement"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_refused(databases: Path, tmp_path: Path, kind: str, query: str, words: str) -> None:
    """What has no order, changes by itself, writes, or reaches out of the database is refused in words, with 78."""
    with pytest.raises(Halt, match=words) as raised:
        staged(databases / f"data.{kind}", tmp_path / "a", query, column="text")
    assert raised.value.code == 78


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT text FROM rows USING SAMPLE 3 ROWS ORDER BY id", "a sample of the rows"),
        ("SELECT text FROM rows TABLESAMPLE 50% ORDER BY id", "a sample of the rows"),
        ("SELECT nextval('s')::VARCHAR AS text ORDER BY 1", "`query` has nextval"),
    ],
)
def test_what_is_refused_of_duckdb(databases: Path, tmp_path: Path, query: str, words: str) -> None:
    """So are samples, which DuckDB alone knows."""
    with pytest.raises(Halt, match=words):
        staged(databases / "data.duckdb", tmp_path / "a", query, column="text")


@pytest.mark.parametrize("now", ["date('now')", "datetime()", "strftime('%s', 'NOW')"])
def test_the_clock_in_sqlite(databases: Path, tmp_path: Path, now: str) -> None:
    """So is the clock as SQLite writes it."""
    with pytest.raises(Halt, match="`query` has "):
        staged(databases / "data.sqlite", tmp_path / "a", f"SELECT text, {now} FROM rows ORDER BY id", column="text")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"id,text\n1,x\n", "neither a DuckDB nor an SQLite database"),
        (b"SQLite format 3\0" + b"x" * 100, "file is not a database"),
        (b"x" * 8 + b"DUCK" + b"y" * 100, "the database cannot be opened"),
    ],
)
def test_what_is_no_database(tmp_path: Path, content: bytes, words: str) -> None:
    """A file that is no database, or a damaged one, is refused with its name."""
    (tmp_path / "a.db").write_bytes(content)
    with pytest.raises(Halt, match=words) as raised:
        staged(tmp_path / "a.db", tmp_path / "t", "SELECT text FROM t ORDER BY 1", column="text")
    assert raised.value.code == 78
    assert str(tmp_path / "a.db") in raised.value.what


def test_a_database_without_a_query(stage_here: Stage, tmp_path: Path) -> None:
    """A database among the files is refused with what to write instead."""
    (tmp_path / "a.sqlite").touch()
    with pytest.raises(Halt, match="looks like a database") as raised:
        stage_here("a.sqlite", column="text")
    assert "{database: a.sqlite, query:" in raised.value.remedy


def test_values_of_sqlite(tmp_path: Path, rows_of: Any) -> None:
    """A column of SQLite takes the type that holds all its values; text and binary data together are refused."""
    lite = sqlite3.connect(tmp_path / "a.db")
    lite.execute("CREATE TABLE t (number, mixed, raw, both)")
    lite.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", [(1, "x", b"\xff\x00", "x"), (2.5, 7, None, b"y")])
    lite.commit()
    lite.close()
    query = "SELECT number, mixed, raw FROM t ORDER BY number"
    sql = "concat_ws(' ', typeof(number), typeof(mixed), typeof(raw), number, mixed, hex(raw))"
    found = rows_of(staged(tmp_path / "a.db", tmp_path / "one", query, sql=sql))
    assert found == ["DOUBLE VARCHAR BLOB 1.0 x FF00", "DOUBLE VARCHAR BLOB 2.5 7"]
    with pytest.raises(Halt, match="column 'both' holds binary data and text"):
        staged(tmp_path / "a.db", tmp_path / "two", "SELECT both FROM t ORDER BY 1", column="both")


def test_no_lock_on_a_duckdb_file(databases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the query runs, no lock is on the file: a writer need not wait."""
    inode, seen = (databases / "data.duckdb").stat().st_ino, list[list[str]]()

    def look(*_: object) -> str:
        seen.append([line for line in Path("/proc/locks").read_text().splitlines() if f":{inode} " in line])
        return "SELECT text FROM rows ORDER BY id"

    monkeypatch.setattr("chunkvisor.ingest.duckdbfile.in_fixed_order", look)
    staged(databases / "data.duckdb", tmp_path / "a", "SELECT text FROM rows ORDER BY id", column="text")
    assert seen == [[]]


WRITER = {
    "duckdb": "import duckdb; c = duckdb.connect(path); c.execute('CREATE TABLE other (a INTEGER)')",
    "sqlite": "import sqlite3; c = sqlite3.connect(path); c.execute('BEGIN IMMEDIATE')",
}


@pytest.mark.parametrize(("kind", "words"), [("duckdb", "open for writing in"), ("sqlite", "being written to by")])
def test_while_another_process_writes(databases: Path, tmp_path: Path, kind: str, words: str) -> None:
    """A database that another process is writing is refused with 75 and the process, and read once it has ended."""
    path = tmp_path / f"a.{kind}"
    path.write_bytes((databases / f"data.{kind}").read_bytes())
    program = f"path = {str(path)!r}; {WRITER[kind]}; print('open', flush=True); input()"
    writer = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    query = "SELECT text FROM rows ORDER BY id"
    try:
        assert writer.stdout.readline() == "open\n"
        with pytest.raises(Halt, match=words) as raised:
            staged(path, tmp_path / "one", query, column="text")
        assert raised.value.code == 75
        assert f"PID {writer.pid}" in raised.value.what
    finally:
        writer.communicate("\n")
    assert staged(path, tmp_path / "two", query, column="text").rows == len(ROWS)


def test_what_is_only_in_the_log_of_sqlite(tmp_path: Path, rows_of: Any) -> None:
    """Rows that are in the write-ahead log alone are read, and neither the log nor anything beside it is touched."""
    writer = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    writer.execute("PRAGMA journal_mode = wal")
    writer.execute("CREATE TABLE t (text)")
    writer.execute("INSERT INTO t VALUES ('in the log')")
    before = {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.iterdir()}
    table = staged(tmp_path / "a.db", tmp_path / "table", "SELECT text FROM t ORDER BY 1", column="text")
    assert rows_of(table) == ["in the log"]
    assert [Path(str(state[0])).name for state in table.signature] == ["a.db", "a.db-wal"]
    after = {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.iterdir() if path.is_file()}
    assert after == before
    writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert rows_of(staged(tmp_path / "a.db", tmp_path / "again", "SELECT text FROM t ORDER BY 1", column="text")) == [
        "in the log"
    ]
    writer.close()


def test_what_a_crash_has_left_half_written(tmp_path: Path, rows_of: Any) -> None:
    """A journal that a crash has left is rolled back in a copy: what was never committed is not read."""
    path = tmp_path / "a.db"
    program = (
        "import os, sqlite3; c = sqlite3.connect('a.db', isolation_level=None); c.execute('PRAGMA cache_size = 1')\n"
        "c.execute('CREATE TABLE t (id INTEGER PRIMARY KEY, text)'); c.execute('PRAGMA cache_spill = 1')\n"
        "c.executemany('INSERT INTO t (text) VALUES (?)', [('good',)] * 3)\n"
        "c.execute('BEGIN'); c.execute(\"UPDATE t SET text = 'never committed'\")\n"
        "c.executemany('INSERT INTO t (text) VALUES (?)', [('x' * 3000,)] * 50)\n"
        "os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert os.path.getsize(f"{path}-journal") > 512  # noqa: PTH202 - of a str
    assert b"never committed" in path.read_bytes()
    before = path.read_bytes()
    assert rows_of(staged(path, tmp_path / "t", "SELECT text FROM t ORDER BY id", column="text")) == ["good"] * 3
    assert path.read_bytes() == before
