"""Parquet, and what SQL makes of rows: expressions, conditions, and columns that are carried along."""

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.sources.table import StagedTable, TableFiles
from ingest_files import RowsOf, Stage, duckdb_of_today, write_parquet, write_texts

ROWS: list[dict[str, Any]] = [
    {
        "id": f"a{number}",
        "split": "train" if number % 3 else "test",
        "text": None if number == 4 else f"text {number}",
    }
    for number in range(8)
]
KEPT = [number for number in range(8) if number % 3]


def write(folder: Path, kind: str) -> str:
    """Write the rows as a file of that kind, and return its name."""
    name, path = f"rows.{kind}", folder / f"rows.{kind}"
    if kind == "csv":
        path.write_text(
            "id,split,text\n"
            + "".join(f"{row['id']},{row['split']},{row['text'] or ''}\n" for row in ROWS)
        )
        return name
    source = folder / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    if kind == "parquet":
        duckdb.sql(f"COPY (FROM read_json('{source}')) TO '{path}' (FORMAT parquet)")
    return name


def rows_table(table: StagedTable) -> list[tuple[Any, ...]]:
    """Read the rows table as tuples, its columns' names first."""
    cursor = duckdb.connect().execute(f"FROM read_parquet('{TableFiles(table.folder).rows}')")
    return [tuple(column[0] for column in cursor.description or ()), *cursor.fetchall()]


def refusal(stage_here: Stage, folder: Path, name: str, **wanted: Any) -> str:
    """Return the words of the refused request, its paths relative to the folder."""
    with pytest.raises(Halt) as caught:
        stage_here(name, **wanted)
    assert caught.value.code is ExitCode.CONFIG
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("text", [{"column": "text"}, {"template": "{text}"}, {"sql": "text"}])
def test_the_rows_for_which_it_is_true(
    stage_here: Stage, rows_of: RowsOf, tmp_path: Path, kind: str, text: dict[str, str]
) -> None:
    """Of two files, the wanted rows are left, in order, and each knows its source row, its file and its columns."""
    name = write(tmp_path, kind)
    table = stage_here(name, name, where="split = 'train'", columns=("id",), **text)
    assert rows_of(table) == [ROWS[number]["text"] or "" for number in KEPT] * 2
    assert rows_table(table) == [
        ("row", "source_row", "id"),
        *(
            (row, source, f"a{source % 8}")
            for row, source in enumerate([*KEPT, *(8 + number for number in KEPT)])
        ),
    ]
    places = [f"{tmp_path / name}, row {number}" for number in KEPT] * 2
    if kind != "parquet":
        places = [f"{tmp_path / name}:{number + 1 + (kind == 'csv')}" for number in KEPT] * 2
    assert [table.place_of(row) for row in range(table.rows)] == places
    assert StagedTable.open(table.folder).carried == table.carried is not None
    assert rows_of(stage_here(name, where="split = 'train'", max_rows=4, **text)) == [
        "text 1",
        "text 2",
    ]


def test_columns_of_every_row(stage_here: Stage, tmp_path: Path) -> None:
    """Without a condition the table has each row, with the types of the source, and the texts are the same table."""
    (tmp_path / "a.jsonl").write_text(
        '{"t": "x", "n": 1, "Ünïc/~ \\"q": [1, 2]}\n{"t": "y", "n": null}\n'
    )
    table = stage_here("a.jsonl", column="t", columns=("n", 'Ünïc/~ "q'))
    assert rows_table(table) == [("row", "n", 'Ünïc/~ "q'), (0, 1, "[1,2]"), (1, None, None)]
    plain = stage_here("a.jsonl", column="t")
    assert (plain.digest, plain.carried) == (table.digest, None)


