"""Parquet, and what SQL makes of rows: expressions, conditions, and columns that are carried along."""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

from chunkvisor.errors import Halt
from chunkvisor.sources.table import StagedTable, TableFiles
from harness import halts, write_lines
from ingest_files import Stage, duckdb_of_today, rows_of, wrap, write_parquet, write_texts

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
    write_lines(source, ROWS)
    if kind == "parquet":
        duckdb.sql(f"COPY (FROM read_json('{source}')) TO '{path}' (FORMAT parquet)")
    return name


def rows_table(table: StagedTable) -> list[tuple[Any, ...]]:
    """Read the rows table as tuples, its columns' names first."""
    cursor = duckdb.connect().execute(f"FROM read_parquet('{TableFiles(table.folder).rows}')")
    return [tuple(column[0] for column in cursor.description or ()), *cursor.fetchall()]


def refusal(stage_here: Stage, folder: Path, name: str, **wanted: Any) -> str:
    """Return the words of the refused request, its paths relative to the folder."""
    with halts(78) as caught:
        stage_here(name, **wanted)
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("text", [{"column": "text"}, {"template": "{text}"}, {"sql": "text"}])
def test_the_rows_for_which_it_is_true(
    stage_here: Stage, tmp_path: Path, kind: str, text: dict[str, str]
) -> None:
    """Of two files, the wanted rows are left, in order, and each knows its source row, its file and
    its columns.
    """
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
    assert table.places_of(range(table.rows)) == places
    assert StagedTable.open(table.folder).carried == table.carried is not None
    assert rows_of(stage_here(name, where="split = 'train'", max_rows=4, **text)) == [
        "text 1",
        "text 2",
    ]


def test_columns_of_every_row(stage_here: Stage, tmp_path: Path) -> None:
    """Without a condition the table has each row, with the types of the source, and the texts are
    the same table.
    """
    (tmp_path / "a.jsonl").write_text(
        '{"t": "x", "n": 1, "Ünïc/~ \\"q": [1, 2]}\n{"t": "y", "n": null}\n'
    )
    table = stage_here("a.jsonl", column="t", columns=("n", 'Ünïc/~ "q'))
    assert rows_table(table) == [("row", "n", 'Ünïc/~ "q'), (0, 1, "[1,2]"), (1, None, None)]
    plain = stage_here("a.jsonl", column="t")
    assert (plain.digest, plain.carried) == (table.digest, None)


def test_template_values(tmp_path: Path, stage_here: Stage) -> None:
    """Numbers and booleans appear as JSON writes them, text as it stands, doubled braces as one;
    also with `where`.
    """
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
            '{"n": 2, "f": 1.5, "b": true, "l": ["x", 1], "m": "t", "day": "2020-01-01", "g": '
            "9007199254740993}\n"
            '{"n": 3, "f": 2, "b": false, "m": 1, "g": null}\n',
            "concat_ws('|', n + 1, f * 2, NOT b, l->>0, m, day, g)",
            ["3|3.0|false|x|t|2020-01-01|9007199254740993", "4|4|true|1"],
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
            "CASE WHEN ok THEN t END",
            ["x", ""],
        ),
    ],
)
def test_sql_has_native_types(
    tmp_path: Path, stage_here: Stage, name: str, content: str, sql: str, expected: list[str]
) -> None:
    """JSON numbers and booleans and parquet's types can be computed with; CSV fields are text."""
    if name == "b.parquet":
        write_parquet(tmp_path / name, content)
    else:
        (tmp_path / name).write_text(content)
    assert rows_of(stage_here(name, sql=sql)) == expected


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_order_of_many_rows(tmp_path: Path, stage_here: Stage, suffix: str) -> None:
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
        ({"sql": "id + 1"}, "a.jsonl: `sql` gives BIGINT, not text."),
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
        (
            {"column": "text", "where": "text"},
            "a.jsonl: `where` fails: Conversion Error: Could not convert string '2' to BOOL",
        ),
    ],
)
def test_expression(
    tmp_path: Path, stage_here: Stage, wanted: dict[str, str], expected: str
) -> None:
    """An expression that is none, does not fit or fails on a row is refused."""
    (tmp_path / "a.jsonl").write_text(
        '{"id": 1, "text": "1", "nested": [1]}\n{"id": 2, "text": "2"}\n{"id": 3, "text": "three"}\n'
    )
    words = refusal(stage_here, tmp_path, "a.jsonl", **wanted)
    assert words.startswith(expected)
    assert "Conversion" not in words or "(line 2)" in words


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
    """A torn parquet file is refused by name, and so is a text that is not UTF-8, in whatever way
    it is asked for.
    """
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


