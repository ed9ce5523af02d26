"""Arrow files, and folders that HF `datasets` has saved, give what the same rows give as JSON lines."""

import json
from pathlib import Path
from typing import Any

import pytest

from chunkvisor.errors import Halt
from ingest_files import Stage

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

ROWS = [
    {"id": number, "text": None if number == 3 else f"text {number % 5}", "ok": number % 2 == 0} for number in range(9)
]


def write(path: Path, rows: list[dict[str, Any]], kind: str) -> None:
    """The rows as a file with an index, a compressed one, or a stream, in batches of four."""
    table = pa.Table.from_pylist(rows)
    options = pa.ipc.IpcWriteOptions(compression="lz4" if kind == "feather" else None)
    begin = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
    with begin(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=4)


@pytest.mark.parametrize("kind", ["file", "feather", "stream"])
@pytest.mark.parametrize(
    "wanted",
    [
        {"column": "text"},
        {"template": "{id}: {text}"},
        {"sql": "upper(text)", "where": "ok", "columns": ("id",)},
        {"column": "text", "max_rows": 6},
    ],
)
def test_the_same_as_json(stage_here: Stage, tmp_path: Path, kind: str, wanted: dict[str, Any]) -> None:
    """The table is that of the same rows in JSON lines, by column, template and sql, with rows left out and without."""
    name = "a.feather" if kind == "feather" else "a.arrow"
    write(tmp_path / name, ROWS, kind)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    table, same = stage_here(name, name, **wanted), stage_here("a.jsonl", "a.jsonl", **wanted)
    assert (table.digest, table.rows) == (same.digest, same.rows)
    assert table.place_of(table.rows - 1).startswith(f"{tmp_path / name}, row ")


def test_a_saved_dataset(stage_here: Stage, rows_of: Any, tmp_path: Path) -> None:
    """The files of a folder by `save_to_disk` are read in the order of its state; several splits are named."""
    saved = tmp_path / "saved" / "train"
    saved.mkdir(parents=True)
    names = [f"data-0000{number}-of-00002.arrow" for number in (1, 0)]
    for number, name in enumerate(names):
        write(saved / name, [{"text": f"of file {number}"}], "stream")
    (saved / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    assert rows_of(stage_here("saved/train", column="text")) == ["of file 0", "of file 1"]
    (saved.parent / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(Halt, match="several datasets") as raised:
        stage_here("saved", column="text")
    assert f"{saved}" in raised.value.remedy


@pytest.mark.parametrize(
    ("content", "words"), [(b"nothing", "the Arrow data cannot be read"), (b"", "the Arrow data cannot be read")]
)
def test_what_is_no_arrow_file(stage_here: Stage, tmp_path: Path, content: bytes, words: str) -> None:
    """A file that is no Arrow file is refused with its name."""
    (tmp_path / "a.arrow").write_bytes(content)
    with pytest.raises(Halt, match=words) as raised:
        stage_here("a.arrow", column="text")
    assert raised.value.code == 78


def test_sql_that_fails(stage_here: Stage, tmp_path: Path) -> None:
    """A value for which the SQL fails, and a column that is not there, are refused in words."""
    write(tmp_path / "a.arrow", ROWS, "file")
    with pytest.raises(Halt, match="`sql` fails"):
        stage_here("a.arrow", sql="(text::INTEGER)::VARCHAR")
    with pytest.raises(Halt, match="there is no column 'txt'"):
        stage_here("a.arrow", column="txt")