def test_template_values(tmp_path: Path, stage_here: Stage, rows_of: RowsOf) -> None:
    """Numbers and booleans appear as JSON writes them, text as it stands, doubled braces as one; also with `where`."""
    (tmp_path / "a.jsonl").write_text(
        '{"a b": 1.10, "c": true, "d": 12345678901234567890123}\n{"a b": -0, "c": false}\n'
    )
    write_parquet(
        tmp_path / "b.parquet", """1.10::DECIMAL(4,2) AS "a b", true AS c, 7::UBIGINT AS d"""
    )
    (tmp_path / "c.csv").write_text("a b,c,d\n007,NULL,\n")
    for where in ({}, {"where": "c IS NOT NULL"}):
        table = stage_here(
            "a.jsonl", "b.parquet", "c.csv", template="{{{a b}}} {c}{d}{a b}", **where
        )
        assert rows_of(table) == [
            "{1.10} true123456789012345678901231.10",
            "{-0} false-0",
            "{1.10} true71.10",
            "{007} NULL007",
        ]


@pytest.mark.parametrize(
    ("name", "content", "sql", "expected"),
    [
        (
            "a.jsonl",
            '{"n": 2, "f": 1.5, "b": true, "l": ["x", 1], "m": "t", "day": "2020-01-01", "g": 9007199254740993}\n'
            '{"n": 3, "f": 2, "b": false, "m": 1, "g": null}\n',
            "concat_ws('|', n + 1, f * 2, NOT b, l->>0, m->>'$', day, g)",
            ["3|3.0|false|x|t|2020-01-01|9007199254740993", "4|4.0|true|1"],
        ),
        ("b.parquet", "1 AS n, ['x', 'y'] AS l, {'k': 'v'} AS s", "n + 1 || l[2] || s.k", ["2yv"]),
        ("c.csv", 'n,"q""x"\n007,z\n', 'n || "q""x" -- a comment', ["007z"]),
        (
            "d.txt",
            "ab\ncd\n",
            "[each || md5(text) FOR each IN [upper(text)]][1][1:2]",
            ["AB", "CD"],
        ),
        (
            "e.jsonl",
            '{"t": "x", "ok": true}\n{"t": 7, "ok": false}\n',
            "CASE WHEN ok THEN t->>'$' END",
            ["x", ""],
        ),
    ],
)
def test_sql_has_native_types(
    tmp_path: Path,
    stage_here: Stage,
    rows_of: RowsOf,
    name: str,
    content: str,
    sql: str,
    expected: list[str],
) -> None:
    """JSON numbers and booleans and parquet's types can be computed with; CSV fields are text."""
    if name == "b.parquet":
        write_parquet(tmp_path / name, content)
    else:
        (tmp_path / name).write_text(content)
    assert rows_of(stage_here(name, sql=sql)) == expected


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_order_of_many_rows(
    tmp_path: Path, stage_here: Stage, rows_of: RowsOf, suffix: str
) -> None:
    """Rows stay in order over batches and row groups, wide values and NULLs included."""
    texts = [None if number % 5 == 0 else f"{number}" * (number % 7) for number in range(30_000)]
    write_texts(tmp_path / f"a{suffix}", texts)
    assert rows_of(stage_here(f"a{suffix}", sql="text")) == [text or "" for text in texts]


UNSTABLE = [
    "CURRENT_DATE::text",
    "lag(text) OVER ()",
    "list_transform([1], lambda x: random())::text",
]


