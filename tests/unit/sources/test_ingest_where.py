"""`where` and `columns`: the same rows of every kind of source, which row is which, and what is carried along."""

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from chunkvisor.errors import Halt
from chunkvisor.sources.table import StagedTable, TableFiles
from ingest_files import Stage, duckdb_of_today

ROWS: list[dict[str, Any]] = [
    {"id": f"a{number}", "split": "train" if number % 3 else "test", "text": None if number == 4 else f"text {number}"}
    for number in range(8)
]
KEPT = [number for number in range(8) if number % 3]
TRAIN = "split = 'train'"


def write(folder: Path, kind: str) -> str:
    """The rows as a file of that kind; its name."""
    name = f"rows.{kind}"
    if kind == "jsonl":
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif kind == "csv":
        lines = ["id,split,text", *(f"{row['id']},{row['split']},{row['text'] or ''}" for row in ROWS)]
        (folder / name).write_text("\n".join(lines) + "\n")
    else:
        values = ", ".join(f"('{row['id']}', '{row['split']}', nullif('{row['text']}', 'None'))" for row in ROWS)
        duckdb.sql(f"COPY (FROM (VALUES {values}) AS t(id, split, text)) TO '{folder / name}' (FORMAT parquet)")
    return name


def rows_table(table: StagedTable) -> list[tuple[Any, ...]]:
    """The rows table as tuples, its columns' names first."""
    cursor = duckdb.connect().execute(f"FROM read_parquet('{TableFiles(table.folder).rows}')")
    return [tuple(column[0] for column in cursor.description or ()), *cursor.fetchall()]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("text", [{"column": "text"}, {"template": "{text}"}, {"sql": "text"}])
def test_the_rows_for_which_it_holds(
    stage_here: Stage, rows_of: Any, tmp_path: Path, kind: str, text: dict[str, str]
) -> None:
    """Of two files, the rows that hold are left, in order, and each knows its source row, its file and its columns."""
    name = write(tmp_path, kind)
    table = stage_here(name, name, where=TRAIN, columns=("id",), **text)
    assert rows_of(table) == [ROWS[number]["text"] or "" for number in KEPT] * 2
    assert rows_table(table) == [
        ("row", "source_row", "id"),
        *((row, source, f"a{source % 8}") for row, source in enumerate([*KEPT, *(8 + number for number in KEPT)])),
    ]
    assert [table.locate(row)[1] for row in range(table.rows)] == KEPT * 2
    if kind == "csv":
        assert table.place_of(2) == f"{tmp_path / name}:{KEPT[2] + 2}"
    assert StagedTable.open(table.folder).carried == table.carried is not None


def test_columns_of_every_row(stage_here: Stage, tmp_path: Path) -> None:
    """Without a condition the table has each row, with the types of the source, and the texts are the same table."""
    (tmp_path / "a.jsonl").write_text('{"t": "x", "n": 1, "Ünïcode \\"q": [1, 2]}\n{"t": "y", "n": null}\n')
    table = stage_here("a.jsonl", column="t", columns=("n", 'Ünïcode "q'))
    assert rows_table(table) == [("row", "n", 'Ünïcode "q'), (0, 1, "[1, 2]"), (1, None, None)]
    plain = stage_here("a.jsonl", column="t")
    assert (plain.digest, plain.carried) == (table.digest, None)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("random() < 0.5", "`where` has random, which gives something else each time"),
        ("current_date > '2020-01-01'", "`where` has current_date"),
        pytest.param(
            *("ago(INTERVAL 1 day) > '2020-01-01'", "`where` has ago, which gives something else each time"),
            marks=duckdb_of_today,
        ),
        ("split = ", "`where` cannot be parsed"),
        ("count(*) OVER () > 1", "`where` has a window function"),
        ("split IN (SELECT 'a' FROM other)", "`where` has a table"),
        ("splitt = 'train'", "The nearest is 'split'"),
        ("split = 'nowhere'", "no rows for which `where` holds"),
        ("split", "Could not convert string"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_what_is_no_condition(stage_here: Stage, tmp_path: Path, kind: str, where: str, words: str) -> None:
    """What cannot be told to hold for the same rows again, or holds for none, is refused in words."""
    with pytest.raises(Halt) as raised:
        stage_here(write(tmp_path, kind), column="text", where=where)
    assert raised.value.code == 78
    assert words in str(raised.value)


def test_a_text_that_is_left_out_may_be_wrong(stage_here: Stage, rows_of: Any, tmp_path: Path) -> None:
    """A row that the condition leaves out need not have a text at all."""
    (tmp_path / "a.jsonl").write_text('{"t": "x", "ok": true}\n{"t": 7, "ok": false}\n{"t": "z", "ok": true}\n')
    assert rows_of(stage_here("a.jsonl", column="t", where="ok")) == ["x", "z"]


@pytest.mark.parametrize(
    ("columns", "words"), [(("nope",), "there is no column 'nope'"), (("id", "spilt"), "The nearest is 'split'")]
)
def test_columns_that_are_not_there(stage_here: Stage, tmp_path: Path, columns: tuple[str, ...], words: str) -> None:
    """A column to carry along that a file does not have is refused with the nearest."""
    with pytest.raises(Halt, match=words):
        stage_here(write(tmp_path, "csv"), column="text", columns=columns)


def test_columns_of_other_types(stage_here: Stage, tmp_path: Path) -> None:
    """Values that do not go into the type that the first source has for a column are refused with their file."""
    (tmp_path / "a.jsonl").write_text('{"t": "x", "n": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"t": "y", "n": "one"}\n')
    with pytest.raises(Halt, match=r"b\.jsonl.*cannot be read") as raised:
        stage_here("a.jsonl", "b.jsonl", column="t", columns=("n",))
    assert raised.value.code == 78