def test_names_that_do_not_go_together(tmp_path: Path, stage_here: Stage) -> None:
    """Columns that SQL cannot tell apart are refused."""
    (tmp_path / "a.csv").write_text("Text,text\nx,y\n")
    assert "a.csv: there are two columns" in refusal(stage_here, tmp_path, "a.csv", sql="text")


VALUES = {
    '"say \\"hi\\"\\\\"': 'say "hi"\\',
    "42": "42",
    "1.0": "1.0",
    "1.10": "1.10",
    "-0": "-0",
    "1e3": "1e3",
    "NaN": "NaN",
    "true": "true",
    "null": "",
    "9007199254740993": "9007199254740993",
    "18446744073709551615": "18446744073709551615",
    "1" + "0" * 50: "1" + "0" * 50,
    '"1"': "1",
    '"007"': "007",
    '"2020-01-01"': "2020-01-01",
    '"\\u00e9"': "é",
    '[1.10, "a\\"b", true]': '[1.10,"a\\"b",true]',
    '{"k": null, "k": "é"}': '{"k":"é"}',
}
"""JSON, and the text that it is."""


def write_values(path: Path, values: Iterable[str]) -> str:
    """Write a row for each value of the column v."""
    path.write_text("".join(f'{{"n": 1, "v": 0, "v": {value}}}\n' for value in values))
    return path.name


@pytest.mark.parametrize("sql", ["v", "v || ''", "concat(v)", "v::text", "left(v, 99)"])
def test_a_value_is_the_text_that_is_written(tmp_path: Path, stage_here: Stage, sql: str) -> None:
    """Values of all types in one column of JSON lines are text without quotes, and numbers as they
    are written.
    """
    table = stage_here(write_values(tmp_path / "a.jsonl", VALUES), sql=sql, columns=("v",))
    assert rows_of(table) == list(VALUES.values())
    assert [value or "" for _, value in rows_table(table)[1:]] == list(VALUES.values())


NUMBERS = ["42", "1.10", "-0", "1e3", "NaN", "9007199254740993", "18446744073709551615"]
ANYTHING = [value for value in VALUES if value != "null" and len(value) < 50]


@pytest.mark.parametrize(
    ("sql", "values"),
    [
        *((sql, ANYTHING) for sql in ("v || '!'", "to_json(v)::text", "typeof(v)", "upper(v)")),
        ("CASE v WHEN '1' THEN 'one' ELSE coalesce(v, 'none') END", ANYTHING),
        *((f"(v {change})::text", NUMBERS) for change in ("* 2", "% 8", "> 5", "< '5'")),
        ("to_json({'v': v, 'n': n / 4})::text", NUMBERS),
    ],
)
def test_no_text_depends_on_another_row(
    tmp_path: Path, stage_here: Stage, sql: str, values: list[str]
) -> None:
    """Whatever else is in the file, a row has the text that it has in a file of its own."""
    alone = [
        write_values(tmp_path / f"{number}.jsonl", [value]) for number, value in enumerate(values)
    ]
    together = write_values(tmp_path / "all.jsonl", values)
    assert rows_of(stage_here(together, sql=sql)) == rows_of(stage_here(*alone, sql=sql))


