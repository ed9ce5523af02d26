"""Where the texts of a table have their vectors, against a dictionary, in whatever order the matches come."""

import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkvisor.sources import wherewriter
from chunkvisor.sources.table import fresh_of
from chunkvisor.sources.wherewriter import WhereWriter
from chunkvisor.store.layout import Layout
from chunkvisor.store.reuse import ENCODED, Place, PlaceKind, read_reuse, write_plan
from staged import first_come_first_numbered, make_table

ROWS = st.lists(st.integers(0, 12), min_size=1, max_size=40)


@settings(deadline=None)
@given(ROWS, st.data(), st.integers(1, 9), st.integers(1, 4))
def test_where(rows: list[int], data: st.DataObject, stretch: int, block: int) -> None:
    """Each text is where the first place says that has it, or is one of those to be encoded, numbered in order."""
    row_text = first_come_first_numbered(rows)
    firsts = np.unique(row_text, return_index=True)[1]
    claims = st.dictionaries(st.integers(0, len(firsts) - 1), st.integers(0, 99))
    places = data.draw(st.lists(claims, max_size=3))
    with (
        tempfile.TemporaryDirectory() as name,
        mock.patch.object(wherewriter, "_STRETCH_ROWS", stretch),
        mock.patch.object(wherewriter, "_MOST_STRETCHES", 1000),
        mock.patch.object(wherewriter, "_BLOCK", block),
    ):
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
