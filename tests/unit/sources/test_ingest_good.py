"""Good input: what becomes of every format, compression and kind of request."""

from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pytest

from chunkvisor.sources.table import StagedTable
from ingest_files import Stage, wrap, write_parquet, write_texts
from soaked import wide

Rows = Callable[[StagedTable], list[str]]
TEXTS = ["b", "", "a, b", "b", 'say "hi"', "línea\u2028🙂", "007"]
SUFFIXES = [
    f".{form}{wrapper}" for form in ("csv", "tsv", "jsonl", "ndjson", "txt") for wrapper in ("", ".gz", ".zst")
] + [".parquet", ".CSV", ".Txt.GZ"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_and_compression(tmp_path: Path, stage_here: Stage, rows_of: Rows, suffix: str) -> None:
    """Rows come out as they were written, equal ones share one text, and texts are numbered by first occurrence."""
    path = tmp_path / f"a{suffix}"
    write_texts(path.with_name(path.name.lower()), TEXTS)
    path.with_name(path.name.lower()).rename(path)

    table = stage_here(path.name, column="text")

    assert rows_of(table) == TEXTS
    assert table.texts(0, table.distinct) == list(dict.fromkeys(TEXTS))
    assert table.first_row(0, table.distinct).tolist() == [0, 1, 2, 4, 5, 6]


def test_digest_is_of_the_content_alone(tmp_path: Path, stage_here: Stage) -> None:
    """The same rows give the same digest from other files and formats; another order gives another."""
    write_texts(tmp_path / "a.csv", TEXTS)
    write_texts(tmp_path / "b.jsonl", TEXTS[:3])
    write_texts(tmp_path / "c.parquet", TEXTS[3:])
    write_texts(tmp_path / "d.csv", [*TEXTS[1:], TEXTS[0]])

    whole = stage_here("a.csv", column="text")

    assert stage_here("b.jsonl", "c.parquet", column="text").digest == whole.digest
    assert stage_here("d.csv", column="text").digest != whole.digest


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".txt", ".parquet"])
def test_order_over_several_large_files(tmp_path: Path, stage_here: Stage, rows_of: Rows, suffix: str) -> None:
    """Row i is row i of the concatenated sources, in files large enough to be read in parallel."""
    count = 60_000
    texts = [f"text {number * 7919 % 40_009}" for number in range(count)]
    for name, part in (("b", texts[: count // 3]), ("a", texts[count // 3 :])):
        if suffix == ".parquet":
            with duckdb.connect() as connection:
                connection.register("part", {"text": np.array(part, dtype=object)})
                connection.execute(
                    f"COPY (SELECT * FROM part) TO '{tmp_path / name}.parquet' (ROW_GROUP_SIZE 10000, COMPRESSION zstd)"
                )
        else:
            write_texts(tmp_path / f"{name}{suffix}", part)

    table = stage_here(f"b{suffix}", f"a{suffix}", column="text")

    assert rows_of(table) == texts
    assert table.texts(0, table.distinct) == list(dict.fromkeys(texts))
    assert table.locate(count // 3) == (tmp_path / f"a{suffix}", 0)


def test_null_is_empty_text(tmp_path: Path, stage_here: Stage, rows_of: Rows) -> None:
    """NULL and a missing key are the empty text, whether by column, template or sql."""
    (tmp_path / "a.jsonl").write_text('{"text": null}\n{"other": 1}\n{"text": "x"}\n')
    write_texts(tmp_path / "b.parquet", [None, "x"])

    assert rows_of(stage_here("a.jsonl", "b.parquet", column="text")) == ["", "", "x", "", "x"]
    assert rows_of(stage_here("a.jsonl", "b.parquet", template="<{text}>")) == ["<>", "<>", "<x>", "<>", "<x>"]
    assert rows_of(stage_here("a.jsonl", "b.parquet", sql="'<' || text || '>'")) == ["", "", "<x>", "", "<x>"]


def test_template_values(tmp_path: Path, stage_here: Stage, rows_of: Rows) -> None:
    """Numbers and booleans appear as JSON writes them, text as it stands, doubled braces as one."""
    (tmp_path / "a.jsonl").write_text(
        '{"a b": 1.10, "c": true, "d": 12345678901234567890123}\n{"a b": -0, "c": false}\n'
    )
    write_parquet(tmp_path / "b.parquet", """1.10::DECIMAL(4,2) AS "a b", true AS c, 7::UBIGINT AS d""")
    (tmp_path / "c.csv").write_text("a b,c,d\n007,NULL,\n")

    table = stage_here("a.jsonl", "b.parquet", "c.csv", template="{{{a b}}} {c}{d}{a b}")

    assert rows_of(table) == [
        "{1.10} true123456789012345678901231.10",
        "{-0} false-0",
        "{1.10} true71.10",
        "{007} NULL007",
    ]


def test_sql_has_native_types(tmp_path: Path, stage_here: Stage, rows_of: Rows) -> None:
    """JSON numbers and booleans and parquet's types can be computed with; CSV fields are text."""
    (tmp_path / "a.jsonl").write_text(
        '{"n": 2, "f": 1.5, "b": true, "l": ["x", 1], "m": "t", "day": "2020-01-01", "g": 9007199254740993}\n'
        '{"n": 3, "f": 2, "b": false, "m": 1, "g": 1.5}\n'
    )
    sql = "concat_ws('|', n + 1, f * 2, NOT b, l->>0, m->>'$', day, g)"
    assert rows_of(stage_here("a.jsonl", sql=sql)) == [
        "3|3.0|false|x|t|2020-01-01|9007199254740993",
        "4|4.0|true|1|1.5",
    ]

    write_parquet(tmp_path / "b.parquet", "1 AS n, ['x', 'y'] AS l, {'k': 'v'} AS s")
    assert rows_of(stage_here("b.parquet", sql="n + 1 || l[2] || s.k")) == ["2yv"]

    (tmp_path / "c.csv").write_text('n,"q""x"\n007,z\n')
    assert rows_of(stage_here("c.csv", sql='n || "q""x" -- a comment')) == ["007z"]
    (tmp_path / "d.txt").write_text("ab\ncd\n")
    assert rows_of(stage_here("d.txt", sql="upper(text)")) == ["AB", "CD"]


def test_sql_over_many_batches_keeps_order(tmp_path: Path, stage_here: Stage, rows_of: Rows) -> None:
    """Rows stay in order over the batches in which SQL gets them, wide values and NULLs included."""
    texts = [None if number % 5 == 0 else f"{number}" * (number % 7) for number in range(30_000)]
    write_texts(tmp_path / "a.jsonl", texts)

    assert rows_of(stage_here("a.jsonl", sql="text")) == [text or "" for text in texts]


CSV_CASES = [
    (b"\xef\xbb\xbftext,b\n1,2\n", ["1"]),
    (b'text,b\r\n"a\r\nb\n",2\r\nNULL,\r\n', ["a\r\nb\n", "NULL"]),
    (b"text,b\na\x00b,2", ["a\x00b"]),
    (b'text,b\na "b" c,2\n', ['a "b" c']),
    (b"text,b\n x ,2\n\n\r\n", [" x "]),
    (b"text\na\n\nb\n", ["a", "", "b"]),
    (b",text,\nx,y,z\n", ["y"]),
    (b"Text,text\nx,y\n", ["y"]),
    ("text,b\n\u0085\u2028\x0b\x0c\x1c,2\n".encode(), ["\u0085\u2028\x0b\x0c\x1c"]),
    (b"text,b\n2020-01-01,1\ntrue,2\n1e5,3\n", ["2020-01-01", "true", "1e5"]),
    (b"text\n" + b"x" * 300_000 + b"\n", ["x" * 300_000]),
]


@pytest.mark.parametrize(("data", "expected"), CSV_CASES)
def test_csv_as_it_stands(tmp_path: Path, stage_here: Stage, rows_of: Rows, data: bytes, expected: list[str]) -> None:
    """No type, dialect or null string is guessed, and nothing but a line feed outside quotes ends a row."""
    (tmp_path / "a.csv").write_bytes(data)

    assert rows_of(stage_here("a.csv", column="text")) == expected


TXT_CASES = [
    (b"a\r\nb", ["a", "b"]),
    (b"a\rb\nc\r", ["a\rb", "c\r"]),
    (b'"a,b\t\x00\n\n \n', ['"a,b\t\x00', "", " "]),
    (b"\n", [""]),
    ("\u2028\u0085\x0c\n".encode(), ["\u2028\u0085\x0c"]),
    (b"\xef\xbb\xbfa\n", ["a"]),
]


@pytest.mark.parametrize(("data", "expected"), TXT_CASES)
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_txt_as_it_stands(
    tmp_path: Path, stage_here: Stage, rows_of: Rows, data: bytes, expected: list[str], suffix: str
) -> None:
    """Each line is a row, blank ones included, and only a line feed with or without a carriage return ends one."""
    (tmp_path / f"a.txt{suffix}").write_bytes(wrap(suffix, data))

    assert rows_of(stage_here(f"a.txt{suffix}", column="text")) == expected


def test_skip_blank(tmp_path: Path, stage_here: Stage, rows_of: Rows) -> None:
    """With skip_blank, blank lines are no rows in any format, and line numbers still count them."""
    (tmp_path / "a.txt").write_bytes(b"a\n\n \r\nb\n")
    (tmp_path / "b.csv").write_bytes(b"x,text\n\n1,c\n")
    (tmp_path / "c.jsonl").write_bytes(b'\n{"text": "d"}\n')

    table = stage_here("a.txt", "b.csv", "c.jsonl", column="text", skip_blank=True)

    assert rows_of(table) == ["a", "b", "c", "d"]
    assert [table.line_of(row)[1] for row in range(4)] == [1, 4, 3, 2]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("wanted", "max_rows", "files"),
    [
        *(({"column": "text"}, *numbers) for numbers in [(1, 1), (3, 1), (4, 2), (6, 2), (9, 2)]),
        *(({"sql": "text"}, *numbers) for numbers in [(4, 2), *wide((1, 1), (3, 1), (6, 2), (9, 2))]),
        *(({"template": "{text}"}, *numbers) for numbers in [(4, 2), *wide((1, 1), (3, 1), (6, 2), (9, 2))]),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_max_rows(
    tmp_path: Path, stage_here: Stage, rows_of: Rows, wanted: dict[str, str], max_rows: int, files: int, suffix: str
) -> None:
    """Only the first rows of the concatenated sources are taken."""
    write_texts(tmp_path / f"a{suffix}", ["1", "2", "3"])
    write_texts(tmp_path / f"b{suffix}", ["4", "5", "6"])

    table = stage_here(f"a{suffix}", f"b{suffix}", max_rows=max_rows, **wanted)

    assert rows_of(table) == list("123456"[:max_rows])
    assert len(table.files) == files


def test_max_rows_before_a_key_appears(tmp_path: Path, stage_here: Stage, rows_of: Rows) -> None:
    """A key that only later rows have is no missing column."""
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": 1}\n{"text": "late"}\n')

    assert rows_of(stage_here("a.jsonl", column="text", max_rows=1)) == [""]


def test_glob_and_odd_names(tmp_path: Path, stage_here: Stage, rows_of: Rows) -> None:
    """A glob's matches are sorted, a list keeps its order, and a name that looks like a pattern is that file."""
    for name in ("p-2.csv", "p-10.csv", "[x]*'.parquet", "year=2020; echo.txt"):
        write_texts(tmp_path / name, [name])
    (tmp_path / "p-folder").mkdir()

    table = stage_here("year=2020; echo.txt", "p-*", "[x]*'.parquet", column="text")

    assert rows_of(table) == ["year=2020; echo.txt", "p-10.csv", "p-2.csv", "[x]*'.parquet"]


def test_header_only_file_among_others(tmp_path: Path, stage_here: Stage, rows_of: Rows) -> None:
    """A file without rows is fine as long as another has some, and rows are located past it."""
    write_texts(tmp_path / "a.csv", [])
    write_texts(tmp_path / "b.csv", ["x"])
    write_texts(tmp_path / "c.parquet", [])

    table = stage_here("a.csv", "c.parquet", "b.csv", "a.csv", column="text")

    assert rows_of(table) == ["x"]
    assert table.locate(0) == (tmp_path / "b.csv", 0)


def test_column_names_keep_their_case(tmp_path: Path, stage_here: Stage, rows_of: Rows) -> None:
    """Columns of parquet and JSON lines that differ only in case are told apart."""
    write_parquet(tmp_path / "a.parquet", "'low' AS text, 'up' AS texu")
    data = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(data.replace(b"texu", b"TEXT"))
    (tmp_path / "b.jsonl").write_text('{"TEXT": "up", "text": "low"}\n')

    assert rows_of(stage_here("a.parquet", "b.jsonl", column="text")) == ["low", "low"]
    assert rows_of(stage_here("a.parquet", "b.jsonl", column="TEXT")) == ["up", "up"]


def test_largest_text(tmp_path: Path, stage_here: Stage) -> None:
    """A text of exactly the limit is taken."""
    write_texts(tmp_path / "a.jsonl", ["x" * (16 << 20)])

    (text,) = stage_here("a.jsonl", column="text").texts(0, 1)
    assert len(text.encode()) == 16 << 20


def test_concatenated_archives(tmp_path: Path, stage_here: Stage, rows_of: Rows) -> None:
    """Several gzip members or zstd frames in one file are read as one stream."""
    for suffix in (".gz", ".zst"):
        (tmp_path / f"a.txt{suffix}").write_bytes(wrap(suffix, b"a\nb") + wrap(suffix, b"c\nd\n"))

        assert rows_of(stage_here(f"a.txt{suffix}", column="text")) == ["a", "bc", "d"]
