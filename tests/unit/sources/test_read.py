"""What becomes of the rows of each format; every fault is refused with the file, the line and what
is wrong.
"""

from pathlib import Path
from typing import Any

import pytest

from chunkvisor.errors import Halt
from chunkvisor.sources.resolve import COMPRESSIONS, FORMATS
from harness import halts
from ingest_files import Stage, rows_of, wrap, write_texts

TEXTS = ["b", "", "a, b", "b", 'say "hi"', "línea\u2028🙂", "007"]
ENDS = ("", *COMPRESSIONS)
SUFFIXES = [form + end for form in FORMATS for end in ENDS if form != ".parquet"]
BIG = 17 << 20


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".parquet", ".CSV", ".Txt.GZ"])
def test_every_format_and_compression(tmp_path: Path, stage_here: Stage, suffix: str) -> None:
    """Rows come out as they were written, equal ones share one text, and texts are numbered by
    first occurrence.
    """
    path = tmp_path / f"a{suffix}"
    write_texts(path.with_name(path.name.lower()), TEXTS)
    path.with_name(path.name.lower()).rename(path)
    table = stage_here(path.name, column="text")
    assert rows_of(table) == TEXTS
    assert table.texts(0, table.distinct) == list(dict.fromkeys(TEXTS))
    assert table.first_row(0, table.distinct).tolist() == [0, 1, 2, 4, 5, 6]


def test_several_files(tmp_path: Path, stage_here: Stage) -> None:
    """Row i is row i of the files one after the other, some without rows; the digest is of the
    content alone.
    """
    for name, part in {
        "a.csv": TEXTS,
        "b.jsonl": TEXTS[:3],
        "none.csv": [],
        "none.parquet": [],
    }.items():
        write_texts(tmp_path / name, part)
    write_texts(tmp_path / "c.parquet", TEXTS[3:])
    table = stage_here(
        "b.jsonl", "none.csv", "none.parquet", "c.parquet", "none.csv", column="text"
    )
    assert rows_of(table) == TEXTS
    assert table.places_of([3]) == [f"{tmp_path / 'c.parquet'}, row 0"]
    assert table.digest == stage_here("a.csv", column="text").digest
    assert table.digest != stage_here("c.parquet", "b.jsonl", column="text").digest
    assert rows_of(stage_here("b.jsonl", "c.parquet", column="text", max_rows=5)) == TEXTS[:5]


def test_null_is_empty_text(tmp_path: Path, stage_here: Stage) -> None:
    """NULL and a missing key are the empty text, whether by column, template or sql."""
    (tmp_path / "a.jsonl").write_text('{"text": null}\n{"other": 1}\n{"text": "x"}\n')
    write_texts(tmp_path / "b.parquet", [None, "x"])
    assert rows_of(stage_here("a.jsonl", "b.parquet", column="text")) == ["", "", "x", "", "x"]
    assert rows_of(stage_here("a.jsonl", "b.parquet", template="<{text}>")) == [
        "<>",
        "<>",
        "<x>",
        "<>",
        "<x>",
    ]
    assert rows_of(stage_here("a.jsonl", "b.parquet", sql="'<' || text || '>'")) == [
        "",
        "",
        "<x>",
        "",
        "<x>",
    ]
    assert rows_of(stage_here("a.jsonl", column="text", max_rows=1)) == [""]


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.csv", b"\xef\xbb\xbftext,b\n1,2\n", ["1"]),
        ("a.csv", b'text,b\r\n"a\r\nb\n",2\r\nNULL,\r\n', ["a\r\nb\n", "NULL"]),
        ("a.csv", b'text,b\na "b" c,2\n', ['a "b" c']),
        ("a.csv", b"text,b\n x ,2\n\n\r\n", [" x "]),
        ("a.csv", b"text\na\n\nb\n", ["a", "", "b"]),
        ("a.csv", b",text,\nx,y,z\n", ["y"]),
        ("a.csv", "text,b\n\u0085\u2028\x0b\x0c\x1c,2\n".encode(), ["\u0085\u2028\x0b\x0c\x1c"]),
        ("a.csv", b"text,b\n2020-01-01,1\ntrue,2\n1e5,3\n", ["2020-01-01", "true", "1e5"]),
        ("a.txt", b"a\r\nb", ["a", "b"]),
        ("a.txt", b"a\rb\nc\r", ["a\rb", "c\r"]),
        ("a.txt", b'"a,b\t\n\n \n', ['"a,b\t', "", " "]),
        ("a.txt.gz", wrap(".gz", b"a") + wrap(".gz", b"b\nc"), ["ab", "c"]),
    ],
)
def test_as_it_stands(
    tmp_path: Path, stage_here: Stage, name: str, data: bytes, expected: list[str]
) -> None:
    """No type, dialect or null string is guessed, and nothing but a line feed outside quotes ends a
    row.
    """
    (tmp_path / name).write_bytes(data)
    assert rows_of(stage_here(name, column="text")) == expected


def test_skip_blank(tmp_path: Path, stage_here: Stage) -> None:
    """With skip_blank, blank lines are not rows in any format, and line numbers still count them."""
    (tmp_path / "a.txt").write_bytes(b"a\n\n \r\nb\n")
    (tmp_path / "b.csv").write_bytes(b"x,text\n\n1,c\n")
    (tmp_path / "c.jsonl").write_bytes(b'\n{"text": "d"}\n')
    table = stage_here("a.txt", "b.csv", "c.jsonl", column="text", skip_blank=True)
    assert rows_of(table) == ["a", "b", "c", "d"]
    assert [place.rpartition(":")[2] for place in table.places_of(range(4))] == ["1", "4", "3", "2"]


