"""Bad input: every fault is refused with the file, the place in it, and what is wrong."""

import gzip
from pathlib import Path
from typing import Any

import duckdb
import pytest

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.sources.request import IngestRequest
from ingest_files import Stage, duckdb_of_today, wrap, write_parquet, write_texts

COLUMN = {"column": "text"}
BIG = 17 << 20


def refusal(stage_here: Stage, tmp_path: Path, *names: str, **wanted: Any) -> tuple[str, Halt]:
    """The message of the refused request, its paths relative to tmp_path."""
    with pytest.raises(Halt) as caught:
        stage_here(*names, **wanted)
    assert caught.value.code is ExitCode.CONFIG
    return caught.value.what.replace(f"{tmp_path}/", ""), caught.value


CASES = [
    ("a.csv", b"id,text\n1,a\n2\n", "a.csv, line 3: the row has 1 field, the header has 2."),
    ("a.csv", b'id,text\n1,"a\nb"\n2,c,d\n', "a.csv, line 4: the row has 3 fields, the header has 2."),
    ("a.csv", b"id,text\n1,a\n\n2,b\n", "a.csv, line 3: the line is blank, and rows follow."),
    (
        "a.csv",
        b'id,text\n1,"a\n2,b\n',
        "a.csv, line 2: a quote is opened in the row that starts here and never closed.",
    ),
    ("a.csv", b'id,text\n1,"a"b\n', "a.csv, line 2: the row cannot be read: ',' expected after '\"'."),
    ("a.csv", b"id,text\r1,a\r2,b", "a.csv, line 1: a carriage return stands outside quotes."),
    ("a.csv", b"text,text\n1,a\n", "a.csv, line 1: the header has two columns 'text'."),
    ("a.csv", b"\nid,text\n1,a\n", "a.csv, line 1: the line is blank; the header belongs here."),
    ("a.csv", b"id,text\n1,a\n2,\xe9\n", "a.csv, line 3: invalid UTF-8: byte 0xe9 at byte 3 of the line."),
    ("a.csv", "id,text\n".encode("utf-16"), "a.csv, line 1: invalid UTF-8: byte 0xff at byte 1 of the line."),
    ("a.csv", "id,text\n".encode("utf-16-le"), "a.csv, line 1: every second byte is zero: it looks like UTF-16."),
    ("a.txt", "a text\n".encode("utf-16-be"), "a.txt, line 1: every second byte is zero: it looks like UTF-16."),
    ("a.jsonl", '{"text": "a"}\n'.encode("utf-16-le"), "a.jsonl, line 1: every second byte is zero"),
    ("a.csv", gzip.compress(b"text\na\n"), "a.csv: the file is compressed, which a name ending with .gz would say."),
    ("a.txt", wrap(".zst", b"a\n"), "a.txt: the file is compressed, which a name ending with .zst would say."),
    ("a.csv", b"id;text\n1;a\n", "a.csv: there is no column 'text'."),
    ("a.csv", b"id,Text\n1,a\n", "a.csv: there is no column 'text'."),
    ("a.csv", b"id,text\n", "The sources have no rows: a.csv"),
    ("a.csv", b"", "a.csv: the file is empty."),
    ("a.txt", b"\xef\xbb\xbf", "a.txt: the file is empty."),
    ("a.txt.gz", gzip.compress(b""), "a.txt.gz: the file is empty."),
    ("a.parquet", b"", "a.parquet: the file is empty."),
    ("a.tsv", b"id\ttext\n1\ta\tb\n", "a.tsv, line 2: the row has 3 fields, the header has 2."),
    ("a.csv", b"id,text\n1," + b"x" * BIG + b"\n", "a.csv, line 2: the text has 17,825,792 bytes of UTF-8"),
    (
        "a.csv",
        b'id,text\n1,"' + (b"x" * (1 << 20) + b"\n") * 70,
        "a.csv, line 2: the row that starts here is longer than",
    ),
    ("a.txt", b"ok\n\xff\n", "a.txt, line 2: invalid UTF-8: byte 0xff at byte 1 of the line."),
    ("a.txt", b"ok\n" + b"x" * BIG + b"\n", "a.txt, line 2: the line is longer than 16,777,216 bytes"),
    ("a.jsonl", b'{"text": "a"}\n{"text": \n', "a.jsonl, line 2: malformed JSON: Expecting value at character 11."),
    ("a.jsonl", b'{"text": "a"}\n{"text": "b"} x\n', "a.jsonl, line 2: malformed JSON: Extra data at character 15."),
    ("a.jsonl", b'{"text": "a", "n": NaN}\n', "a.jsonl, line 1: malformed JSON: NaN is no JSON value."),
    ("a.jsonl", b'{"text": "a\tb"}\n', "a.jsonl, line 1: malformed JSON: Invalid control character at character 12."),
    ("a.jsonl", b'["text"]\n', "a.jsonl, line 1: the line is JSON, but no object."),
    ("a.jsonl", b'[\n{"text": "a"}\n]\n', "a.jsonl, line 1: malformed JSON"),
    ("a.jsonl", b'{"text": "a"}\n\n{"text": "b"}\n', "a.jsonl, line 2: the line is blank, and rows follow."),
    ("a.jsonl", b'{"text": "a", "text": "b"}\n', "a.jsonl, line 1: the object has the key 'text' twice."),
    ("a.jsonl", b'{"text": "a"}\n{"text": 1}\n', "a.jsonl, line 2: column 'text' holds a number, not text."),
    ("a.jsonl", b'{"text": true}\n', "a.jsonl, line 1: column 'text' holds a boolean, not text."),
    ("a.jsonl", b'{"text": ["a"]}\n', "a.jsonl, line 1: column 'text' holds an array, not text."),
    ("a.jsonl", b'{"text": {"a": 1}}\n', "a.jsonl, line 1: column 'text' holds an object, not text."),
    ("a.jsonl", b'{"text": "ok"}\n{"text": "a\\ud800"}\n', "a.jsonl, line 2: the text has a lone surrogate, '\\ud800'"),
    ("a.jsonl", b'{"texd": "a"}\n', "a.jsonl: there is no column 'text'."),
    ("a.jsonl", b'{"text": "' + b"x" * BIG + b'"}\n', "a.jsonl, line 1: the text has 17,825,792 bytes of UTF-8"),
    ("a.jsonl", b"[" * 100_000 + b"\n", "a.jsonl, line 1: the JSON is nested too deeply."),
    ("a.jsonl", b"\n\n", "The sources have no rows: a.jsonl"),
    ("a.csv.gz", wrap(".gz", b"text\n" + b"a\n" * 999)[:-9], "a.csv.gz: the gzip data is damaged or cut short"),
    ("a.csv.gz", b"text\na\n", "a.csv.gz: the gzip data is damaged or cut short: Not a gzipped file"),
    ("a.csv.gz", wrap(".gz", b"text\na\n") + b"junk", "a.csv.gz: the gzip data is damaged or cut short"),
    ("a.csv.zst", wrap(".zst", b"text\n" + b"a\n" * 999)[:-3], "a.csv.zst: the zstd data is damaged or cut short"),
    ("a.csv.zst", b"text\na\n", "a.csv.zst: the zstd data is damaged or cut short"),
    ("a.parquet", b"no parquet at all", "a.parquet: the parquet data cannot be read: Invalid Input Error"),
]


