"""Files of vectors: only a whole 2-D float32 array in C order passes, and everything else is told by what is wrong."""

import contextlib
import hashlib
import io
import os
import struct
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import xxhash

from chunkvisor.store import artifact
from chunkvisor.store.artifact import BadVectorsError, bad_rows, chunk_key, inspect
from chunkvisor.store.records import digest_file

GOOD = np.arange(1, 13, dtype=np.float32).reshape(4, 3)


def digest_of(content: bytes) -> str:
    """xxh3-128, hex."""
    return xxhash.xxh3_128_hexdigest(content)


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
        (b"PK\x03\x04" + b"\0" * 200, "not an .npy file"),
        (npy(GOOD)[:60], "not an .npy file"),
        (npy(GOOD)[:128], "has 128 bytes where 4 rows x 3 need 176"),
        (npy(GOOD)[:-1], "has 175 bytes where 4 rows x 3 need 176"),
        (npy(GOOD) + b"\0", "has 177 bytes where 4 rows x 3 need 176"),
        (npy(GOOD.astype("f8")), "holds float64, not float32"),
        (npy(GOOD.astype("f2")), "holds float16, not float32"),
        (npy(GOOD.astype("i4")), "holds int32, not float32"),
        (npy(GOOD.astype(">f4")), "holds >f4, not float32"),
        (npy(GOOD.astype(object)), "holds object, not float32"),
        (npy(np.zeros(3, dtype=[("a", "<f4")])), "not float32"),
        (npy(np.asfortranarray(GOOD)), "not rows x dimension in C order"),
        (npy(GOOD.ravel()), "holds an array of shape (12,), not rows x dimension"),
        (npy(GOOD.reshape(2, 2, 3)), "holds an array of shape (2, 2, 3), not rows x dimension"),
        (npy(np.array(5, dtype=np.float32)), "holds an array of shape (), not rows x dimension"),
        (npy(np.empty((4, 0), dtype=np.float32)), "has dimension 0"),
        (npy(GOOD, version=(3, 0)), "format version (3, 0) of .npy is not one that we write"),
        (with_header(b"garbage\n"), "not an .npy file"),
        (with_header(b"{'descr': '<f4'}\n"), "not an .npy file"),
        (with_header(b"\xff" * 50), "not an .npy file"),
        (with_header(b"(" * 5000), "not an .npy file"),
        (with_header(b"-" * 60000), "not an .npy file"),
        (with_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -3), }", b"\0" * 12), "shape (-1, -3)"),
        (with_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-4, 3), }"), ""),
        (with_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (4, True), }", b"\0" * 16), ""),
        (with_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (10**30, 3), }"), ""),
        (
            with_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000000000, 3), }"),
            "bytes where",
        ),
        (with_header(b"{'descr': {}, 'fortran_order': False, 'shape': (4, 3), }"), "not float32"),
        (with_header(b"{'descr': [], 'fortran_order': False, 'shape': (4, 3), }"), ""),
    ],
    ids=lambda value: repr(value[-24:]) if isinstance(value, bytes) else None,
)
def test_broken_files(tmp_path: Path, content: bytes, words: str) -> None:
    """Each kind of broken file is a BadVectorsError that says what is wrong, and no other exception."""
    path = tmp_path / "broken.npy"
    path.write_bytes(content)
    with pytest.raises(BadVectorsError) as caught:
        inspect(path)
    assert words in str(caught.value)


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("block_bytes", [1, 12, 25, 1 << 20])
def test_good_file(tmp_path: Path, version: tuple[int, int], block_bytes: int) -> None:
    """A good file is told by its shape and the digest of all its bytes, however it is read."""
    path = tmp_path / "good.npy"
    path.write_bytes(npy(GOOD, version))
    with mock.patch.object(artifact, "BLOCK_BYTES", block_bytes):
        found = inspect(path)
    assert (found.shape.rows, found.shape.dimension) == GOOD.shape
    assert found.digest == digest_of(path.read_bytes())
    assert inspect(path, hashlib.sha256).digest == digest_file(path)
    assert (found.not_finite, found.zero) == ([], [])


def test_no_rows(tmp_path: Path) -> None:
    """An array without rows is one with no bad rows."""
    path = tmp_path / "empty.npy"
    path.write_bytes(npy(np.empty((0, 3), dtype=np.float32)))
    assert inspect(path).shape.rows == 0


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
    assert (found[0].tolist(), found[1].tolist()) == ([1] if not_finite else [], [1] if zero else [])


def test_many_bad_rows(tmp_path: Path) -> None:
    """Bad rows beyond the limit are counted, not listed, and rows are numbered through all blocks."""
    vectors = np.ones((50, 3), dtype=np.float32)
    vectors[10:30] = np.nan
    vectors[40:] = 0
    path = tmp_path / "bad.npy"
    path.write_bytes(npy(vectors))
    with mock.patch.object(artifact, "BLOCK_BYTES", 7 * 12), mock.patch.object(artifact, "MAX_LISTED", 5):
        found = inspect(path)
    assert (found.not_finite, found.not_finite_count) == ([10, 11, 12, 13, 14], 20)
    assert (found.zero, found.zero_count) == ([40, 41, 42, 43, 44], 10)


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


def test_any_byte_of_the_header(tmp_path: Path) -> None:
    """Whatever one byte of the header becomes: the file is bad, or it is one with another digest."""
    path = tmp_path / "flipped.npy"
    good = npy(GOOD)
    for at in range(128):
        for bit in range(8):
            path.write_bytes(good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :])
            with contextlib.suppress(BadVectorsError):
                assert inspect(path).digest != digest_of(good)


@pytest.mark.parametrize("change", [("other", 0, 4, "d"), ("f", 1, 4, "d"), ("f", 0, 5, "d"), ("f", 0, 4, "e")])
def test_chunk_key(change: tuple[str, int, int, str]) -> None:
    """The key of a chunk depends on the identity, the place and the content."""
    assert chunk_key(*change) != chunk_key("f", 0, 4, "d")
    assert chunk_key("f", 0, 4, "d") == chunk_key("f", 0, 4, "d")