CASES = [
    ("a.csv", b"id,text\n1,a\n2\n", "a.csv, line 3: the row has 1 field, the header has 2."),
    (
        "a.csv",
        b'id,text\n1,"a\nb"\n2,c,d\n',
        "a.csv, line 4: the row has 3 fields, the header has 2.",
    ),
    ("a.csv", b"id,text\n1,a\n\n2,b\n", "a.csv, line 3: the line is blank, and rows follow."),
    (
        "a.csv",
        b'id,text\n1,"a\n2,b\n',
        "a.csv, line 2: the row that starts here cannot be read: unexpected end",
    ),
    (
        "a.csv",
        b"id,text\r1,a\r2,b",
        "a.csv, line 1: the row that starts here cannot be read: new-line character",
    ),
    ("a.csv", b"text,text\n1,a\n", "a.csv, line 1: the header has two columns 'text'."),
    ("a.csv", b"\nid,text\n1,a\n", "a.csv, line 1: the line is blank; the header belongs here."),
    (
        "a.csv",
        b"id,text\n1,a\n2,\xe9\n",
        "a.csv, line 3: invalid UTF-8: byte 0xe9 at byte 3 of the line.",
    ),
    (
        "a.csv",
        "id,text\n".encode("utf-16"),
        "a.csv, line 1: invalid UTF-8: byte 0xff at byte 1 of the line.",
    ),
    (
        "a.txt",
        b"a\nb\0\n",
        "a.txt, line 2: a NUL byte at byte 2 of the line: this is not text in UTF-8.",
    ),
    ("a.csv", b"id;text\n1;a\n", "a.csv: there is no column 'text'."),
    ("a.csv", b"", "a.csv: the file is empty."),
    ("a.parquet", b"", "a.parquet: the file is empty."),
    (
        "a.csv",
        b"id,text\n1," + b"x" * BIG + b"\n",
        "a.csv, line 2: the text has 17,825,792 bytes of UTF-8",
    ),
    (
        "a.txt",
        b"ok\n" + b"x" * BIG + b"\n",
        "a.txt, line 2: the line is longer than 16,777,216 bytes",
    ),
    (
        "a.jsonl",
        b'{"text": "a"}\n{"text": \n',
        "a.jsonl, line 2: malformed JSON: Expecting value: column 9",
    ),
    (
        "a.jsonl",
        b'{"text": "a"}\n{"text": "b"} x\n',
        "a.jsonl, line 2: malformed JSON: extra data: column 14.",
    ),
    ("a.jsonl", b'["text"]\n', "a.jsonl, line 1: malformed JSON: not an object."),
    (
        "a.jsonl",
        b'{"text": "a"}\n\n{"text": "b"}\n',
        "a.jsonl, line 2: the line is blank, and rows follow.",
    ),
    (
        "a.jsonl",
        b'{"text": "a"}\n{"text": 1}\n',
        "a.jsonl, line 2: the column holds a number, not text.",
    ),
    ("a.jsonl", b'{"text": ["a"]}\n', "a.jsonl, line 1: the column holds an array, not text."),
    (
        "a.jsonl",
        b'{"text": "ok"}\n{"text": "a\\ud800"}\n',
        "a.jsonl, line 2: the text has a lone surrogate, '\\ud800'",
    ),
    ("a.jsonl", b'{"texd": "a"}\n', "a.jsonl: there is no column 'text'."),
    ("a.jsonl", b"[" * 100_000 + b"\n", "a.jsonl, line 1: malformed JSON: nested too deeply."),
    (
        "a.csv.gz",
        wrap(".gz", b"text\n" + b"a\n" * 999)[:-9],
        "a.csv.gz: the gzip data is damaged or cut short",
    ),
    (
        "a.csv.zst",
        wrap(".zst", b"text\n" + b"a\n" * 999)[:-3],
        "a.csv.zst: the zstd data is damaged or cut short",
    ),
]


@pytest.mark.parametrize(
    ("name", "data", "expected"), CASES, ids=[f"{name}: {text[:50]}" for name, _, text in CASES]
)
def test_bad_input(
    tmp_path: Path, stage_here: Stage, name: str, data: bytes, expected: str
) -> None:
    """A fault in a file is refused with 78 and named with its line."""
    (tmp_path / name).write_bytes(data)
    with halts(78) as caught:
        stage_here(name, column="text")
    assert caught.value.what.replace(f"{tmp_path}/", "").startswith(expected)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "a.txt"])
@pytest.mark.parametrize(
    "wanted", [{"column": "txet"}, {"template": "{txet}"}, {"sql": "text", "columns": ("txet",)}]
)
def test_missing_column_names_the_nearest(
    tmp_path: Path, stage_here: Stage, name: str, wanted: dict[str, Any]
) -> None:
    """A mistyped column is answered with the nearest one and all there are, in every format."""
    write_texts(tmp_path / name, ["x"])
    with pytest.raises(Halt) as caught:
        stage_here(name, **wanted)
    assert caught.value.what == f"{tmp_path / name}: there is no column 'txet'."
    listed = "'text'" if name == "a.txt" else "'id', 'text'"
    assert caught.value.remedy == f"The nearest is 'text'. The columns are: {listed}."
