"""Rows by number from anywhere in a file."""

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkvisor.store import pickrows
from chunkvisor.store.pickrows import expect_rows, pick_rows

ROWS, WIDTH = 3000, 3


@pytest.fixture(
    params=[
        (512, 0, 0, 500),
        (512, 0, 0, 16 << 20),
        (1, 0, 0, 1),
        (512, 0, 3000, 1),
        (512, 2, 16, 16 << 20),
        (512, 3000, 16, 1),
    ],
    ids=["mapped in windows", "mapped", "one by one", "few", "as it is", "together"],
    scope="module",
)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Narrow rows are read in one way, wide ones in another, and rows that lie close together in a third."""
    wide_bytes, dense, few, window_bytes = request.param
    with mock.patch.multiple(pickrows, _WIDE_BYTES=wide_bytes, _DENSE=dense, _FEW=few, _WINDOW_BYTES=window_bytes):
        yield


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Row i holds 3i, 3i + 1, 3i + 2; a header of 5 bytes goes before."""
    path = tmp_path_factory.mktemp("rows") / "rows.bin"
    path.write_bytes(b"12345" + np.arange(ROWS * WIDTH, dtype="<f4").tobytes())
    return path


@pytest.mark.usefixtures("way")
@settings(deadline=None)
@given(st.lists(st.integers(0, ROWS - 1), max_size=2000))
def test_any_rows_in_any_order(path: Path, rows: list[int]) -> None:
    """What comes back is what indexing the whole array gives, repeats and order included."""
    wanted = np.array(rows, dtype=np.int64)
    truth = np.arange(ROWS * WIDTH, dtype="<f4").reshape(ROWS, WIDTH)[wanted]
    assert np.array_equal(pick_rows(path, "<f4", 5, WIDTH, wanted), truth)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], []),
        ([3], [(0, 2)]),
        ([400, 3, 3, 401], [(0, 3)]),  # 12 bytes each: what is between takes less time to read than another call
        ([0, 2048], [(0, 2), (6, 2)]),
        ([2999, 2048, 0], [(0, 2), (6, 4)]),
    ],
)
def test_expected(path: Path, rows: list[int], expected: list[tuple[int, int]]) -> None:
    """The kernel is asked for the pages of the rows, in order, each once, whatever order and repeats they come in."""
    asked: list[tuple[int, int]] = []

    def ask(fd: int, offset: int, size: int, advice: int) -> None:
        assert (fd >= 0, advice) == (True, os.POSIX_FADV_WILLNEED)
        asked.append((offset // mmap.PAGESIZE, -(-size // mmap.PAGESIZE)))

    with mock.patch("chunkvisor.store.pickrows.os.posix_fadvise", ask):
        expect_rows(path, 5, 4 * WIDTH, np.array(rows, dtype=np.int64))
    assert asked == expected


@pytest.mark.usefixtures("way")
def test_beyond_the_end(path: Path) -> None:
    """A row that the file does not have is an error, not noise."""
    with pytest.raises(ValueError, match="greater than"):
        pick_rows(path, "<f4", 5, WIDTH, np.array([ROWS]))


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Rows from all over a file of 512 MiB do not bring the file into memory."""
    path = tmp_path / "large.bin"
    path.touch()
    os.truncate(path, 512 << 20)
    program = (
        "import re, sys, numpy as np; from pathlib import Path; from chunkvisor.store.pickrows import pick_rows\n"
        # Of this program alone: ru_maxrss begins with that of the process which it was forked from.
        "def peak(): return int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        "rows = np.random.default_rng(0).permutation(np.arange(0, 32 << 20, 2048))\n"
        "before = peak()\n"
        "for _ in range(2): pick_rows(Path(sys.argv[1]), '<f4', 0, 4, rows)\n"
        "print(peak() - before)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert int(ended.stdout) < 128 << 10  # KiB
