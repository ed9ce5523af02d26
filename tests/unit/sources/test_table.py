"""The staged table: what can be read from it, and that damage to it is never missed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from chunkvisor.sources import table as staged_table
from chunkvisor.sources.table import StagedTable, peek, rows_of
from chunkvisor.store.records import DamagedError
from ingest_files import Stage, write_texts

FILES = ["texts.bin", "offsets.bin", "row_text.bin", "first_row.bin", "index.bin", "table.json"]


@pytest.fixture
def table(tmp_path: Path, stage_here: Stage) -> StagedTable:
    """Rows b, a, b, é, "" and a, in two files."""
    write_texts(tmp_path / "a.csv", ["b", "a", "b"])
    write_texts(tmp_path / "b.csv", ["é", "", "a"])
    return stage_here("a.csv", "b.csv", column="text")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped", "longer"])
def test_damage(table: StagedTable, name: str, damage: str) -> None:
    """A table of which anything is missing or altered does not open."""
    path = table.folder / name
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    else:
        data[len(data) // 2] ^= damage == "flipped"
        path.write_bytes({"truncated": data[:-2], "longer": data + b"x"}.get(damage, data))
    with pytest.raises(DamagedError):
        StagedTable.open(table.folder)


def test_ranges(table: StagedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any range of texts and rows can be read, the empty one included, and none outside."""
    assert (table.rows, table.distinct, table.empty) == (6, 4, 1)
    assert table.texts(1, 3) == ["a", "é"]
    assert table.texts(4, 4) == []
    assert table.texts_of(np.array([0, 2, 3])) == ["b", "é", ""]
    assert table.row_text(1, 6).tolist() == [1, 0, 2, 3, 1]
    assert table.row_text(3, 3).tolist() == []
    assert table.first_row(0, 4).tolist() == [0, 1, 3, 4]
    assert table.first_rows_of(np.array([3, 0, 3])).tolist() == [4, 0, 4]
    for text in (4, -1):
        with pytest.raises(IndexError):
            table.first_rows_of(np.array([text]))
    with pytest.raises(IndexError):
        table.texts(0, 5)
    monkeypatch.setattr(staged_table, "_EACH", 2)
    monkeypatch.setattr(staged_table, "_ROWS_AT_ONCE", 2)
    assert list(table.each_text(1, 4)) == table.texts(1, 4)
    assert (rows_of(table, [1, 0, 3]), rows_of(table, [])) == ({0: 2, 1: 2, 3: 1}, {})
    assert [peek(table.folder, row, 1) for row in (0, 3, 4, 6)] == ["b", "é", "", None]


def test_copied_folder_is_stamped_anew(table: StagedTable, tmp_path: Path) -> None:
    """A copy of the folder opens, and after that is known to be untouched."""
    copy = tmp_path / "copy"
    shutil.copytree(table.folder, copy)
    before = json.loads((copy / "table.json").read_bytes())["stamps"]

    assert StagedTable.open(copy).digest == table.digest

    after = json.loads((copy / "table.json").read_bytes())["stamps"]
    assert all(after[name]["inode"] != before[name]["inode"] for name in before)
    written = (copy / "table.json").stat().st_ino
    StagedTable.open(copy)
    assert (copy / "table.json").stat().st_ino == written


def test_file_gone_while_open(table: StagedTable) -> None:
    """A file that shrinks under an open table is noticed by the read that misses it."""
    for name in ("texts.bin", "row_text.bin"):
        (table.folder / name).write_bytes(b"")
    with pytest.raises(DamagedError):
        table.texts(0, 1)
    with pytest.raises(DamagedError):
        table.row_text(0, 1)


def test_lines(tmp_path: Path, stage_here: Stage) -> None:
    """A row is located by file and line, line breaks in quotes counted, as long as the file is the same."""
    (tmp_path / "a.csv").write_bytes(b'id,text\n1,"a\n\nb"\n2,c\n')
    (tmp_path / "b.txt").write_bytes(b"\nd\n")
    write_texts(tmp_path / "c.parquet", ["e"])
    (tmp_path / "d.jsonl").write_bytes(b'{"text": "f"}\n{"text": "g"}\n')
    table = stage_here("a.csv", "b.txt", "c.parquet", "d.jsonl", column="text")

    found = [table.place_of(row).removeprefix(f"{tmp_path}/") for row in range(table.rows)]

    expected = ["a.csv:2", "a.csv:5", "b.txt:1", "b.txt:2", "c.parquet, row 0", "d.jsonl:1", "d.jsonl:2"]
    assert found == expected
    (tmp_path / "b.txt").write_bytes(b"changed\n")
    (tmp_path / "a.csv").unlink()
    assert table.place_of(3) == f"{tmp_path / 'b.txt'}, row 1"
    assert table.place_of(0) == f"{tmp_path / 'a.csv'}, row 0"
