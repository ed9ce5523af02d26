"""What would give other vectors is refused with words for the old and the new; what would not, is
not.
"""

from pathlib import Path
from typing import Any

import pytest

from scripted_workplace import ScriptedWorkplace, made_once

TEXTS = ["t0", "t1", "t0", "t2"]
OUT = {"source": "rows.jsonl", "column": "text"}


@made_once
def begun(folder: Path) -> ScriptedWorkplace:
    """A workdir that a first run has left behind with a chunk given up."""
    place = ScriptedWorkplace.make(folder, TEXTS, chunk__size=2, recovery__attempts=1)
    place.lay("t2", "damage!")
    place.ends(75)
    place.lift("t2")
    return place


@pytest.fixture
def place(tmp_path: Path) -> ScriptedWorkplace:
    """A copy of it."""
    return begun(tmp_path / "place")


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
            {"outputs__out": {"source": "rows.jsonl", "template": "x {text}"}},
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
    place.set(**changes)
    ended = place.ends(78)
    for each in words:
        assert each in ended.stderr
    assert "--from-scratch" in ended.stderr
    assert snapshot(place) == before


def test_changed_source(place: ScriptedWorkplace) -> None:
    """Other texts are refused; the staged table of the first run stays."""
    before = snapshot(place)
    place.write_source(["t0", "t1", "t0", "tX"])
    ended = place.ends(78)
    assert "source: same number of rows, other content" in ended.stderr
    assert snapshot(place) == before


def test_a_trial_is_in_no_ones_way(place: ScriptedWorkplace) -> None:
    """`--max-rows` works in a workdir of its own; the run's own is as it was, and goes on."""
    before = snapshot(place)
    place.ends(0, "--max-rows", "3")
    assert snapshot(place) == before
    place.has(TEXTS[:3], name="../work-first-3/out")
    place.ends(0)


def test_same_content(place: ScriptedWorkplace) -> None:
    """The same texts in the same order go on, whatever became of the files that hold them."""
    done_before = len(place.encoded())
    (place.folder / "rows.csv").write_text("\n".join(["text", *TEXTS]) + "\n")
    place.source.unlink()
    place.set(outputs={"out": {"source": "rows.csv", "column": "text"}})
    place.gives(TEXTS)
    assert set(place.encoded()[done_before:]) <= {"t2"}


# --- from scratch: nothing is taken away before the new run can work, and nothing finished before it is replaced


@pytest.fixture
def finished(place: ScriptedWorkplace) -> ScriptedWorkplace:
    """A finished output."""
    place.ends(0)
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
    finished.set(outputs=outputs)
    finished.ends(78, "--from-scratch")
    assert snapshot(finished) == before


def test_what_was_there_stays_until_it_is_replaced(finished: ScriptedWorkplace) -> None:
    """While the new run has no final file the old one stays; all texts are encoded anew, with or
    without the flag.
    """
    final, before = (finished.workdir / "out.npy").read_bytes(), len(finished.encoded())
    texts = [*TEXTS[:2], "n0", "n1", "n2"]
    finished.write_source(texts)
    finished.lay("n2", "damage!")
    for flags in (["--from-scratch"], [], ["--from-scratch"]):
        finished.ends(75, *flags)
        assert (finished.workdir / "out.npy").read_bytes() == final
    finished.lift("n2")
    finished.gives(texts)
    assert set(TEXTS[:2]) <= set(finished.encoded()[before:])
    (left,) = (finished.hidden / "outputs/out").glob("0*")
    assert left.name == "0003"
