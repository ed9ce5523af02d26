"""Files of vectors: only a whole 2-D float32 array in C order passes, and everything else is told
by what is wrong.
"""

import io
import os
import struct
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkvisor.store import artifact
from chunkvisor.store.artifact import BadVectorsError, bad_rows, chunk_key, inspect, pick_rows

GOOD = np.arange(1, 13, dtype=np.float32).reshape(4, 3)


def npy(array: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    """The file that numpy makes of the array."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=version, allow_pickle=True)
    return buffer.getvalue()


def with_header(header: bytes, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """A file with any header."""
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + data


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not an .npy file"),
        (b"\x93NUMPY", "not an .npy file"),
        (npy(GOOD)[:-1], "has 175 bytes where 4 rows x 3 need 176"),
        (npy(GOOD) + b"\0", "has 177 bytes where 4 rows x 3 need 176"),
        (npy(GOOD.astype("f8")), "holds float64, not float32"),
        (npy(np.asfortranarray(GOOD)), "not rows x dimension in C order"),
        (npy(GOOD.ravel()), "holds an array of shape (12,), not rows x dimension"),
        (npy(np.empty((4, 0), dtype=np.float32)), "has dimension 0"),
        (npy(GOOD, version=(3, 0)), "format version (3, 0) of .npy is not one that we write"),
        (with_header(b"garbage\n"), "not an .npy file"),
        (with_header(b"(" * 5000), "not an .npy file"),
        (
            with_header(
                b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -3), }", b"\0" * 12
            ),
            "shape (-1, -3)",
        ),
        (with_header(b"{'descr': {}, 'fortran_order': False, 'shape': (4, 3), }"), "not float32"),
    ],
    ids=lambda value: repr(value[-24:]) if isinstance(value, bytes) else None,
)
def test_broken_files(tmp_path: Path, content: bytes, words: str) -> None:
    """Each kind of broken file is a BadVectorsError that says what is wrong, and no other
    exception.
    """
    path = tmp_path / "broken.npy"
    path.write_bytes(content)
    with pytest.raises(BadVectorsError) as caught:
        inspect(path)
    assert words in str(caught.value)


@pytest.mark.parametrize("rows", [0, 4])
@pytest.mark.parametrize("block_bytes", [1, 25, 1 << 20])
def test_good_file(tmp_path: Path, rows: int, block_bytes: int) -> None:
    """Report a good file by its shape and the digest of all its bytes, in blocks of whatever size
    it is read.
    """
    path = tmp_path / "good.npy"
    path.write_bytes(npy(GOOD[:rows]))
    with mock.patch.object(artifact, "BLOCK_BYTES", block_bytes):
        found = inspect(path)
    assert (found.shape.rows, found.shape.dimension) == (rows, 3)
    assert found.digest == xxhash.xxh3_128_hexdigest(path.read_bytes())
    assert not len(found.not_finite)
    assert not len(found.zero)


@pytest.mark.parametrize(
    ("row", "not_finite", "zero"),
    [
        ([1, 2, 3], False, False),
        ([0, 0, 0], False, True),
        ([0, -0.0, 0], False, True),
        ([np.nan, 0, 0], True, False),
        ([0, np.inf, 0], True, False),
        ([0, 0, -np.inf], True, False),
        ([np.inf, -np.inf, 0], True, False),
        ([3e38, 3e38, 0], False, False),  # the sum of squares overflows
        ([1e-40, 0, 0], False, False),  # the sum of squares underflows
        ([1e-30, 1e-30, 0], False, False),
    ],
    ids=str,
)
def test_bad_rows(row: list[float], not_finite: bool, zero: bool) -> None:
    """NaN, infinity and all-zero rows are found at their place, and nothing else is."""
    block = np.array([[1, 1, 1], row, [1, 1, 1]], dtype=np.float32)
    found = bad_rows(block)
    assert (found[0].tolist(), found[1].tolist()) == (
        [1] if not_finite else [],
        [1] if zero else [],
    )


def test_rows_are_numbered_through_all_blocks(tmp_path: Path) -> None:
    """Find the bad rows of a file that is read in blocks, but for those that do not matter."""
    vectors = np.ones((50, 3), dtype=np.float32)
    vectors[10:30] = np.nan
    vectors[40:] = 0
    path = tmp_path / "bad.npy"
    path.write_bytes(npy(vectors))
    with mock.patch.object(artifact, "BLOCK_BYTES", 7 * 12):
        found = inspect(path, skip={12, 49})
    assert found.not_finite.tolist() == [10, 11, *range(13, 30)]
    assert found.zero.tolist() == list(range(40, 49))


def test_file_shrinks_while_it_is_read(tmp_path: Path) -> None:
    """A file that is cut under our hands is bad, and does not kill the reader."""
    path = tmp_path / "shrinking.npy"
    large = np.ones((1000, 1000), dtype=np.float32)
    path.write_bytes(npy(large))

    def cut(block: artifact.Vectors) -> object:
        os.truncate(path, 1 << 20)
        return bad_rows(block)

    with (
        mock.patch.object(artifact, "BLOCK_BYTES", 1 << 20),
        mock.patch.object(artifact, "bad_rows", cut),  # called between one block and the next
        pytest.raises(BadVectorsError, match="became shorter"),
    ):
        inspect(path)


@pytest.mark.parametrize(
    "change", [("other", 0, 4, "d"), ("f", 1, 4, "d"), ("f", 0, 5, "d"), ("f", 0, 4, "e")]
)
def test_chunk_key(change: tuple[str, int, int, str]) -> None:
    """The key of a chunk depends on the identity, the place and the content."""
    assert chunk_key(*change) != chunk_key("f", 0, 4, "d")
    assert chunk_key("f", 0, 4, "d") == chunk_key("f", 0, 4, "d")


@pytest.mark.parametrize(
    ("gap_bytes", "span_bytes"), [(0, 1), (0, 600), (100, 1 << 20), (1 << 20, 600)]
)
@settings(deadline=None, max_examples=30)
@given(rows=st.lists(st.integers(0, 2999), max_size=500))
def test_any_rows_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, gap_bytes: int, span_bytes: int, rows: list[int]
) -> None:
    """Pick what indexing the whole array gives, repeats and order included, in spans of whatever
    size.
    """
    path, everything = (
        tmp_path_factory.getbasetemp() / "rows.bin",
        np.arange(9000, dtype="<f4").reshape(3000, 3),
    )
    if not path.exists():
        path.write_bytes(b"12345" + everything.tobytes())
    wanted = np.array(rows, dtype=np.int64)
    with mock.patch.multiple(artifact, _GAP_BYTES=gap_bytes, _SPAN_BYTES=span_bytes):
        assert np.array_equal(pick_rows(path, "<f4", 5, 3, wanted), everything[wanted])


@pytest.mark.parametrize(("row", "words"), [(4, "no rows 0 to 4"), (-1, "no rows -1 to ")])
def test_row_that_is_not_there(tmp_path: Path, row: int, words: str) -> None:
    """Refuse a row that the file does not have, instead of giving noise."""
    path = tmp_path / "rows.bin"
    path.write_bytes(GOOD.tobytes())
    with pytest.raises(ValueError, match=words):
        pick_rows(path, "<f4", 0, 3, np.array([0, row]))
