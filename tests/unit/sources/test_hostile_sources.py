"""Sources and SQL that nobody would write by intent: loops of links, clocks, wide headers, deep and broken keys."""

from collections.abc import Callable
from pathlib import Path

import pytest

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.sources.resolve import resolve
from chunkvisor.sources.table import StagedTable
from ingest_files import Stage, duckdb_of_today, write_parquet

RowsOf = Callable[[StagedTable], list[str]]


def names(folder: Path, pattern: str) -> list[str]:
    """The files that the pattern gives, relative to the folder."""
    return [str(file.path.relative_to(folder)) for file in resolve([str(folder / pattern)])]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two files in folders, a hidden one, two loops of links, a link to a file, a hard link, a link to a folder."""
    folder = tmp_path / "tree"
    for name in ("a/b.csv", "a/c/d.csv", ".hidden/e.csv", "../far/f.csv"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text\nx\n")
    (folder / "a" / "loop").symlink_to(".")
    (folder / "a" / "c" / "up").symlink_to("../..")
    (folder / "again.csv").symlink_to("a/b.csv")
    (folder / "a" / "twin.csv").hardlink_to(folder / "a" / "c" / "d.csv")
    (folder / "far").symlink_to(tmp_path / "far")
    return folder


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("**/*.csv", ["a/twin.csv", "again.csv", "far/f.csv"]),
        ("**", ["a/twin.csv", "again.csv", "far/f.csv"]),
        ("*/*.csv", ["a/b.csv", "a/twin.csv", "far/f.csv"]),
        ("a/**/*.csv", ["a/b.csv", "a/c/up/far/f.csv", "a/twin.csv"]),
        ("*/**/d.csv", ["a/c/d.csv"]),
        ("**/c/**/*.csv", ["a/c/d.csv", "a/c/up/again.csv", "a/c/up/far/f.csv"]),
        ("a/loop/loop/b.csv", ["a/loop/loop/b.csv"]),
        ("[a]*.csv", ["again.csv"]),
        (".hidden/*.csv", [".hidden/e.csv"]),
    ],
)
def test_glob_gives_each_file_once(tree: Path, pattern: str, found: list[str]) -> None:
    """However many links lead to a file, and though they lead in circles, it is read once, under its shortest name."""
    assert names(tree, pattern) == found


def test_files_that_are_named_are_read_as_often_as_named(tree: Path) -> None:
    """Only a glob looks for files by itself; a list is what the person wants."""
    path = str(tree / "a" / "b.csv")
    assert len(resolve([path, path])) == 2


UNSTABLE = ["random()::text", "now()::text", "uuid()::text", "current_query()", "text || gen_random_uuid()::text"]
UNSTABLE += [
    "current_date::text",
    "CURRENT_TIMESTAMP::text",
    "current_user",
    "main.now()::text",
]
UNSTABLE += ["list_transform([1], x -> random())::text", "nextval('s')::text", "user"]
UNSTABLE += ["get_current_time()::text", "today()::text"]
UNSTABLE_TODAY = ["ago(INTERVAL 1 DAY)::text", "current_setting('threads')", "sleep_ms(1)::text"]


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("sql", [*UNSTABLE, *(pytest.param(each, marks=duckdb_of_today) for each in UNSTABLE_TODAY)])
def test_sql_of_the_clock_or_chance_is_refused(stage_here: Stage, tmp_path: Path, form: str, sql: str) -> None:
    """What is not made of the row alone would be another text at a resume."""
    (tmp_path / "a.csv").write_text("text\nx\n")
    write_parquet(tmp_path / "a.parquet", "'x' AS text")
    with pytest.raises(Halt, match="whose value is not made of the row") as caught:
        stage_here(f"a.{form}", sql=sql)
    assert caught.value.code is ExitCode.CONFIG


@pytest.mark.parametrize(
    ("columns", "sql", "row", "text"),
    [
        ("text", "upper(text)", "x", "X"),
        ("user,text", '"user" || text', "me,x", "mex"),
        ("current_date,text", "current_date || text", "monday,x", "mondayx"),
        ("text", "CASE WHEN text = '' THEN error('empty') ELSE text END", "x", "x"),
        ("text", "md5(text)", "x", "9dd4e461268c8034f5c8564e155c67a6"),
        ("text", "[each || '!' FOR each IN [text]][1]", "x", "x!"),
    ],
)
def test_sql_of_the_row_is_taken(
    stage_here: Stage, rows_of: RowsOf, tmp_path: Path, columns: str, sql: str, row: str, text: str
) -> None:
    """Functions of the row are taken, and columns that are called as the clock is."""
    (tmp_path / "a.csv").write_text(f"{columns}\n{row}\n")
    assert rows_of(stage_here("a.csv", sql=sql)) == [text]


@pytest.mark.parametrize(
    ("content", "sql", "words"),
    [
        pytest.param("text\nx\n", "error('x')", "`sql` fails for every row", marks=duckdb_of_today),
        ("text\nx\n\n", "CASE WHEN text = 'x' THEN error('bad one') ELSE text END", "line 2: `sql` fails"),
        ("__chunkvisor_row,text\n7,x\n", "__chunkvisor_row", "a column is named '__chunkvisor_row'"),
        ("__Chunkvisor_Text,text\n7,x\n", "text", "a column is named '__Chunkvisor_Text'"),
    ],
)
def test_sql_that_fails_or_is_shadowed(stage_here: Stage, tmp_path: Path, content: str, sql: str, words: str) -> None:
    """An error in the SQL is one, and a column of a name of ours is refused instead of being taken for ours."""
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(Halt) as caught:
        stage_here("a.csv", sql=sql)
    assert words in caught.value.what


def test_key_with_a_lone_surrogate(stage_here: Stage, rows_of: RowsOf, tmp_path: Path) -> None:
    """SQL cannot name it, and says so; a column beside it can be had."""
    (tmp_path / "a.jsonl").write_text('{"text": "x", "\\ud83d": "half"}\n')
    with pytest.raises(Halt, match="lone surrogate"):
        stage_here("a.jsonl", sql="text")
    assert rows_of(stage_here("a.jsonl", column="text")) == ["x"]


@pytest.mark.parametrize("depth", [400, 5000, 100_000])
@pytest.mark.parametrize("wanted", [{"sql": "text"}, {"column": "text"}])
def test_deep_json_in_a_key_that_nobody_reads(
    stage_here: Stage, rows_of: RowsOf, tmp_path: Path, depth: int, wanted: dict[str, str]
) -> None:
    """It is read, or refused with its line; no more can be said, since how deep is too deep is Python's."""
    (tmp_path / "a.jsonl").write_text(f'{{"text": "x", "deep": {"[" * depth}{"]" * depth}}}\n')
    try:
        found = rows_of(stage_here("a.jsonl", **wanted))
    except Halt as halt:
        found = [halt.what.replace(f"{tmp_path}/", "")]
    assert found in (["x"], ["a.jsonl, line 1: the JSON is nested too deeply."])


def test_wide_header(stage_here: Stage, rows_of: RowsOf, tmp_path: Path) -> None:
    """100,000 columns are looked through once each: by pairs they took over a minute."""
    header = ",".join([*(f"c{number}" for number in range(100_000)), "text"])
    (tmp_path / "a.csv").write_text(f"{header}\n{'1,' * 100_000}x\n")
    assert rows_of(stage_here("a.csv", column="text")) == ["x"]


def test_twin_columns_of_a_wide_header(stage_here: Stage, tmp_path: Path) -> None:
    """Two columns of one name are found in it as before."""
    header = ",".join([*(f"c{number}" for number in range(1000)), "c7", "text"])
    (tmp_path / "a.csv").write_text(f"{header}\n{'1,' * 1001}x\n")
    with pytest.raises(Halt, match="two columns 'c7'"):
        stage_here("a.csv", column="text")
