"""What a new process makes of the folder of an output: chunks, bad texts and attempts."""

from pathlib import Path

import numpy as np
import pytest

from chunkvisor.store.artifact import inspect
from chunkvisor.store.identity import BadText, Plan
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.store.ledger import Ledger, write_quarantine
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Facts

DIMENSION = 3


@pytest.fixture
def layout(tmp_path: Path) -> OutputLayout:
    """An output of five texts in chunks of two, all committed; text 3 is bad."""
    layout = Layout(tmp_path).output("out")
    layout.state.mkdir(parents=True)
    ledger = loaded(layout)
    for chunk in range(3):
        start, stop = ledger.plan.bounds(chunk)
        np.save(tmp_path / "part.npy", np.ones((stop - start, DIMENSION), dtype=np.float32))
        if chunk == 1:
            ledger.parts(1).add_bad(BadText(3, Outcome.CRASHED, "why"))
        ledger.commit(chunk, tmp_path / "part.npy", inspect(tmp_path / "part.npy").digest, Facts(DIMENSION))
    return layout


def loaded(layout: OutputLayout) -> Ledger:
    """As a new process reads it."""
    ledger = Ledger(layout, Plan(5, 2), "f")
    ledger.load()
    return ledger


def committed(ledger: Ledger) -> list[int]:
    """The chunks that are done; the counts say the same."""
    found = [chunk for chunk in range(ledger.plan.count) if ledger.committed(chunk)]
    assert (ledger.chunks_done, ledger.left) == (len(found), ledger.plan.count - len(found))
    assert ledger.texts_done == sum(ledger.plan.size(chunk) for chunk in found)
    return found


def test_read_back(layout: OutputLayout) -> None:
    """A new process knows what the old one knew."""
    ledger = loaded(layout)

    assert committed(ledger) == [0, 1, 2]
    assert not ledger.left
    assert list(ledger.bad) == [3]
    assert ledger.facts == Facts(DIMENSION)


@pytest.mark.parametrize("change_bytes", [-1, 4 * DIMENSION])
def test_size(layout: OutputLayout, change_bytes: int) -> None:
    """A chunk file that is shorter or longer than its rows is removed, and computed again."""
    path = dict(loaded(layout).chunk_files())[2]
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + change_bytes)

    assert committed(loaded(layout)) == [0, 1]
    assert not path.exists()


def test_lost_facts(layout: OutputLayout) -> None:
    """Without the facts one chunk is computed again, which brings them back; the others stay."""
    layout.facts.unlink()

    assert committed(loaded(layout)) == [0, 1]


@pytest.mark.parametrize("text", [1, 4])
def test_bad_texts_of_another_chunk(layout: OutputLayout, text: int) -> None:
    """A record of bad texts that are not of its chunk is worth nothing: the chunk is computed again."""
    write_quarantine(layout, 1, [BadText(3, Outcome.CRASHED, "why"), BadText(text, Outcome.CRASHED, "why")])
    ledger = loaded(layout)

    assert committed(ledger) == [0, 2]
    assert ledger.bad == {}
    assert not layout.quarantine_of(1).exists()


@pytest.mark.parametrize(("chunk", "bad"), [(0, [3]), (1, []), (2, [3])])
def test_discard(layout: OutputLayout, chunk: int, bad: list[int]) -> None:
    """What is discarded is pending again, and its bad texts are forgotten; those of others are not."""
    ledger = loaded(layout)
    ledger.discard(chunk)

    assert committed(ledger) == [each for each in range(3) if each != chunk]
    assert list(ledger.bad) == bad
    assert committed(loaded(layout)) == committed(ledger)


@pytest.mark.parametrize(("there", "number"), [([], 1), (["1", "2"], 3), (["2", "9", "10"], 11), (["1", "notes"], 2)])
def test_number_of_an_attempt(layout: OutputLayout, there: list[str], number: int) -> None:
    """A new attempt has the number after the highest, whatever has been cleared away, and a folder of its own."""
    for name in there:
        (layout.attempts_of(0) / name).mkdir(parents=True)
    given, files = loaded(layout).new_attempt(0)

    assert given == number
    assert files.folder.is_dir()
    assert files.folder.name not in there
