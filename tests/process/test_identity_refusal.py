"""What would give other vectors is refused with words for the old and the new; what would not, is
not.
"""

from pathlib import Path
from typing import Any

import pytest

from harness import contents
from scripted_workplace import ScriptedWorkplace, fixture_of, made_once

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


place = fixture_of(begun)


def snapshot(place: ScriptedWorkplace) -> dict[str, bytes]:
    """All files of the workdir but the lock, and what tells the story of each run."""
    told = {"lock", "events.jsonl", "events.sums", "report.html", "runs"}
    files = contents(place.workdir)
    return {name: files[name] for name in files if told.isdisjoint(Path(name).parts)}


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
    assert "source: same number of rows, other content" in place.ends(78).stderr
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
    final, before = finished.final.read_bytes(), len(finished.encoded())
    texts = [*TEXTS[:2], "n0", "n1", "n2"]
    finished.write_source(texts)
    finished.lay("n2", "damage!")
    for flags in (["--from-scratch"], [], ["--from-scratch"]):
        finished.ends(75, *flags)
        assert finished.final.read_bytes() == final
    finished.lift("n2")
    finished.gives(texts)
    assert set(TEXTS[:2]) <= set(finished.encoded()[before:])
    (left,) = (finished.hidden / "outputs/out").glob("0*")
    assert left.name == "0003"


# --- another version of a library is told, and refuses nothing

SIX = ["t0", "t1", "t2", "t0", "t0", "t3", "t4", "t5"]
"""Three chunks of two; the first text stands in three rows."""


@pytest.fixture
def of_old_torch(tmp_path: Path) -> ScriptedWorkplace:
    """An output of which the first two chunks were computed under the old torch."""
    place = ScriptedWorkplace.make(tmp_path, SIX)
    with_torch(place, "2.13.0")
    place.lay("t4", "damage!")
    place.ends(75)
    place.lift("t4")
    return place


def with_torch(place: ScriptedWorkplace, torch: str, **changes: object) -> None:
    """The config, with this version of torch."""
    changes |= {"env.FAKE_TORCH": torch, "chunk.size": 2, "recovery.attempts": 1}
    place.write_config("versioned:make", **{"outputs.out.source": str(place.source), **changes})


def test_other_versions_are_told(of_old_torch: ScriptedWorkplace) -> None:
    """A resume under another torch completes; the run says so once, and the manifest has both."""
    with_torch(of_old_torch, "2.14.1")
    assert of_old_torch.gives(SIX).stderr.count("torch 2.13.0 before, 2.14.1 now") == 1
    manifest = of_old_torch.manifest()
    assert manifest["versions"]["torch"] == "2.13.0"
    assert [each["torch"] for each in manifest["other_versions"]] == ["2.14.1"]
    of_old_torch.ends(0)


# --- what no run can do


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "task": ({"encode__task": "query"}, "encode.task is for a model of sentence-transformers"),
    "encode.kwargs": (
        {"encode__kwargs": {"a": 1}},
        "encode.kwargs is for a model of sentence-transformers",
    ),
    "pooling": ({"model__pooling": "cls"}, "pooling is for a model of sentence-transformers"),
    "batch_tokens": (
        {"encode__batch_tokens": 512},
        "encode.batch_tokens is for a model of sentence-transformers",
    ),
    "textfile": (
        {"metrics__textfile": "nowhere/figures.prom"},
        "metrics.textfile: there is no folder",
    ),
}


@pytest.mark.parametrize("command", ["run", "plan", "doctor"])
@pytest.mark.parametrize("which", REFUSED)
def test_refused_by_all(tmp_path: Path, command: str, which: str) -> None:
    """A config that cannot work ends each of the three with 78."""
    changes, words = REFUSED[which]
    place = ScriptedWorkplace.make(tmp_path, ["t0"], **changes)
    ended = place.does(command, code=78)
    assert words in ended.words
