"""Which texts two indexes have in common, against the truth of a dictionary, however the blocks fall."""

import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkvisor.sources import dedupe
from chunkvisor.sources.dedupe import RECORD, matches

HASHES = st.dictionaries(st.tuples(st.integers(0, 4), st.integers(0, 4)), st.integers(0, 99), max_size=25)


def write(path: Path, hashes: dict[tuple[int, int], int]) -> Path:
    """An index of these hashes and first rows."""
    np.array([(*pair, row) for pair, row in sorted(hashes.items())], dtype=RECORD).tofile(path)
    return path


@settings(deadline=None)
@given(HASHES, HASHES, st.integers(1, 6))
def test_matches(ours: dict[tuple[int, int], int], theirs: dict[tuple[int, int], int], block: int) -> None:
    """Each text that both have is found once, with its row here and there; also where hashes share a half."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(dedupe, "_BLOCK", block):
        found = list(matches(write(Path(folder, "a"), ours), write(Path(folder, "b"), theirs)))
    pairs = [pair for here, there in found for pair in zip(here.tolist(), there.tolist(), strict=True)]
    assert pairs == [(ours[pair], theirs[pair]) for pair in sorted(ours.keys() & theirs.keys())]


@pytest.mark.parametrize("tail", [b"", b"torn"])
def test_torn_index(tmp_path: Path, tail: bytes) -> None:
    """What is less than a record at the end of a file is nothing."""
    ours = write(tmp_path / "a", {(1, 2): 3})
    ours.write_bytes(ours.read_bytes() + tail)
    (found,) = matches(ours, write(tmp_path / "b", {(1, 2): 7}))
    assert [part.tolist() for part in found] == [[3], [7]]