@pytest.mark.parametrize(("name", "data", "expected"), CASES, ids=[f"{name}: {text[:50]}" for name, _, text in CASES])
def test_column(tmp_path: Path, stage_here: Stage, name: str, data: bytes, expected: str) -> None:
    """A fault in a file is named with its line."""
    (tmp_path / name).write_bytes(data)

    message, _ = refusal(stage_here, tmp_path, name, **COLUMN)

    assert message.startswith(expected)


@pytest.mark.parametrize(
    ("name", "data", "command"),
    [
        ("a.jsonl", b'[\n{"text": "a"}\n]\n', "jq -c '.[]' {path} > converted.jsonl"),
        ("a.jsonl", b'{\n  "text": "a"\n}\n', "jq -c . {path} > converted.jsonl"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b\n', "sed -n 2p {path}."),
        ("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n{"text": "b\n'), "zcat {path} | sed -n 2p."),
    ],
    ids=["array", "indented", "damaged", "damaged-gz"],
)
def test_malformed_json_is_told_with_what_suits_the_file(
    tmp_path: Path, stage_here: Stage, name: str, data: bytes, command: str
) -> None:
    """Only a file that is an array, or is indented, is to be converted; a damaged line is to be looked at."""
    path = tmp_path / name
    path.write_bytes(data)

    _, halt = refusal(stage_here, tmp_path, name, **COLUMN)

    assert command.format(path=path) in halt.remedy


def test_missing_column_names_the_nearest(tmp_path: Path, stage_here: Stage) -> None:
    """A mistyped column is answered with the nearest one and all there are, in every format."""
    write_texts(tmp_path / "a.csv", ["x"], column="commit_text")
    write_texts(tmp_path / "a.jsonl", ["x"], column="commit_text")
    write_texts(tmp_path / "a.parquet", ["x"], column="commit_text")
    for name in ("a.csv", "a.jsonl", "a.parquet"):
        for wanted in ({"column": "comit_text"}, {"template": "{comit_text}"}, {"sql": "comit_text || 'x'"}):
            message, halt = refusal(stage_here, tmp_path, name, **wanted)

            assert message == f"{name}: there is no column 'comit_text'."
            assert halt.remedy == "The nearest is 'commit_text'. The columns are: 'id', 'commit_text'."


@pytest.mark.parametrize(
    ("make", "name", "expected"),
    [
        (lambda path: path.mkdir(), "a.csv", "a.csv is a folder, not a file."),
        (lambda path: None, "a.csv", "There is no file a.csv."),
        (lambda path: None, "*.csv", "No file matches *.csv."),
        (lambda path: path.touch(), "a.json", "a.json: the suffix tells no format that is read."),
        (lambda path: path.touch(), "a.csv.bz2", "a.csv.bz2: the suffix tells no format that is read."),
        (lambda path: path.touch(), "a.gz", "a.gz: the suffix tells no format that is read."),
        (lambda path: path.touch(), "a.parquet.gz", "a.parquet.gz: a parquet file in gzip is not read."),
        (lambda path: path.symlink_to("/dev/null"), "a.csv", "a.csv is not a regular file."),
        (lambda path: path.touch(), "a.duckdb", "a.duckdb: databases are not read."),
        (lambda path: path.touch(), "a.sqlite3", "a.sqlite3: databases are not read."),
        (lambda path: path.touch(), "a.feather", "a.feather: Arrow files are not read."),
    ],
)
def test_source(tmp_path: Path, stage_here: Stage, make: Any, name: str, expected: str) -> None:
    """What is no file of a known format is refused by name."""
    make(tmp_path / name)

    assert refusal(stage_here, tmp_path, name, **COLUMN)[0] == expected


@pytest.mark.parametrize("name", ["a.duckdb", "a.arrow", "saved"])
def test_what_parquet_is_made_of(tmp_path: Path, stage_here: Stage, name: str) -> None:
    """The refusal of a database, an Arrow file or a folder of `datasets` has the line that makes parquet of it."""
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").touch()
    (tmp_path / "a.duckdb").touch()
    (tmp_path / "a.arrow").touch()
    assert "'rows.parquet')" in refusal(stage_here, tmp_path, name, **COLUMN)[1].remedy


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"sql": "id"}, "a.jsonl: `sql` gives BIGINT, not text."),
        ({"sql": "nested->0"}, "a.jsonl: `sql` gives JSON, not text."),
        pytest.param({"sql": "text, text"}, "a.jsonl: `sql` gives TUPLE(", marks=duckdb_of_today),
        pytest.param({"sql": "text ||"}, "`sql` cannot be parsed: syntax error", marks=duckdb_of_today),
        ({"sql": "text) FROM (SELECT 1"}, "`sql` is not one expression"),
        ({"sql": "text), (text"}, "`sql` is not one expression"),
        ({"sql": "max(text)"}, "a.jsonl: `sql` does not fit its columns: it has an aggregate"),
        ({"sql": "lag(text) OVER ()"}, "`sql` has a window function"),
        ({"sql": "unnest(['a', 'b'])"}, "a.jsonl: `sql` does not give one text for each row"),
        ({"sql": "(SELECT text FROM 'a.csv')"}, "`sql` has a table"),
        ({"sql": "(SELECT content FROM read_text('a.csv'))"}, "`sql` has a table"),
        ({"sql": "nosuchfunction(text)"}, "a.jsonl: `sql` does not fit its columns: Catalog Error"),
        ({"sql": "text::INT::VARCHAR"}, "a.jsonl, line 3: `sql` fails: Conversion Error"),
        ({"sql": "repeat(text, 5000000)"}, "a.jsonl, line 3: the text has 25,000,000 bytes"),
        ({"template": "{nested}"}, "a.jsonl, line 1: column 'nested' holds an array, which a template cannot take."),
    ],
)
def test_expression(tmp_path: Path, stage_here: Stage, wanted: dict[str, str], expected: str) -> None:
    """An expression that is none, does not fit or fails on a row is refused with the place."""
    (tmp_path / "a.jsonl").write_text(
        '{"id": 1, "text": "1", "nested": [1]}\n{"id": 2, "text": "2"}\n{"id": 3, "text": "three"}\n'
    )

    assert refusal(stage_here, tmp_path, "a.jsonl", **wanted)[0].startswith(expected)


