"""Assembly against the truth that numpy's indexing gives, whatever repeats where and however small the blocks are."""

import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkvisor.assemble import join as assemble
from chunkvisor.assemble import reader
from chunkvisor.assemble.forms import Form, all_partials
from chunkvisor.assemble.reader import ChunkDamagedError
from chunkvisor.sources.table import StagedTable
from chunkvisor.store import artifact
from chunkvisor.store.artifact import inspect
from chunkvisor.store.identity import BadText, Plan
from chunkvisor.store.layout import Layout
from chunkvisor.store.ledger import Ledger, chunk_files
from chunkvisor.store.records import digest_file
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Facts
from soaked import soaked
from staged import first_come_first_numbered, make_table

DIMENSION = 3


def make_ledger(workdir: Path, vectors: np.ndarray, chunk_size: int, bad: Sequence[int] = ()) -> Ledger:
    """All vectors committed, in chunks of the size; the records name the bad texts."""
    layout = Layout(workdir).output("out")
    layout.state.mkdir(parents=True)
    ledger = Ledger(layout, Plan(len(vectors), chunk_size), "fingerprint")
    ledger.load()
    for chunk in range(ledger.plan.count):
        start, stop = ledger.plan.bounds(chunk)
        part = workdir / "part.npy"
        np.save(part, vectors[start:stop])
        for text in set(bad).intersection(range(start, stop)):
            ledger.parts(chunk).add_bad(BadText(text, Outcome.CRASHED, "why"))
        ledger.commit(chunk, part, inspect(part).digest, Facts(DIMENSION))
    return ledger


@contextmanager
def assembled(
    row_text: np.ndarray,
    chunk_size: int,
    block_rows: int,
    *,
    bad: Sequence[int] = (),
    nan: Sequence[int] = (),
    zero: Sequence[int] = (),
) -> Iterator[tuple[Ledger, StagedTable, np.ndarray]]:
    """A ledger and a table to assemble, the right array, and blocks of so many rows.

    `bad` are the texts without a vector by the records, `nan` those that really have none, `zero` those of zeros.
    """
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((int(row_text.max()) + 1, DIMENSION), dtype=np.float32)
    vectors[list(nan)], vectors[list(zero)] = np.nan, 0
    block_bytes = block_rows * DIMENSION * 4
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(assemble, "BLOCK_BYTES", block_bytes),
        mock.patch.object(artifact, "BLOCK_BYTES", block_bytes),
        mock.patch.object(assemble, "_BLOCKS_AT_ONCE", 2),
        mock.patch.object(reader, "_AHEAD_BYTES", 1),
        mock.patch("os.fsync"),  # the bytes are what counts here
    ):
        workdir = Path(folder)
        ledger = make_ledger(workdir, vectors, chunk_size, bad)
        yield ledger, make_table(workdir / "table", row_text), vectors[row_text]


