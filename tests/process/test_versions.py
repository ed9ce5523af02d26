"""Vectors of different library versions: told, listed in the manifest with their share of rows, or refused."""

from pathlib import Path

import pytest

from chunkvisor.assemble.versionshare import share_of_rows
from chunkvisor.ingest.table import StagedTable
from chunkvisor.store.outputlayout import OutputLayout
from chunkvisor.store.versions import Stretch, VersionNotes, differences, read_stretches
from harness import expected
from scripted_workplace import ScriptedWorkplace

TEXTS = ["t0", "t1", "t2", "t0", "t0", "t3", "t4", "t5"]
"""Three chunks of two; the first text stands in three rows."""
OLD, NEW = {"torch": "2.13.0", "numpy": "2.4"}, {"torch": "2.14.1", "numpy": "2.5"}


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (OLD, OLD, []),
        (OLD, {**OLD, "numpy": "3", "python": "3.13"}, []),
        (OLD, NEW, ["torch 2.13.0 before, 2.14.1 now"]),
        ({}, {"transformers": "5"}, ["transformers absent before, 5 now"]),
    ],
)
def test_differences(before: dict[str, str], now: dict[str, str], words: list[str]) -> None:
    """Libraries that compute vectors count, others do not."""
    assert differences(before, now) == words


def test_notes(tmp_path: Path) -> None:
    """Neighbouring texts are noted as one stretch, one that is computed again by the first versions goes."""
    layout = OutputLayout(tmp_path, "out")
    layout.state.mkdir(parents=True)
    notes = VersionNotes(layout)
    notes.note(0, 10, OLD, OLD)
    assert not layout.versions.exists()
    notes.note(20, 30, OLD, NEW)
    notes.note(10, 20, OLD, NEW)
    assert read_stretches(layout) == [Stretch(10, 30, NEW)]
    VersionNotes(layout).note(15, 20, OLD, OLD)
    assert read_stretches(layout) == [Stretch(10, 15, NEW), Stretch(20, 30, NEW)]
    layout.versions.write_text("damaged")
    assert read_stretches(layout) == []


@pytest.fixture
def begun(tmp_path: Path) -> ScriptedWorkplace:
    """An output of which the first two chunks were computed under the old torch."""
    place = ScriptedWorkplace.make(tmp_path / "place", TEXTS)
    configure(place, "2.13.0")
    place.lay("t4", "damage!")
    assert place.run_here().returncode == 75
    place.lift("t4")
    return place


def configure(place: ScriptedWorkplace, torch: str, **changes: object) -> None:
    """The config, with this version of torch."""
    changes |= {"env.FAKE_TORCH": torch, "chunk.size": 2, "recovery.attempts": 1}
    place.write_config("versioned:make", **{"outputs.out.source": str(place.source), **changes})


def test_other_versions_are_told(begun: ScriptedWorkplace) -> None:
    """A resume under another torch completes; the run says so once, and the manifest has both with their rows."""
    configure(begun, "2.14.1")
    ended = begun.run_here()
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("torch 2.13.0 before, 2.14.1 now") == 1
    assert begun.vectors().tobytes() == expected(TEXTS).tobytes()
    manifest = begun.manifest()
    shares = [(each["rows"], each["versions"]["torch"]) for each in manifest["versions_by_rows"]]
    assert shares == [(6, "2.13.0"), (2, "2.14.1")]
    assert manifest["versions"]["torch"] == "2.13.0"
    again = begun.run_here()
    assert again.returncode == 0


def test_the_same_versions_need_no_words(begun: ScriptedWorkplace) -> None:
    """Under the same torch nothing is told, and the manifest has one set."""
    ended = begun.run_here()
    assert ended.returncode == 0, ended.stderr
    assert "other versions" not in ended.stderr
    assert "versions_by_rows" not in begun.manifest()


def test_strict_refuses_other_versions(begun: ScriptedWorkplace) -> None:
    """With `identity: strict` the run ends with 78 and both versions, and nothing of the new one is committed."""
    configure(begun, "2.14.1", identity="strict")
    ended = begun.run_here()
    assert ended.returncode == 78, ended.stderr
    assert "torch 2.13.0 before, 2.14.1 now" in ended.stderr
    configure(begun, "2.13.0", identity="strict")
    ended = begun.run_here()
    assert ended.returncode == 0, ended.stderr
    assert "versions_by_rows" not in begun.manifest()


def test_share_of_rows() -> None:
    """Rows are counted by the versions of their texts, whatever their number."""

    class Table:
        rows, distinct = 5, 3
        row_blocks = StagedTable.row_blocks

        def row_text(self, start: int, stop: int) -> object:
            import numpy as np

            return np.array([0, 1, 1, 2, 1])[start:stop]

    assert share_of_rows([Stretch(1, 2, NEW)], OLD, Table()) == [(2, OLD), (3, NEW)]  # type: ignore[arg-type]  # all it asks