@pytest.mark.parametrize(
    ("select", "wanted", "expected"),
    [
        ("id AS text", COLUMN, "a.parquet: column 'text' holds BIGINT, not text."),
        ("encode(text) AS text", COLUMN, "a.parquet: column 'text' holds BLOB, not text."),
        ("[text] AS text", {"template": "{text}"}, "a.parquet: column 'text' holds VARCHAR[], which a template"),
        ("{'a': text} AS text", {"template": "{text}"}, "a.parquet: column 'text' holds STRUCT(a VARCHAR), which"),
        ("text", {"sql": "text::INT::VARCHAR"}, "a.parquet, row 29999 (counted from 0): `sql` fails: Conversion Error"),
        ("text", {"sql": "repeat(text, 16800000)"}, "a.parquet, row 0 (counted from 0): the text has 16,800,000 bytes"),
        ("text", {"sql": "max(text)"}, "a.parquet: `sql` does not fit its columns: it has an aggregate"),
        ("text", {"sql": "unnest([text, text])"}, "a.parquet: `sql` does not give one text for each row"),
        ("text, id AS file_row_number", COLUMN, "a.parquet: a column is named 'file_row_number'"),
    ],
)
def test_parquet(tmp_path: Path, stage_here: Stage, select: str, wanted: dict[str, str], expected: str) -> None:
    """Parquet has no lines: what is wrong is named with the row, or with the column's type."""
    write_parquet(tmp_path / "a.parquet", select, ["1"])
    if "29999" in expected:
        write_many(tmp_path / "a.parquet", 29_999)

    assert refusal(stage_here, tmp_path, "a.parquet", **wanted)[0].startswith(expected)


