"""De-duplication, the texts that two tables share, and where they have vectors: against the truth of a dictionary."""

import itertools
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkvisor.sources import table as tables
from chunkvisor.sources.table import Spool, TableFiles, WhereWriter, fresh_of, matches
from chunkvisor.store.layout import Layout
from chunkvisor.store.ledger import ENCODED, Place, PlaceKind, read_reuse, write_plan
from staged import first_come_first_numbered, make_table

TEXTS = st.lists(
    st.one_of(st.binary(max_size=2), st.sampled_from([b"", b"often", "é".encode()])), min_size=1, max_size=80
)


def staged(folder: Path, texts: list[bytes]) -> tuple[int, TableFiles]:
    """Return the number of distinct texts, and the files."""
    files = TableFiles(folder)
    spooled = Spool(files, folder)
    for text in texts:
        spooled.add(text)
    return spooled.finish(), files


@settings(deadline=None, max_examples=40)
@given(TEXTS, TEXTS, st.integers(1, 90), st.integers(1, 6))
def test_numbering(texts: list[bytes], others: list[bytes], batch_rows: int, block: int) -> None:
    """Texts are numbered by first rows and kept once, each row knows its own; tables find what they share, once."""
    numbers: dict[bytes, int] = {}
    ids = [numbers.setdefault(text, len(numbers)) for text in texts]
    with (
        tempfile.TemporaryDirectory() as name,
        mock.patch.object(tables, "_BATCH_ROWS", batch_rows),
        mock.patch.object(tables, "_BLOCK", block),
    ):
        (folder, other) = Path(name, "here"), Path(name, "there")
        folder.mkdir()
        other.mkdir()
        distinct, files = staged(folder, texts)
        offsets = np.fromfile(files.offsets, dtype="<u8").tolist()
        data = files.texts.read_bytes()
        assert distinct == len(numbers)
        assert np.fromfile(files.row_text, dtype="<i8").tolist() == ids
        assert np.fromfile(files.first_row, dtype="<i8").tolist() == [texts.index(text) for text in numbers]
        assert [data[start:stop] for start, stop in itertools.pairwise(offsets)] == list(numbers)
        found = list(matches(files.index, staged(other, others)[1].index))
    pairs = [pair for here, there in found for pair in zip(here.tolist(), there.tolist(), strict=True)]
    assert sorted(pairs) == sorted((texts.index(text), others.index(text)) for text in set(texts) & set(others))


@settings(deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=40), st.data())
def test_where(rows: list[int], data: st.DataObject) -> None:
    """Each text is where the first place says that has it, or is one of those to be encoded, numbered in order."""
    row_text = first_come_first_numbered(rows)
    firsts = np.unique(row_text, return_index=True)[1]
    claims = st.dictionaries(st.integers(0, len(firsts) - 1), st.integers(0, 99))
    places = data.draw(st.lists(claims, min_size=1, max_size=3).filter(any))
    with tempfile.TemporaryDirectory() as name:
        layout = Layout(Path(name)).output("out")
        table = make_table(Path(name, "table"), row_text)
        layout.reuse.mkdir(parents=True)
        writer = WhereWriter(layout.reuse, table)
        for number, place in enumerate(places):
            for text in data.draw(st.permutations(sorted(place))):
                writer.add(number, firsts[[text]].astype(np.int64), np.array([place[text]]))
        encoded, taken = writer.write()
        write_plan(layout.reuse, table.distinct, encoded, [Place(PlaceKind.COPY, "there")])
        reuse = read_reuse(layout)
        assert reuse is not None
        found = reuse.where(0, table.distinct).tolist()
        texts = reuse.texts_of(0, encoded).tolist()
        fresh = fresh_of(table, reuse)
        numbers = fresh.row_text(0, table.rows).tolist()
        words = fresh.texts(0, encoded)
        first_rows = fresh.first_row(0, encoded).tolist()
    truth = [
        next(((n, each[text]) for n, each in enumerate(places) if text in each), None) for text in range(len(firsts))
    ]
    assert texts == [text for text, where in enumerate(truth) if where is None]
    assert found == [where or (ENCODED, texts.index(text)) for text, where in enumerate(truth)]
    assert sum(taken.values()) + encoded == len(firsts)
    assert numbers == [texts.index(text) if text in texts else -1 for text in row_text.tolist()]
    assert words == [str(text) for text in texts]
    assert first_rows == firsts[texts].tolist()
