"""The staged table against the truth of a dictionary: numbering, reading, matches, and damage that
is never missed.
"""

import itertools
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkvisor.sources import table as tables
from chunkvisor.sources.table import Spool, StagedTable, TableFiles, shared_texts, text_of_row
from chunkvisor.store.layout import Layout
from chunkvisor.store.records import DamagedError
from chunkvisor.store.reuse import Place, ReuseFiles, read_reuse, write_plan
from ingest_files import Stage, write_texts
from staged import first_come_first_numbered, make_table

TEXTS = st.lists(
    st.one_of(st.binary(max_size=2), st.sampled_from([b"", b"often", "é".encode()])),
    min_size=1,
    max_size=80,
)


def spooled(folder: Path, texts: list[bytes]) -> tuple[int, TableFiles]:
    """Return the number of distinct texts, and the files."""
    folder.mkdir()
    spool = Spool(TableFiles(folder), folder)
    for line, text in enumerate(texts, 1):
        spool.append(text, line)
    return spool.write_files(), TableFiles(folder)


@settings(deadline=None, max_examples=40)
@given(TEXTS, TEXTS, st.integers(1, 90), st.integers(1, 6))
def test_numbering(texts: list[bytes], others: list[bytes], batch_rows: int, block: int) -> None:
    """Texts are numbered by first rows and kept once, each row knows its own; tables find what they
    share, once.
    """
    numbers: dict[bytes, int] = {}
    ids = [numbers.setdefault(text, len(numbers)) for text in texts]
    with (
        tempfile.TemporaryDirectory() as name,
        mock.patch.object(tables, "_BATCH_ROWS", batch_rows),
        mock.patch.object(tables, "_BLOCK", block),
    ):
        distinct, files = spooled(Path(name, "here"), texts)
        offsets = np.fromfile(files.offsets, dtype="<u8").tolist()
        data = files.texts.read_bytes()
        assert distinct == len(numbers)
        assert np.fromfile(files.row_text, dtype="<i8").tolist() == ids
        assert np.fromfile(files.first_row, dtype="<i8").tolist() == [
            texts.index(text) for text in numbers
        ]
        assert np.fromfile(files.row_count, dtype="<i8").tolist() == list(map(texts.count, numbers))
        assert [data[start:stop] for start, stop in itertools.pairwise(offsets)] == list(numbers)
        found = list(shared_texts(files.index, spooled(Path(name, "there"), others)[1].index))
    pairs = [
        pair for here, there in found for pair in zip(here.tolist(), there.tolist(), strict=True)
    ]
    assert sorted(pairs) == sorted(
        (texts.index(text), others.index(text)) for text in set(texts) & set(others)
    )


@settings(deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=40), st.data())
def test_texts_that_are_encoded(rows: list[int], data: st.DataObject) -> None:
    """A plan that takes some texts over leaves the others, numbered in order, and their rows."""
    row_text = first_come_first_numbered(rows)
    rows_of = row_text.tolist()
    firsts = np.unique(row_text, return_index=True)[1]
    texts = sorted(data.draw(st.sets(st.integers(0, len(firsts) - 1))))
    with tempfile.TemporaryDirectory() as name:
        layout = Layout(Path(name)).output("out")
        table = make_table(Path(name, "table"), row_text)
        layout.reuse.mkdir(parents=True)
        files, where = ReuseFiles(layout.reuse), np.zeros(table.distinct, "<i8")
        where[texts] = ~np.arange(len(texts))
        for path, numbers in ((files.where, where), (files.encoded, np.array(texts, dtype="<i8"))):
            path.write_bytes(numbers.tobytes())
        files.copied.touch()
        files.tokens.touch()
        write_plan(layout.reuse, table.distinct, len(texts), [Place("there")])
        reuse = read_reuse(layout)
        assert reuse is not None
        fresh = table.without(reuse)
        assert fresh.texts(0, len(texts)) == [str(text) for text in texts]
        assert fresh.first_row(0, len(texts)).tolist() == firsts[texts].tolist()
        assert fresh.row_counts(range(len(texts))) == [rows_of.count(text) for text in texts]
        own = [texts.index(text) if text in texts else -1 for text in row_text.tolist()]
        assert fresh.row_text(0, table.rows).tolist() == own


@pytest.fixture
def table(tmp_path: Path, stage_here: Stage) -> StagedTable:
    """Rows b, a, b, é, "" and a, in two files."""
    write_texts(tmp_path / "a.csv", ["b", "a", "b"])
    write_texts(tmp_path / "b.csv", ["é", "", "a"])
    return stage_here("a.csv", "b.csv", column="text")


@pytest.mark.parametrize("name", ["texts.bin", "offsets.bin", "index.bin", "table.json"])
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
    """Any range of texts and rows can be read, the empty one included, none outside, nor from a
    file that shrank.
    """
    assert (table.rows, table.distinct, table.empty) == (6, 4, 1)
    assert table.texts(1, 3) == ["a", "é"]
    assert table.texts(4, 4) == []
    assert table.texts_at(np.array([0, 2, 3])) == ["b", "é", ""]
    assert table.row_text(1, 6).tolist() == [1, 0, 2, 3, 1]
    assert table.first_row(0, 4).tolist() == [0, 1, 3, 4]
    assert table.first_row_at(np.array([3, 0, 3])).tolist() == [4, 0, 4]
    for outside in ([4], [-1]):
        with pytest.raises(DamagedError):
            table.first_row_at(np.array(outside))
    with pytest.raises(DamagedError):
        table.texts(0, 5)
    monkeypatch.setattr(tables, "_TEXTS_AT_ONCE", 2)
    assert list(table.each_text(1, 4)) == table.texts(1, 4)
    assert (table.row_counts([1, 0, 3]), table.row_counts([])) == ([2, 2, 1], [])
    assert [text_of_row(table.folder, row) for row in (0, 3, 4, 6)] == ["b", "é", "", None]
    (table.folder / "texts.bin").write_bytes(b"")
    with pytest.raises(DamagedError):
        table.texts(0, 1)


def test_lines(tmp_path: Path, stage_here: Stage) -> None:
    """A row is located by the file and line at which it was read, line breaks in quotes counted,
    without a second look at the source.
    """
    (tmp_path / "a.csv").write_bytes(b'id,text\n1,"a\n\nb"\n2,c\n')
    (tmp_path / "b.txt").write_bytes(b"\nd\n")
    write_texts(tmp_path / "c.parquet", ["e"])
    table = stage_here("a.csv", "b.txt", "c.parquet", column="text")
    (tmp_path / "b.txt").write_bytes(b"changed\n")
    (tmp_path / "a.csv").unlink()
    found = [place.removeprefix(f"{tmp_path}/") for place in table.places_of(range(table.rows))]
    assert found == ["a.csv:2", "a.csv:5", "b.txt:1", "b.txt:2", "c.parquet, row 0"]
    assert table.places_of([]) == []
