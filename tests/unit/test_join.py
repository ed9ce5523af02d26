"""Assembly against the truth that numpy's indexing gives, whatever repeats where and however small
the blocks are.
"""

import contextlib
import errno
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkvisor.config.choices import FinalFormat
from chunkvisor.outputs import forms as formats
from chunkvisor.outputs import join
from chunkvisor.outputs import publish as publishing
from chunkvisor.outputs.finish import quarantined
from chunkvisor.outputs.forms import Form, HashedFile, file_of, form_of
from chunkvisor.outputs.join import ChunkDamagedError, Final
from chunkvisor.outputs.publish import describe_file, publish
from chunkvisor.outputs.state import final_record_of
from chunkvisor.sources.table import StagedTable
from chunkvisor.store import artifact
from chunkvisor.store.artifact import inspect, npy_header
from chunkvisor.store.chunkfiles import chunk_files
from chunkvisor.store.identity import BadText, Plan
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.store.ledger import Ledger
from chunkvisor.store.records import digest_file
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Facts
from soaked import soaked
from staged import first_come_first_numbered, make_table

DIMENSION = 3


def make_ledger(
    workdir: Path, vectors: np.ndarray, chunk_size: int, bad: Sequence[int] = ()
) -> Ledger:
    """All vectors committed, in chunks of the size; the records name the bad texts."""
    layout = Layout(workdir).output("out").at_generation(1)
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

    `bad` are the texts without a vector by the records, `nan` those that really have none, `zero`
    those of zeros.
    """
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((int(row_text.max()) + 1, DIMENSION), dtype=np.float32)
    vectors[list(nan)], vectors[list(zero)] = np.nan, 0
    block_bytes = block_rows * DIMENSION * 4
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(join, "BLOCK_BYTES", block_bytes),
        mock.patch.object(artifact, "BLOCK_BYTES", max(1, block_bytes // 2)),
        mock.patch("os.fsync"),  # the bytes are what counts here
    ):
        workdir = Path(folder)
        ledger = make_ledger(workdir, vectors, chunk_size, bad)
        yield ledger, make_table(workdir / "table", row_text), vectors[row_text]


def publish_joined(
    ledger: Ledger,
    table: StagedTable,
    form: Form | None = None,
    on_wait: Callable[[], None] = lambda: None,
) -> tuple[Final, dict[str, Any]]:
    """Join, and publish with a manifest; both."""
    form = form or Form()
    inputs = join.JoinInputs(ledger, table)
    final = join.assemble(inputs, form, on_wait)
    described = describe_file(ledger.layout, form, final.digest)
    made = {"rows": table.rows, "dimension": DIMENSION, "fingerprint": "f"}
    made |= publishing.list_quarantined(ledger.layout, quarantined(inputs, on_wait))
    made |= {"zero_rows": final.zero_rows, **described}
    publish(ledger.layout, made)
    return final, made


def finished(layout: OutputLayout) -> dict[str, Any]:
    """The manifest of the final file that stands."""
    record = final_record_of(layout)
    assert record is not None
    assert record.holds(layout)
    return record.manifest


@pytest.mark.soak
@given(
    rows=st.lists(st.integers(0, 12), min_size=1, max_size=40),
    chunk_size=st.integers(1, 9),
    block_rows=st.integers(1, 7),
)
@soaked(300)
def test_any_repetition(rows: list[int], chunk_size: int, block_rows: int) -> None:
    """Row i has the vector of its text, for repeats within and across blocks and chunks, and
    without any.
    """
    row_text = first_come_first_numbered(rows)
    blocks: list[None] = []
    with assembled(row_text, chunk_size, block_rows) as (ledger, table, right):
        final, _ = publish_joined(ledger, table, on_wait=lambda: blocks.append(None))
        layout = ledger.layout
        assert (final.dimension, final.zero_rows) == (DIMENSION, 0)
        assert final.digest == digest_file(layout.final)
        reference = layout.workdir / "reference.npy"
        np.save(reference, right)
        assert layout.final.read_bytes() == reference.read_bytes()
        assert not list(layout.hidden.glob("out.*"))
    assert len(blocks) == -(-len(rows) // block_rows)


ROWS = first_come_first_numbered([0, 1, 0, 2, 3, 4, 4, 5, 6])


@pytest.mark.parametrize("block_rows", [1, 2, 100])
def test_rows_without_a_vector(block_rows: int) -> None:
    """Rows of bad texts are NaN, and named with their text, in whatever block they are; zero rows
    are counted.
    """
    with assembled(ROWS, 2, block_rows, bad=[0, 4], nan=[0, 4], zero=[1, 6]) as (
        ledger,
        table,
        right,
    ):
        final, made = publish_joined(ledger, table)
        np.testing.assert_array_equal(np.load(ledger.layout.final), right)
    assert [each["row"] for each in made["quarantined"]] == [0, 2, 5, 6]
    assert final.zero_rows == 2


@pytest.mark.parametrize(("bad", "nan"), [([], [5]), ([5], []), ([4], [5])])
def test_other_rows_than_the_record_says(bad: list[int], nan: list[int]) -> None:
    """A text without a vector that no record names, or one with a vector that a record names, is
    damage.
    """
    with assembled(ROWS, 2, 2, bad=bad, nan=nan) as (ledger, table, _):
        with pytest.raises(
            ChunkDamagedError, match="other rows without a vector than its record says"
        ) as caught:
            publish_joined(ledger, table)
        assert caught.value.chunk == 2
        assert not ledger.layout.final.exists()


@pytest.mark.parametrize("forms", ["npy npy", "npy parquet", "parquet npy"])
@pytest.mark.parametrize("killed", ["_put_in_place", "sync", "_write_records"])
def test_killed_while_publishing(forms: str, killed: str) -> None:
    """What was announced and is whole is completed by the next run; of what it replaces nothing is
    left.
    """
    with assembled(ROWS, 2, 2) as (ledger, table, right):
        layout = ledger.layout
        before, after = (Form(FinalFormat(name)) for name in forms.split())
        publish_joined(ledger, table, before)
        with (
            contextlib.suppress(InterruptedError),
            mock.patch.object(publishing, killed, side_effect=InterruptedError),
        ):
            publish_joined(ledger, table, after)
        publishing.complete_publication(layout)
        found = finished(layout)
        assert form_of(found) == after
        stored = list(join.final_rows(layout, found))
        np.testing.assert_array_equal(np.concatenate(stored), right)
        names = {path.name for path in layout.workdir.glob("out*")}
        assert names == {"out.json", file_of(layout, found).name}
        assert not list(layout.hidden.glob("out.*"))
        assert not layout.publishing.exists()


def array(rows: int, dimension: int) -> bytes:
    """A whole array, of ones."""
    return npy_header(rows, dimension) + np.ones((rows, dimension), dtype="<f4").tobytes()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda _: array(2, DIMENSION + 1),
        lambda _: b"",
        lambda data: data[:-1],
        lambda data: data + b"\0",
        None,
    ],
    ids=["flipped", "shape", "empty", "shorter", "longer", "gone"],
)
@pytest.mark.parametrize(("chunk", "block_rows"), [(0, 1), (1, 100), (3, 1), (3, 100)])
def test_damaged_chunk(
    damage: Callable[[bytes], bytes] | None, chunk: int, block_rows: int
) -> None:
    """A chunk that is not what was committed is named, no final appears, and nothing is left in the
    way of the next.
    """
    with assembled(ROWS, 2, block_rows) as (ledger, table, right):
        path = dict(chunk_files(ledger.layout))[chunk]
        whole = path.read_bytes()
        path.unlink()
        if damage is not None:
            path.write_bytes(damage(whole))
        with pytest.raises(ChunkDamagedError) as caught:
            publish_joined(ledger, table)
        assert caught.value.chunk == chunk
        assert not ledger.layout.final.exists()
        assert not list(ledger.layout.hidden.glob("out.*"))
        path.write_bytes(whole)
        publish_joined(ledger, table)
        np.testing.assert_array_equal(np.load(ledger.layout.final), right)


def test_stopped() -> None:
    """What `on_wait` raises ends the assembly, and neither a final file nor a thread is left."""

    def stop() -> None:
        raise InterruptedError

    before = threading.active_count()
    with assembled(ROWS, 2, 2) as (ledger, table, _):
        with pytest.raises(InterruptedError):
            publish_joined(ledger, table, on_wait=stop)
        assert not ledger.layout.final.exists()
        assert not list(ledger.layout.hidden.glob("out.*"))
    assert threading.active_count() == before


def test_the_thread_that_reads_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a write that failed, also while the error is kept: ended by a garbage collection it
    could hang.
    """
    write = mock.Mock(side_effect=[None, OSError(errno.ENOSPC, "full")])  # after the header
    monkeypatch.setattr(HashedFile, "write", write)
    before = threading.active_count()
    with assembled(ROWS, 2, 2) as (ledger, table, _):
        with pytest.raises(OSError, match="full") as kept:
            publish_joined(ledger, table)
        assert kept.tb
        assert threading.active_count() == before