def write_many(path: Path, count: int) -> None:
    """A parquet file of so many numbers as text, and a last row that is none."""
    with duckdb.connect() as connection:
        connection.execute(
            f"COPY (SELECT CASE WHEN i = {count} THEN 'x' ELSE i::VARCHAR END AS text FROM range({count + 1}) r(i)) "
            f"TO '{path}' (ROW_GROUP_SIZE 4096)"
        )


def test_parquet_with_invalid_utf8(tmp_path: Path, stage_here: Stage) -> None:
    """A text of a parquet file that is not UTF-8 is refused, in whatever way it is asked for."""
    write_parquet(tmp_path / "a.parquet", "text", ["fine", "QQQQQQQQQQQQQQQQQQQQ", "also"])
    data = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(data.replace(b"QQQQQQQQQQQQQQQQQQQQ", b"\xff" * 20))

    for wanted in (COLUMN, {"template": "{text}"}, {"sql": "text || 'x'"}):
        message, _ = refusal(stage_here, tmp_path, "a.parquet", **wanted)

        assert message.startswith("a.parquet, row ")
        assert "invalid UTF-8" in message


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_parquet_cut_short(tmp_path: Path, stage_here: Stage, share: float) -> None:
    """A torn parquet file is refused by name."""
    write_texts(tmp_path / "a.parquet", [f"text {number}" for number in range(1000)])
    data = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(data[: int(len(data) * share)])

    assert refusal(stage_here, tmp_path, "a.parquet", **COLUMN)[0].startswith("a.parquet: the parquet data cannot be")


def test_names_that_sql_cannot_tell_apart(tmp_path: Path, stage_here: Stage) -> None:
    """SQL folds the case of names, so columns that differ in nothing else are refused there."""
    (tmp_path / "a.csv").write_text("Text,text\nx,y\n")
    (tmp_path / "a.jsonl").write_text('{"Text": "x"}\n{"text": "y"}\n')

    for name in ("a.csv", "a.jsonl"):
        message, _ = refusal(stage_here, tmp_path, name, sql="text")

        assert message == f"{name}: the columns 'Text' and 'text' differ only in case, and SQL cannot tell them apart."


def test_txt_has_one_column(tmp_path: Path, stage_here: Stage) -> None:
    """Asking a .txt file for another column than `text` says so."""
    write_texts(tmp_path / "a.txt", ["x"])

    message, halt = refusal(stage_here, tmp_path, "a.txt", column="commit")

    assert message == "a.txt: there is no column 'commit'."
    assert "'text'" in halt.remedy


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"template": "no column"}, "The template names no column"),
        ({"template": "{a} {"}, "stray { at character 5"),
        ({"template": "{a} }"}, "stray } at character 5"),
        ({"template": "{}"}, "without a column name"),
        ({"column": "a", "max_rows": 0}, "`max_rows` is 0"),
    ],
)
def test_request(wanted: dict[str, Any], expected: str) -> None:
    """An impossible request is refused before anything is read."""
    with pytest.raises(Halt) as caught:
        IngestRequest(sources=("a.csv",), **wanted)

    assert expected in caught.value.what
