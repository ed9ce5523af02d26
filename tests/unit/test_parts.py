"""What is known on disk of a chunk that is being taken apart."""

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import chunkvisor.store.ledger
from chunkvisor.store.artifact import inspect
from chunkvisor.store.identity import BadText
from chunkvisor.store.layout import Layout
from chunkvisor.store.ledger import Parts
from chunkvisor_worker.contract.exits import Outcome


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workdir in which texts 10 and 11 of the chunk 10..14 have vectors, and text 13 is bad."""
    parts = parts_in(tmp_path)
    vectors = tmp_path / "vectors.npy"
    np.save(vectors, np.ones((2, 8), dtype=np.float32))
    parts.add(10, 12, vectors, inspect(vectors).digest)
    parts.add_bad(BadText(13, Outcome.CRASHED, "why"))
    return tmp_path


def parts_in(folder: Path, fingerprint: str = "f") -> Parts:
    """Of chunk 2, as a new process reads them."""
    layout = Layout(folder).output("out")
    layout.state.mkdir(parents=True, exist_ok=True)
    return Parts(layout, 2, 10, 14, fingerprint)


def test_read_back(folder: Path) -> None:
    """A new process knows what the old one knew."""
    parts = parts_in(folder)

    assert parts.missing() == [(12, 13)]
    assert [bad.text for bad in parts.bad] == [13]


def test_killed_while_a_part_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the index names it, the file stays where it is: `retry` makes parts of committed chunks."""
    vectors = tmp_path / "vectors.npy"
    np.save(vectors, np.ones((2, 8), dtype=np.float32))
    monkeypatch.setattr(chunkvisor.store.ledger, "write_record", killed)

    with pytest.raises(KeyboardInterrupt):
        parts_in(tmp_path).add(10, 12, vectors, inspect(vectors).digest)

    assert vectors.exists()
    assert parts_in(tmp_path).missing() == [(10, 14)]


def test_a_verdict_that_was_not_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is missing still: its chunk is not put together as if all of it were known."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "ENOSPC")

    parts = parts_in(folder)
    with monkeypatch.context() as patch:
        patch.setattr(chunkvisor.store.ledger, "write_record", full)
        with pytest.raises(OSError, match="ENOSPC"):
            parts.add_bad(BadText(12, Outcome.CRASHED, "why"))

    assert parts.missing() == [(12, 13)]
    parts.add_bad(BadText(12, Outcome.CRASHED, "why"))
    assert [bad.text for bad in parts_in(folder).bad] == [13, 12]


def test_a_part_that_did_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the index names and is not there is missing."""
    vectors = tmp_path / "vectors.npy"
    np.save(vectors, np.ones((2, 8), dtype=np.float32))
    monkeypatch.setattr(Path, "replace", on_a_failing_disk(vectors))

    parts = parts_in(tmp_path)
    with pytest.raises(OSError, match="EIO"):
        parts.add(10, 12, vectors, inspect(vectors).digest)

    assert vectors.exists()
    assert parts.missing() == parts_in(tmp_path).missing() == [(10, 14)]


@pytest.mark.parametrize(
    ("taken", "bad", "missing", "composed"),
    [
        ([], [], [(10, 14)], None),
        ([(10, 14, ())], [], [], [1, 1, 1, 1]),
        ([(10, 14, (11, 13))], [], [(11, 12), (13, 14)], None),
        ([(10, 14, (11, 13))], [11], [(13, 14)], None),
        ([(10, 14, (11, 13)), (12, 14, ())], [11], [], [1, 0, 2, 2]),
        ([(12, 14, ())], [10, 13], [(11, 12)], None),
        ([(10, 14, ())], [10, 13], [], [0, 1, 1, 0]),
    ],
    ids=["nothing", "whole", "holes", "a hole is bad", "the later part goes first", "one is left", "bad goes first"],
)
def test_what_is_left_and_what_is_joined(
    tmp_path: Path,
    taken: list[tuple[int, int, tuple[int, ...]]],
    bad: list[int],
    missing: list[tuple[int, int]],
    composed: list[int] | None,
) -> None:
    """Say what has neither a vector nor a verdict; once that is nothing, join vectors of each part, 0 being NaN."""
    parts, vectors = parts_in(tmp_path), tmp_path / "vectors.npy"
    for number, (start, stop, holes) in enumerate(taken, 1):
        np.save(vectors, np.full((stop - start, 2), number, dtype=np.float32))
        parts.add(start, stop, vectors, inspect(vectors).digest, holes)
    for text in bad:
        parts.add_bad(BadText(text, Outcome.CRASHED, "why"))
    assert parts.missing() == missing
    if composed is not None:
        path, _ = parts.compose(2)
        assert np.nan_to_num(np.load(path))[:, 0].tolist() == composed


def killed(*_: object) -> None:
    """In place of a function at which the process ends."""
    raise KeyboardInterrupt


def on_a_failing_disk(path: Path) -> Callable[[Path, Path], Path]:
    """In place of `Path.replace`: this file cannot be renamed."""
    replace = Path.replace

    def fail(self: Path, target: Path) -> Path:
        if self == path:
            raise OSError(errno.EIO, "EIO")
        return replace(self, target)

    return fail


def test_of_another_identity(folder: Path) -> None:
    """Parts that were made with other settings are as if they had never been."""
    parts = parts_in(folder, "another")

    assert parts.missing() == [(10, 14)]


def test_a_part_that_is_gone(folder: Path) -> None:
    """Texts whose file is gone are missing; what else is known stays known."""
    for path in folder.rglob("10-12-*.npy"):
        path.unlink()

    assert parts_in(folder).missing() == [(10, 13)]