@pytest.mark.parametrize(
    ("values", "where", "kept"),
    [
        (['"1"', "1", "true", "1.0", '"x"'], "v = '1'", [0, 1]),
        (['"1"', "1", "true", "1.0", '"x"'], "v IN ('x', 'true')", [2, 4]),
        (["9007199254740993", "9007199254740992", "0.5"], "v = 9007199254740993", [0]),
        (["9007199254740993", "9007199254740992", "0.5", "null"], "v % 2 = 1", [0]),
        (["10", "9", "9.5", "18446744073709551615"], "v > 9.4", [0, 2, 3]),
        (["10", "10.0", "2"], "v = 10", [0, 1]),
        (["1", "0.5"], "n <= v", [0]),
        (["null", "null"], "v IS NULL AND v + 1 IS NULL AND upper(v) IS NULL", [0, 1]),
    ],
)
def test_a_condition_compares_what_is_written(
    tmp_path: Path, stage_here: Stage, values: list[str], where: str, kept: list[int]
) -> None:
    """With a string a condition compares the text, with a number the number, exactly, whatever
    other rows have.
    """
    name = write_values(tmp_path / "a.jsonl", values)
    rows = rows_table(stage_here(name, sql="'x'", where=where))[1:]
    assert [source_row for _, source_row in rows] == kept


@pytest.mark.parametrize(
    ("first", "second", "carried"),
    [
        ('{"v": 1}', '{"v": 1.50}', ["1", "1.50"]),
        ('{"v": 1}', '{"v": "one"}', ["1", "one"]),
        ('{"v": 1}', '{"v": null}', [1, None]),
        ('{"v": null}', '{"v": [1.10]}', [None, "[1.10]"]),
        ('{"v": 1}', "1::BIGINT AS v", [1, 1]),
        ("9007199254740993 AS v", "0.5::DOUBLE AS v", ["9007199254740993", "0.5"]),
        ("0.5::DOUBLE AS v", "9007199254740993 AS v", ["0.5", "9007199254740993"]),
        ("1::INTEGER AS v", "9007199254740993 AS v", [1, 9007199254740993]),
        (
            "'2020-01-02'::DATE AS v",
            "'2020-01-02 03:04:05'::TIMESTAMP AS v",
            ["2020-01-02", "2020-01-02 03:04:05"],
        ),
        ("encode('é') AS v", "'é' AS v", ["é", "é"]),
    ],
)
def test_columns_of_other_types_in_another_file(
    tmp_path: Path, stage_here: Stage, first: str, second: str, carried: list[Any]
) -> None:
    """A column that is carried along keeps each value, in the type of all files or as text."""
    for name, content in {"a": first, "b": second}.items():
        if content.startswith("{"):
            (tmp_path / name).with_suffix(".jsonl").write_text(content)
        else:
            write_parquet(tmp_path / f"{name}.parquet", content)
    names = sorted(path.name for path in tmp_path.iterdir())
    table = stage_here(*names, sql="'x'", columns=("v",))
    assert [value for _, value in rows_table(table)[1:]] == carried


def follow(stage_here: Stage, name: str, wanted: dict[str, Any]) -> StagedTable:
    """Do what the refusal of the request says, to the letter, and stage again."""
    with pytest.raises(Halt) as caught:
        stage_here(name, **wanted)
    if command := re.search("`(.+)`", caught.value.remedy):
        subprocess.run(command[1], shell=True, check=True)
    (line,) = re.findall(r"\b(?:sql|where|template|source): .+$", caught.value.remedy)
    ((key, value),) = yaml.safe_load(line).items()
    if key == "source":
        return stage_here(Path(value).name, **wanted)
    others = {"where"} if key == "where" else {"column", "template", "sql"}
    return stage_here(
        name, **{each: wanted[each] for each in wanted.keys() - others}, **{key: value}
    )


CSV = "id,price,text\n1,9.50,a\n8,10,b\n"
IN_UTF_8 = ["Grün", "zwei"]