@pytest.mark.soak
@given(
    rows=st.lists(st.integers(0, 12), min_size=1, max_size=40),
    chunk_size=st.integers(1, 9),
    block_rows=st.integers(1, 7),
    shards=st.none() | st.integers(1, 9),
)
@soaked(300)
def test_any_repetition(rows: list[int], chunk_size: int, block_rows: int, shards: int | None) -> None:
    """Row i has the vector of its text, for repeats within and across blocks, chunks and shards, and without any."""
    row_text = first_come_first_numbered(rows)
    blocks: list[None] = []
    with assembled(row_text, chunk_size, block_rows) as (ledger, table, right):
        final = assemble.assemble(ledger, table, lambda: blocks.append(None), Form(shards))
        layout = ledger.layout
        paths = [layout.final] if shards is None else sorted(layout.shards.iterdir())
        assert len(paths) == (1 if shards is None else min(shards, len(rows)))
        parts = [np.load(path, mmap_mode="r") for path in paths]
        np.testing.assert_array_equal(np.concatenate(parts), right)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert final.dimension == DIMENSION
        assert final.zero_rows == 0
        for path, part, stamp in zip(paths, parts, final.stamps, strict=True):
            assert stamp.untouched(path)
            assert stamp.digest == digest_file(path)
            reference = layout.workdir / "reference.npy"
            np.save(reference, part)
            assert path.read_bytes() == reference.read_bytes()
        assert not any(path.exists() for path in all_partials(layout))
    assert len(blocks) == -(-len(rows) // block_rows)


ROWS = first_come_first_numbered([0, 1, 0, 2, 3, 4, 4, 5, 6])


@pytest.mark.parametrize("shards", [None, 3])
def test_rows_of_texts_that_came_long_before(shards: int | None) -> None:
    """A repeat gets the vector of its text also where the blocks read at once have no new text, from any shard."""
    row_text = first_come_first_numbered([0, 1, 2, 3, *[0, 2] * 4])
    with assembled(row_text, 2, 2) as (ledger, table, right):
        assemble.assemble(ledger, table, lambda: None, Form(shards))
        layout = ledger.layout
        paths = [layout.final] if shards is None else sorted(layout.shards.iterdir())
        np.testing.assert_array_equal(np.concatenate([np.load(path) for path in paths]), right)


@pytest.mark.parametrize("block_rows", [1, 2, 100])
def test_rows_without_a_vector(block_rows: int) -> None:
    """Rows of bad texts are NaN, and named with their text, in whatever block they are; repeats as well."""
    with assembled(ROWS, 2, block_rows, bad=[0, 4], nan=[0, 4]) as (ledger, table, right):
        final = assemble.assemble(ledger, table, lambda: None)
        np.testing.assert_array_equal(np.load(ledger.layout.final), right)
    assert final.bad_rows == [(0, 0), (2, 0), (5, 4), (6, 4)]


@pytest.mark.parametrize(("bad", "nan"), [([], [5]), ([5], []), ([4], [5])])
def test_other_rows_than_the_record_says(bad: list[int], nan: list[int]) -> None:
    """A text without a vector that no record names, or one with a vector that a record names, is damage."""
    with assembled(ROWS, 2, 2, bad=bad, nan=nan) as (ledger, table, _):
        with pytest.raises(ChunkDamagedError, match="other rows without a vector than its record says") as caught:
            assemble.assemble(ledger, table, lambda: None)
        assert caught.value.chunk == 2
        assert not ledger.layout.final.exists()


def test_zero_rows() -> None:
    """Rows that are zero are counted through all blocks."""
    with assembled(ROWS, 2, 2, zero=[0, 6]) as (ledger, table, _):
        assert assemble.assemble(ledger, table, lambda: None).zero_rows == 3


def test_a_final_without_a_manifest() -> None:
    """One of ours, as a kill between its rename and its manifest leaves it, is replaced, and not set aside."""
    with assembled(ROWS, 2, 2) as (ledger, table, right):
        for _ in range(2):
            assemble.assemble(ledger, table, lambda: None)
        final = ledger.layout.final
        np.testing.assert_array_equal(np.load(final), right)
        assert [path.name for path in final.parent.glob(f"{final.name}*")] == [final.name]


def test_a_file_of_somebody_else() -> None:
    """What stands in the place of the final, and is none of ours, is set aside."""
    with assembled(ROWS, 2, 2) as (ledger, table, _):
        final = ledger.layout.final
        final.write_bytes(b"somebody's")
        assemble.assemble(ledger, table, lambda: None)
        assert final.with_name(f"{final.name}.aside").read_bytes() == b"somebody's"


def chunk_path(ledger: Ledger, chunk: int) -> Path:
    """File of a committed chunk."""
    return dict(chunk_files(ledger.layout))[chunk]


def flip(path: Path) -> None:
    """Change the last bit."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def other_shape(path: Path) -> None:
    """A whole array, but not of this output."""
    np.save(path, np.ones((2, DIMENSION + 1), dtype=np.float32))


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        flip,
        other_shape,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"\0"),
        lambda path: path.rename(path.with_name(path.name.replace("-", "-0")[:-5] + ".npy")),
    ],
)
@pytest.mark.parametrize("chunk", [0, 1, 3])
@pytest.mark.parametrize("block_rows", [1, 100])
def test_damaged_chunk(damage: Callable[[Path], None], chunk: int, block_rows: int) -> None:
    """A chunk that is not what was committed is named, and no final file appears."""
    with assembled(ROWS, 2, block_rows) as (ledger, table, _):
        damage(chunk_path(ledger, chunk))
        with pytest.raises(ChunkDamagedError) as caught:
            assemble.assemble(ledger, table, lambda: None)
        assert caught.value.chunk == chunk
        assert not ledger.layout.final.exists()


def test_mended_after_damage() -> None:
    """The remains of an assembly that failed are no hindrance to the next."""
    with assembled(ROWS, 2, 2) as (ledger, table, right):
        path = chunk_path(ledger, 1)
        whole = path.read_bytes()
        flip(path)
        with pytest.raises(ChunkDamagedError):
            assemble.assemble(ledger, table, lambda: None)
        path.write_bytes(whole)
        assemble.assemble(ledger, table, lambda: None)
        np.testing.assert_array_equal(np.load(ledger.layout.final), right)


def test_stopped() -> None:
    """What `on_block` raises ends the assembly, and no final file appears."""

    def stop() -> None:
        raise InterruptedError

    with assembled(ROWS, 2, 2) as (ledger, table, _):
        with pytest.raises(InterruptedError):
            assemble.assemble(ledger, table, stop)
        assert not ledger.layout.final.exists()


def test_failing_disk() -> None:
    """A file that reads back otherwise than it was written is not published."""
    with assembled(ROWS, 2, 2) as (ledger, table, _):
        write = os.write

        def lie(fd: int, data: memoryview) -> int:
            return write(fd, bytes(data[:-1]) + bytes([data[-1] ^ 1]))

        with (
            mock.patch("chunkvisor.assemble.checkedfile.os.write", lie),
            pytest.raises(OSError, match="does not hold what was written to it") as caught,
        ):
            assemble.assemble(ledger, table, lambda: None)
        assert caught.value.errno == errno.EIO  # a fault of the disk, as the run's exit code is to say
        assert not ledger.layout.final.exists()
