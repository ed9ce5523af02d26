"""What would give other vectors is refused with words for the old and the new; what would not, is
not.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import expected
from scripted_workplace import ScriptedWorkplace

TEXTS = ["t0", "t1", "t0", "t2"]
OUT = {"source": "rows.jsonl", "column": "text"}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> ScriptedWorkplace:
    """A workdir that a first run has left behind with a chunk given up."""
    folder = tmp_path_factory.mktemp("begun") / "place"
    place = ScriptedWorkplace.make(folder, TEXTS, chunk__size=2, recovery__attempts=1)
    place.lay("t2", "damage!")
    assert place.run_here().returncode == 75
    place.lift("t2")
    return place


@pytest.fixture
def place(begun: ScriptedWorkplace, tmp_path: Path) -> ScriptedWorkplace:
    """A copy of it."""
    return begun.copy(tmp_path / "place")


def configure(place: ScriptedWorkplace, **changes: Any) -> None:
    """The first run's config, with changes."""
    place.write_config("scripted:make", **{"chunk__size": 2, "recovery__attempts": 1, **changes})


def snapshot(place: ScriptedWorkplace) -> dict[str, bytes]:
    """All files of the workdir but the lock, and what tells the story of each run."""
    told = {"lock", "events.jsonl", "report.html", "runs"}
    files = (path for path in place.workdir.rglob("*") if path.is_file())
    paths = {path.relative_to(place.workdir): path for path in files}
    return {
        str(name): path.read_bytes() for name, path in paths.items() if told.isdisjoint(name.parts)
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__name": "other"}, ['model.name: "test" before, "other" now']),
        (
            {"outputs": {"out": {**OUT, "encode": {"normalize": True}}}},
            ["encode.normalize: false before, true now"],
        ),
        (
            {"outputs": {"out": {"source": "rows.jsonl", "template": "x {text}"}}},
            ['column: "text" before, not set now', 'template: not set before, "x {text}" now'],
        ),
    ],
    ids=str,
)
def test_changed_config(
    place: ScriptedWorkplace, changes: dict[str, Any], words: list[str]
) -> None:
    """A key that shapes the vectors is named with its old and its new value, and nothing is
    touched.
    """
    before = snapshot(place)
    configure(place, **changes)
    ended = place.run_here()
    assert ended.returncode == 78, ended.stderr
    for each in words:
        assert each in ended.stderr
    assert "--from-scratch" in ended.stderr
    assert snapshot(place) == before


def test_changed_source(place: ScriptedWorkplace) -> None:
    """Other texts are refused; the staged table of the first run stays."""
    before = snapshot(place)
    place.write_source(["t0", "t1", "t0", "tX"])
    ended = place.run_here()
    assert ended.returncode == 78, ended.stderr
    assert "source: same number of rows, other content" in ended.stderr
    assert snapshot(place) == before


def test_a_trial_is_in_no_ones_way(place: ScriptedWorkplace) -> None:
    """`--max-rows` works in a workdir of its own; the run's own is as it was, and goes on."""
    before = snapshot(place)
    assert place.run_here("--max-rows", "3").returncode == 0
    assert snapshot(place) == before
    trial = place.workdir.with_name(f"{place.workdir.name}-first-3")
    assert np.load(trial / "out.npy").tobytes() == expected(TEXTS[:3]).tobytes()
    assert place.run_here().returncode == 0


def test_same_content(place: ScriptedWorkplace) -> None:
    """The same texts in the same order go on, whatever became of the files that hold them."""
    done_before = [text for call in place.calls() for text in call]
    (place.folder / "rows.csv").write_text("\n".join(["text", *TEXTS]) + "\n")
    place.source.unlink()
    configure(place, outputs={"out": {"source": "rows.csv", "column": "text"}})
    ended = place.run_here()
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS))
    done = [text for call in place.calls() for text in call]
    assert set(done[len(done_before) :]) <= {"t2"}


# --- from scratch: nothing is taken away before the new run can work, and nothing finished before it is replaced


@pytest.fixture
def finished(place: ScriptedWorkplace) -> ScriptedWorkplace:
    """A finished output."""
    assert place.run_here().returncode == 0
    return place


@pytest.mark.parametrize(
    "outputs",
    [{"out": {**OUT, "column": "txet"}}, {"out": OUT, "second": OUT}],
    ids=["typo", "taken"],
)
def test_a_beginning_that_comes_to_nothing(
    finished: ScriptedWorkplace, outputs: dict[str, Any]
) -> None:
    """A column that is not there, or an output whose name is taken, ends the run with 78; every
    file is as it was.
    """
    (finished.workdir / "second.npy").write_bytes(b"somebody's")
    before = snapshot(finished)
    configure(finished, outputs=outputs)
    ended = finished.run_here("--from-scratch")
    assert ended.returncode == 78, ended.stderr
    assert snapshot(finished) == before


def test_what_was_there_stays_until_it_is_replaced(finished: ScriptedWorkplace) -> None:
    """While the new run has no final file the old one stays; all texts are encoded anew, with or
    without the flag.
    """
    final, before = (finished.workdir / "out.npy").read_bytes(), len(finished.calls())
    finished.write_source([*TEXTS[:2], "n0", "n1", "n2"])
    finished.lay("n2", "damage!")
    for flags in (["--from-scratch"], [], ["--from-scratch"]):
        ended = finished.run_here(*flags)
        assert ended.returncode == 75, ended.stderr
        assert (finished.workdir / "out.npy").read_bytes() == final
    finished.lift("n2")
    ended = finished.run_here()
    assert ended.returncode == 0, ended.stderr
    assert set(TEXTS[:2]) <= {text for call in finished.calls()[before:] for text in call}
    assert finished.vectors().tobytes() == expected([*TEXTS[:2], "n0", "n1", "n2"]).tobytes()
    (left,) = (finished.hidden / "outputs/out").glob("0*")
    assert left.name == "0003"