# A file that is hashed and synced while it grows

BLOCKS = [b"header", b"", b"a" * 5000, b"b" * 70_000, b"c"]


def write_all(path: Path) -> str:
    """Write the blocks; the digest."""
    with HashedFile(path) as file:
        for block in BLOCKS:
            file.write(block)
        return file.finish_sync()


@pytest.mark.parametrize("sync_bytes", [1, 1 << 20])
def test_a_file_is_hashed_and_synced(
    tmp_path: Path, sync_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes are there in their order, the digest is their sha256, and an error of any sync is
    not lost.
    """
    monkeypatch.setattr(formats, "_SYNC_BYTES", sync_bytes)
    assert write_all(tmp_path / "file") == hashlib.sha256(b"".join(BLOCKS)).hexdigest()
    assert (tmp_path / "file").read_bytes() == b"".join(BLOCKS)
    failed: list[int] = []

    def fail_once(fd: int) -> None:
        if not failed:
            failed.append(fd)
            raise OSError(errno.EIO, "Input/output error")

    before = len([*Path("/proc/self/fd").iterdir()]), threading.active_count()
    monkeypatch.setattr(os, "fsync", fail_once)
    with pytest.raises(OSError, match="Input/output error"):
        write_all(tmp_path / "file")
    assert (len([*Path("/proc/self/fd").iterdir()]), threading.active_count()) == before


def test_no_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the space cannot be reserved, that is the error, and what could be reserved is free again."""

    def half(fd: int, offset: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", half)
    with assembled(ROWS, 2, 2) as (ledger, table, _):
        with pytest.raises(OSError, match="No space"):
            publish_joined(ledger, table)
        assert not list(ledger.layout.hidden.glob("out.*"))
