"""De-duplication against the truth of a dictionary, however the rows are cut into batches and bins."""

import itertools
import random
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkvisor.sources import dedupe
from chunkvisor.sources.dedupe import (
    BINS,
    Batch,
    Spool,
    SpoolFiles,
    bins_at_once,
    drop_repeats,
    first_rows,
    number_texts,
)
from chunkvisor.sources.table import TableFiles


def staged(folder: Path, texts: list[bytes], memory_limit_bytes: int) -> tuple[int, TableFiles]:
    """Number of distinct texts, and the files."""
    files, scratch = TableFiles(folder), SpoolFiles(folder)
    with Spool(files, scratch) as spooled:
        for text in texts:
            spooled.add(text)
    distinct = number_texts(files, scratch, spooled.batches, memory_limit_bytes)
    drop_repeats(files, scratch, spooled.batches)
    return distinct, files


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.binary(max_size=2), st.sampled_from([b"", b"often", "é".encode()])), min_size=1, max_size=80),
    st.integers(1, 90),
    st.integers(1, 40),
)
def test_numbering(texts: list[bytes], batch_rows: int, rows_at_once: int) -> None:
    """Texts are numbered in the order of their first rows, each is kept once, and every row knows its own."""
    numbers: dict[bytes, int] = {}
    ids = [numbers.setdefault(text, len(numbers)) for text in texts]
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(dedupe, "_BATCH_ROWS", batch_rows),
        mock.patch.object(dedupe, "_BYTES_PER_ROW", 1),
    ):
        distinct, files = staged(Path(folder), texts, rows_at_once)
        offsets = np.fromfile(files.offsets, dtype="<u8").tolist()
        data = files.texts.read_bytes()
        assert distinct == len(numbers)
        assert np.fromfile(files.row_text, dtype="<i8").tolist() == ids
        assert np.fromfile(files.first_row, dtype="<i8").tolist() == [texts.index(text) for text in numbers]
        assert [data[start:stop] for start, stop in itertools.pairwise(offsets)] == list(numbers)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=60), st.randoms())
def test_hashes_alike_in_one_half(pairs: list[tuple[int, int]], chance: random.Random) -> None:
    """Two hashes are the same only if both of their halves are."""
    rows = list(range(len(pairs)))
    chance.shuffle(rows)
    hashes = np.array(pairs, dtype="<u8").reshape(-1, 2)
    found, texts = first_rows(hashes, np.array(rows, dtype=np.int64))
    truth = [min(row for other, row in zip(pairs, rows, strict=True) if other == pair) for pair in pairs]
    assert found.tolist() == truth
    firsts = dict(zip(pairs, truth, strict=True))
    assert texts.tolist() == [(high, low, firsts[low, high]) for high, low in sorted(pair[::-1] for pair in firsts)]


@pytest.mark.parametrize(
    ("sizes", "most", "ranges"),
    [
        ({}, 10, [(0, BINS)]),
        ({0: 4, 1: 4, 2: 4}, 8, [(0, 2), (2, BINS)]),
        ({0: 4, 1: 40, 2: 4}, 8, [(0, 1), (1, 2), (2, BINS)]),
        ({255: 3}, 1, [(0, BINS)]),
        ({254: 3, 255: 3}, 1, [(0, 255), (255, BINS)]),
    ],
)
def test_bins_at_once(sizes: dict[int, int], most: int, ranges: list[tuple[int, int]]) -> None:
    """Neighbouring bins are taken together as long as they are few rows; every bin is in one range."""
    counts = [sizes.get(number, 0) for number in range(BINS)]
    batch = Batch(0, sum(counts), 0, np.concatenate(([0], np.cumsum(counts))).astype(np.uint32))
    assert bins_at_once([batch], most) == ranges
