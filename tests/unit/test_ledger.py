"""What a new process makes of the folder of an output: chunks, parts of chunks, bad texts and
attempts.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

from chunkvisor.outputs.join import chunk_blocks
from chunkvisor.store.artifact import chunk_key, inspect
from chunkvisor.store.chunkfiles import ChunkFiles
from chunkvisor.store.identity import BadText, Plan
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.store.ledger import Ledger, Parts
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Facts

DIMENSION = 3
BAD = BadText(3, Outcome.CRASHED, "why")


@pytest.fixture
def layout(tmp_path: Path) -> OutputLayout:
    """An output of five texts in chunks of two, all committed; text 3 is bad."""
    layout, ledger = begun(tmp_path)
    for chunk in range(3):
        path = vectors(tmp_path, ledger.plan.size(chunk))
        if chunk == 1:
            ledger.parts(1).add_bad(BAD)
        ledger.commit(chunk, path, inspect(path).digest, Facts(DIMENSION))
    return layout


def begun(folder: Path) -> tuple[OutputLayout, Ledger]:
    """An output of which nothing is done."""
    layout = Layout(folder).output("out")
    layout.state.mkdir(parents=True)
    return layout, loaded(layout)


def vectors(folder: Path, count: int, value: float = 1) -> Path:
    """A file of so many vectors."""
    np.save(folder / "vectors.npy", np.full((count, DIMENSION), value, dtype=np.float32))
    return folder / "vectors.npy"


def loaded(layout: OutputLayout) -> Ledger:
    """As a new process reads it."""
    ledger = Ledger(layout, Plan(5, 2), "f")
    ledger.load()
    return ledger


def committed(ledger: Ledger) -> list[int]:
    """The chunks that are done; the counts say the same."""
    found = [chunk for chunk in range(ledger.plan.count) if ledger.committed(chunk)]
    assert (ledger.chunks_done, ledger.chunks_left) == (len(found), ledger.plan.count - len(found))
    assert ledger.texts_done == sum(ledger.plan.size(chunk) for chunk in found)
    return found


def test_read_back(layout: OutputLayout) -> None:
    """A new process knows what the old one knew; without the facts one chunk is computed again,
    which brings them.
    """
    ledger = loaded(layout)
    assert committed(ledger) == [0, 1, 2]
    assert ledger.bad == {3: BAD}
    assert ledger.facts == Facts(DIMENSION)
    layout.facts.unlink()
    assert len(committed(loaded(layout))) == 2


@pytest.mark.parametrize(
    ("first", "second"), [("whole", "damaged"), ("damaged", "whole"), ("whole", "whole")]
)
def test_two_files_of_one_chunk(layout: OutputLayout, first: str, second: str) -> None:
    """Of a chunk that has two files, as after a restored copy, one that is whole counts, and the
    other goes.
    """
    (one,) = layout.chunks.glob("*/000000-*.npy")
    vectors(layout.home, 2, 2).replace(layout.chunk(0, "f" * 32))
    files = [one, layout.chunk(0, "f" * 32)]
    key = chunk_key("f", 0, 2, inspect(files[1]).digest)
    files[1] = files[1].rename(layout.chunk(0, key))
    files.sort()
    for path, state in zip(files, (first, second), strict=True):
        if state == "damaged":
            path.write_bytes(path.read_bytes()[:-1] + b"x")
    ledger = loaded(layout)
    assert committed(ledger) == [0, 1, 2]
    assert [*layout.chunks.glob("*/000000-*.npy")] == [files[first == "damaged"]]
    assert sum(len(block) for block in chunk_blocks(ledger)) == 5


def test_two_damaged_files_of_one_chunk(layout: OutputLayout) -> None:
    """If no file of a chunk is whole, all go, and it is pending again."""
    (one,) = layout.chunks.glob("*/000000-*.npy")
    one.write_bytes(b"x")
    shutil.copy(one, layout.chunk(0, "f" * 32))
    assert committed(loaded(layout)) == [1, 2]
    assert not [*layout.chunks.glob("*/000000-*.npy")]


def test_facts_come_from_a_chunk_with_vectors(tmp_path: Path) -> None:
    """Lost facts are not looked for in a chunk all of whose texts are bad: no worker would compute
    it.
    """
    layout, ledger = begun(tmp_path)
    for text in (2, 3):
        ledger.parts(1).add_bad(BadText(text, Outcome.CRASHED, "why"))
    for chunk in range(2):
        path = vectors(tmp_path, 2)
        ledger.commit(chunk, path, inspect(path).digest, Facts(DIMENSION))
    layout.facts.unlink()
    assert committed(loaded(layout)) == [1]


@pytest.mark.parametrize("good", [[], [4]])
def test_refused_texts_are_forgiven(tmp_path: Path, good: list[int]) -> None:
    """Bad texts are pending again exactly if no text at all has a vector."""
    layout, ledger = begun(tmp_path)
    ledger.parts(1).add_bad(BAD)
    if good:
        ledger.parts(2).add_vectors(4, vectors(tmp_path, 1), good)
        ledger.fix_facts(Facts(DIMENSION))
    again = loaded(layout)
    again.forgive_if_none_is_good()
    assert again.bad_count == len(good)
    assert loaded(layout).bad_count == len(good)


def test_damaged_record_of_bad_texts(layout: OutputLayout) -> None:
    """It counts as none: whoever joins the chunk finds rows without a vector, and has it computed
    again.
    """
    (record,) = layout.parts.glob("*/index.json")
    record.write_bytes(b"{}")
    ledger = loaded(layout)
    assert committed(ledger) == [0, 1, 2]
    assert ledger.bad == {}


@pytest.mark.parametrize(("chunk", "bad"), [(0, [3]), (1, [])])
def test_discard(layout: OutputLayout, chunk: int, bad: list[int]) -> None:
    """What is discarded is pending again, but for its bad texts."""
    ledger = loaded(layout)
    ledger.discard(chunk)
    assert committed(ledger) == [each for each in range(3) if each != chunk]
    assert list(ledger.bad) == bad
    assert committed(loaded(layout)) == committed(ledger)
    assert ledger.parts(1).bad == (BAD,)


# --- parts: texts 10 to 13 are chunk 2


def parts_in(folder: Path, fingerprint: str = "f") -> Parts:
    """As a new process reads them."""
    layout = Layout(folder).output("out")
    layout.state.mkdir(parents=True, exist_ok=True)
    return Parts(ChunkFiles(layout, Plan(14, 5), fingerprint), 2)


@pytest.mark.parametrize(
    ("taken", "bad", "missing", "composed"),
    [
        ([], [], [10, 11, 12, 13], None),
        ([[10, 12]], [11], [13], None),
        ([[12, 13], [10, 11]], [], [], [2, 2, 1, 1]),
        ([[10, 12], [12, 13]], [11], [], [1, 0, 1, 2]),
        ([[10, 12], [10, 12], [13]], [11], [], [1, 0, 1, 3]),
    ],
)
def test_what_is_left_and_what_is_joined(
    tmp_path: Path,
    taken: list[list[int]],
    bad: list[int],
    missing: list[int],
    composed: list[int] | None,
) -> None:
    """Say what has neither a vector nor a verdict; once that is nothing, join the vectors, 0 being
    NaN here.
    """
    for number, texts in enumerate(taken, 1):
        parts_in(tmp_path).add_vectors(10, vectors(tmp_path, 4, number), texts)
    for text in bad:
        parts_in(tmp_path).add_bad(BadText(text, Outcome.CRASHED, "why"))
    parts = parts_in(tmp_path)
    assert parts.pending_texts() == missing
    assert [each.text for each in parts.bad] == bad
    assert parts.good_texts() == sorted(set(range(10, 14)) - {*missing, *bad})
    assert not parts.forget_damaged(DIMENSION)
    assert parts_in(tmp_path, "other settings").pending_texts() == [10, 11, 12, 13]
    if composed is not None:
        path, _ = parts._files.merge_parts(2, DIMENSION, parts.good_texts())
        assert np.nan_to_num(np.load(path))[:, 0].tolist() == composed


@pytest.mark.parametrize("damage", ["flip", "remove"])
def test_damaged_parts(tmp_path: Path, damage: str) -> None:
    """Vectors that are not what was taken over are missing again; what else is known stays known."""
    parts_in(tmp_path).add_vectors(10, vectors(tmp_path, 4), [10, 11])
    parts_in(tmp_path).add_bad(BadText(12, Outcome.CRASHED, "why"))
    parts_in(tmp_path).add_bad(BadText(13, Outcome.CRASHED, "why"))
    (path,) = tmp_path.rglob("parts/*/*.npy")
    data = path.read_bytes()
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(data[:128] + b"\1" + data[129:])
        assert parts_in(tmp_path).forget_damaged(DIMENSION)
    assert parts_in(tmp_path).pending_texts() == [10, 11]


def test_a_forgotten_vector_is_not_joined(tmp_path: Path) -> None:
    """A text whose vector was damaged, and that then failed alone, has NaN and not what was left in
    its row.
    """
    parts = parts_in(tmp_path)
    parts.add_vectors(10, vectors(tmp_path, 4), [10, 11])
    parts.forget_vectors()
    parts.add_vectors(10, vectors(tmp_path, 4), [11, 12, 13])
    parts.add_bad(BadText(10, Outcome.CRASHED, "why"))
    path, _ = parts._files.merge_parts(2, DIMENSION, parts.good_texts())
    assert np.isnan(np.load(path)).all(axis=1).tolist() == [True, False, False, False]