@pytest.mark.parametrize(
    ("name", "content", "wanted", "texts"),
    [
        ("a.csv", CSV.replace(",", ";"), {"column": "text"}, ["a", "b"]),
        ("a.csv", CSV.replace(",", "\t"), {"column": "text"}, ["a", "b"]),
        ("a.csv.gz", CSV.replace(",", "|"), {"template": "{text}"}, ["a", "b"]),
        ("a.csv", CSV.replace(",", ";"), {"sql": "upper(text)"}, ["A", "B"]),
        ("a.csv", 'id;"text"\n"1";"a;\nb"\n', {"column": "text"}, ["a;\nb"]),
        ("a.tsv", CSV, {"column": "text"}, ["a", "b"]),
        ("a.parquet", "encode('caf' || chr(233)) AS v", {"column": "v"}, ["café"]),
        ("a.parquet", "['a', 'b'] AS v", {"column": "v"}, ["a\nb"]),
        ("a.parquet", "[['a'], ['b']] AS v", {"template": "{v}"}, ['[["a"],["b"]]']),
        ("a.parquet", "{'k': 1.5} AS v", {"column": "v"}, ['{"k":1.5}']),
        ("a.parquet", "1 AS v", {"column": "v"}, ["1"]),
        ("a.parquet", "DATE '2020-01-02' AS v", {"column": "v"}, ["2020-01-02"]),
        ("a.parquet", """'"a"'::JSON AS v""", {"column": "v"}, ["a"]),
        ("a.parquet", "1 AS v", {"sql": "v + 1"}, ["2"]),
        ("a.parquet", "[1, 2] AS v", {"sql": "v"}, ["[1,2]"]),
        ("a.jsonl", '{"v": 1.10}', {"column": "v"}, ["1.10"]),
        ("a.jsonl", '{"v": true}', {"column": "v"}, ["true"]),
        ("a.jsonl", '{"v": ["a"]}', {"column": "v"}, ['["a"]']),
        ("a.jsonl", '{"v": {"k": 1.10}}', {"template": "<{v}>"}, ['{"k":1.10}']),
        ("a.jsonl", '{"v": 2}', {"sql": "v / 4"}, ["0.5"]),
        ("a.jsonl", '{"v": 12, "n": 3}', {"sql": "left(v, 1) || left(n, 1)"}, ["13"]),
        ("a.csv", CSV, {"column": "text", "where": "id % 8 = 0"}, ["b"]),
        ("a.csv", CSV, {"column": "text", "where": "price > 9.7 AND text <> 'id'"}, ["b"]),
        ("a.csv", CSV, {"column": "text", "where": "id * price > 9.7"}, ["b"]),
        ("a.csv", CSV, {"sql": "id * 2"}, ["2.0", "16.0"]),
        ("a.txt", "\n".join(IN_UTF_8).encode("utf-16-le"), {"column": "text"}, IN_UTF_8),
        ("a.txt", "\n".join(IN_UTF_8).encode("utf-16-be"), {"column": "text"}, IN_UTF_8),
        ("a.txt", "\n".join(IN_UTF_8).encode("utf-32-le"), {"column": "text"}, IN_UTF_8),
        ("a.txt.zst", "\n".join(IN_UTF_8).encode("utf-32-be"), {"column": "text"}, IN_UTF_8),
        ("a.txt", "\n".join(IN_UTF_8).encode("utf-16"), {"column": "text"}, IN_UTF_8),
        ("a.txt", "\n".join(IN_UTF_8).encode("cp1252"), {"column": "text"}, IN_UTF_8),
        ("a.csv", CSV.encode("utf-16-le"), {"column": "text"}, ["a", "b"]),
        ("a.jsonl", '{"v": "中"}\n{"v": "b"}'.encode("utf-16-le"), {"column": "v"}, ["中", "b"]),
    ],
)
def test_remedies_work_as_printed(
    tmp_path: Path,
    stage_here: Stage,
    name: str,
    content: str | bytes,
    wanted: dict[str, Any],
    texts: list[str],
) -> None:
    """What is refused runs after the command and with the line of the config that the refusal
    gives.
    """
    if name == "a.parquet":
        write_parquet(tmp_path / name, str(content))
    else:
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(wrap(name, data))
    assert rows_of(follow(stage_here, name, wanted)) == texts