@pytest.mark.parametrize("sql", [*UNSTABLE, "(SELECT text FROM 'a.csv')", "unnest(['a', 'b'])"])
def test_what_is_not_made_of_the_row_is_refused(
    stage_here: Stage, tmp_path: Path, sql: str
) -> None:
    """Chance, the clock, other rows and other tables are refused, in `sql` and in `where`."""
    (tmp_path / "a.csv").write_text("text\nx\n")
    assert "whose value depends on more than the row" in refusal(
        stage_here, tmp_path, "a.csv", sql=sql
    )
    assert "`where` uses " in refusal(
        stage_here, tmp_path, "a.csv", column="text", where=f"({sql}) <> ''"
    )


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"sql": "id"}, "a.jsonl: `sql` gives BIGINT, not text."),
        pytest.param(
            {"sql": "text ||"}, "`sql` cannot be parsed: syntax error", marks=duckdb_of_today
        ),
        ({"sql": "text) FROM (SELECT 1"}, "`sql` is not one expression"),
        ({"sql": "max(text)"}, "a.jsonl: `sql` fails: Binder Error"),
        (
            {"sql": "CASE WHEN id = 3 THEN error('bad one') ELSE text END"},
            "a.jsonl: `sql` fails: Invalid Input Error",
        ),
        ({"sql": "repeat(text, 5000000)"}, "a.jsonl, line 3: the text has 25,000,000 bytes"),
        ({"column": "text", "where": "text"}, "a.jsonl: `where` fails: Conversion"),
    ],
)
def test_expression(
    tmp_path: Path, stage_here: Stage, wanted: dict[str, str], expected: str
) -> None:
    """An expression that is none, does not fit or fails on a row is refused."""
    (tmp_path / "a.jsonl").write_text(
        '{"id": 1, "text": "1", "nested": [1]}\n{"id": 2, "text": "2"}\n{"id": 3, "text": "three"}\n'
    )
    assert refusal(stage_here, tmp_path, "a.jsonl", **wanted).startswith(expected)


@pytest.mark.parametrize(
    ("select", "wanted", "expected"),
    [
        ("id AS text", {"column": "text"}, "a.parquet: column 'text' holds BIGINT, not text."),
        (
            "[text] AS text",
            {"template": "{text}"},
            "a.parquet: column 'text' holds VARCHAR[], not text.",
        ),
        (
            "text",
            {"sql": "repeat(text, 16800000)"},
            "a.parquet, row 0: the text has 16,800,000 bytes",
        ),
    ],
)
def test_parquet(
    tmp_path: Path, stage_here: Stage, select: str, wanted: dict[str, str], expected: str
) -> None:
    """What does not fit a parquet file is named with the column's type, or with the row."""
    write_parquet(tmp_path / "a.parquet", select, ["1"])
    assert refusal(stage_here, tmp_path, "a.parquet", **wanted).startswith(expected)


@pytest.mark.parametrize("share", [0.1, 0.9, 1])
def test_damaged_parquet(tmp_path: Path, stage_here: Stage, share: float) -> None:
    """A torn parquet file is refused by name, and so is a text that is not UTF-8, in whatever way it is asked for."""
    write_texts(
        tmp_path / "a.parquet",
        ["fine", "QQQQQQQQQQQQQQQQQQQQ", *(f"text {number}" for number in range(999))],
    )
    data = (tmp_path / "a.parquet").read_bytes().replace(b"Q" * 20, b"\xff" * 20)
    (tmp_path / "a.parquet").write_bytes(data[: int(len(data) * share)])
    for wanted in ({"column": "text"}, {"template": "{text}"}):
        expected = "a.parquet: the parquet data cannot be read"
        assert refusal(stage_here, tmp_path, "a.parquet", **wanted).startswith(expected)
    assert refusal(stage_here, tmp_path, "a.parquet", sql="text || 'x'").startswith(
        "a.parquet: `sql` fails"
    )


def test_names_and_types_that_do_not_go_together(tmp_path: Path, stage_here: Stage) -> None:
    """Columns that SQL cannot tell apart, and values that do not go into the type of the first source, are refused."""
    (tmp_path / "a.csv").write_text("Text,text\nx,y\n")
    assert "a.csv: there are two columns" in refusal(stage_here, tmp_path, "a.csv", sql="text")
    (tmp_path / "a.jsonl").write_text('{"t": "x", "n": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"t": "y", "n": "one"}\n')
    with pytest.raises(Halt, match=r"b\.jsonl: `columns` fails.*Could not convert"):
        stage_here("a.jsonl", "b.jsonl", column="t", columns=("n",))
    (tmp_path / "c.jsonl").write_text('{"text": "x", "\\ud83d": "half"}\n')
    assert "c.jsonl: `sql` fails" in refusal(stage_here, tmp_path, "c.jsonl", sql="text")
