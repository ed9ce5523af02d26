"""What an output goes through: where it stands is read without writing, and each step may be cut
off.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import join
from typing import Any
from unittest.mock import Mock

import pytest

from damaged import flip
from killed import killed_anywhere
from scripted_workplace import ScriptedWorkplace, fixture_of, made_once

TEXTS = ["a", "b", "c", "a", "d", "e"]


@made_once
def finished(folder: Path) -> ScriptedWorkplace:
    """A finished output."""
    place = ScriptedWorkplace.make(folder, TEXTS, chunk__size=2)
    place.ends(0)
    return place


place = fixture_of(finished)


def tree(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Inode and times of everything in the folder."""
    found = {str(path): path.lstat() for path in folder.rglob("*")}
    return {path: (each.st_ino, each.st_mtime_ns, each.st_ctime_ns) for path, each in found.items()}


def begin_update(place: ScriptedWorkplace) -> None:
    """A next generation, of which one chunk failed."""
    place.write_source([*TEXTS, "n", "m"])
    place.lay("m", "damage!")
    place.ends(75, "--update")


LEFT: dict[str, Callable[[ScriptedWorkplace], object]] = {
    "touched": lambda place: place.final.touch(),
    "no manifest": lambda place: (place.workdir / "out.json").unlink(),
    "no record": lambda place: (place.hidden / "outputs/out/final.json").unlink(),
    "publishing": lambda place: (place.hidden / "outputs/out/publishing.json").touch(),
    "in an update": begin_update,
}

ALL = """
import sys
from chunkvisor.cli import main
for words in ("status", "status --json", "verify", "audit", "report -o report.html"):
    name, *options = words.split()
    sys.argv = ["chunkvisor", name, "config.yaml", *options]
    try:
        main()
        print(words, 0)
    except SystemExit as end:
        print(words, end.code)
"""


@pytest.mark.parametrize("left", LEFT)
def test_who_reads_writes_nothing(place: ScriptedWorkplace, left: str) -> None:
    """`status`, `verify`, `audit` and `report -o` take a workdir to which nothing can be written,
    as it is left.
    """
    LEFT[left](place)
    before = tree(place.workdir)
    command = [sys.executable, "-c", ALL]
    if os.geteuid() == 0:  # who is not held up by modes
        bind = "mount --bind work work && mount -o remount,ro,bind work"
        script = f"{bind} && exec {join(command)}"
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script]
    else:
        for path in (place.workdir, *place.workdir.rglob("*")):
            path.chmod(path.stat().st_mode & ~0o222)
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place.folder)
    there = 74 if left == "no manifest" else 0
    audited = 0 if left in ("touched", "no manifest", "no record") else 78
    codes = {"status": 0, "status --json": 0, "verify": there, "audit": audited}
    for words, code in (codes | {"report -o report.html": 0}).items():
        assert f"{words} {code}\n" in ended.stdout, (ended.stdout, ended.stderr)
    assert "Read-only" not in ended.stderr
    assert tree(place.workdir) == before


def test_from_scratch_stays_from_scratch(
    place: ScriptedWorkplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before it is planned, a run from scratch takes nothing over when it goes on as a
    plain run.
    """
    before = len(place.encoded())
    stop = Mock(side_effect=OSError(5, "Input/output error"))
    with monkeypatch.context() as patch:
        patch.setattr("chunkvisor.supervise.opening.plan", stop)
        place.ends(74, "--from-scratch", "--yes")
    place.has(TEXTS)
    place.ends(0)
    assert sorted(place.encoded()[before:]) == sorted(set(TEXTS))
    assert place.manifest()["generation"] == 2


@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_lost_plan(tmp_path: Path, damage: Callable[[Path], None], reused: bool) -> None:
    """Chunks whose plan is lost are never joined under another; without copies they are not even
    computed again.
    """
    place = ScriptedWorkplace.make(tmp_path, TEXTS, chunk__size=2)
    if reused:
        place.write_source(["c", "x"])
        place.ends(0)
        place.write_source(TEXTS)
    place.lay("e", "damage!")
    place.ends(75, "--update", "--set", "recovery.attempts=1")
    place.lift("e")
    before = len(place.encoded())
    damage(place.hidden / f"outputs/out/000{1 + reused}/chunks/reuse/plan.json")
    place.gives(TEXTS)
    if damage is Path.unlink and not reused:
        assert not {"a", "b", "c", "d"} & set(place.encoded()[before:])


def test_refused_before_anything_is_touched(place: ScriptedWorkplace) -> None:
    """A damaged final file stays where it is if the config is another one than before."""
    flip(place.final)
    before = {path: path.read_bytes() for path in place.workdir.glob("out*")}
    place.ends(78, "--set", "encode.prompt=x")
    assert {path: path.read_bytes() for path in place.workdir.glob("out*")} == before
    place.gives(TEXTS)
    assert (place.workdir / "out.npy.aside").exists()


def test_retried_while_it_was_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`retry` completes what a kill has ended, and the next run tries the bad texts again."""
    place = ScriptedWorkplace.make(tmp_path, TEXTS, chunk__size=2)
    place.lay("b", "value_error!")
    stop = Mock(side_effect=OSError(13, "Permission denied"))
    with monkeypatch.context() as patch:
        patch.setattr("chunkvisor.outputs.publish._write_records", stop)
        assert place.run().returncode == 1
    place.lift("b")
    place.does("retry")
    place.gives(TEXTS)


MORE = {"source": "more.jsonl", "column": "text"}
SECOND = ["x", "d", "y", "b", "x", "b", "e"]


def two(folder: Path, second: Sequence[str] = SECOND, **keys: object) -> ScriptedWorkplace:
    """Two outputs that share texts; "more" is the first in the config."""
    place = ScriptedWorkplace.make(folder, TEXTS, chunk__size=2, outputs__more=MORE | keys)
    place.write_source(second, "more")
    return place


@pytest.mark.parametrize(
    ("second", "keys"), [(SECOND, {}), (TEXTS[::-1], {}), (SECOND, {"dtype": "float16"})]
)
def test_shared_texts_are_encoded_once(
    tmp_path: Path, second: list[str], keys: dict[str, Any]
) -> None:
    """What two outputs of a first run share is encoded by the first, and taken over from its
    chunks.
    """
    place = two(tmp_path, second, **keys)
    ended = place.gives(TEXTS)
    assert sorted(place.encoded()) == sorted({*TEXTS, *second})
    place.has(second, name="more", **keys)
    assert "will have a vector" in ended.stderr
    assert place.progress()["rows_done"] == len(TEXTS)


def test_a_shared_text_is_bad(tmp_path: Path) -> None:
    """Nothing waits for ever: what the first output quarantines or gives up, the second tries by
    itself.
    """
    place = two(tmp_path)
    place.lay("b", "value_error!")
    place.gives(TEXTS, bad=[TEXTS.index("b")])
    place.lift("b")
    place.does("retry")
    place.gives(TEXTS)


def test_stopped_before_its_turn(tmp_path: Path) -> None:
    """A run that ends before an output's turn goes on with it, and does not read its source
    again.
    """
    place = two(tmp_path)
    place.lay("e", "damage!")
    place.ends(75, "--set", "recovery.attempts=1")
    place.lift("e")
    before = place.encoded()
    assert "reading" not in place.gives(TEXTS).stderr
    assert not {"x", "d", "y", "b"} & set(place.encoded()[len(before) :])


def test_update_of_two(tmp_path: Path) -> None:
    """In an update, outputs wait only for texts that are new to both."""
    place = two(tmp_path)
    place.ends(0)
    for new, waits in ((("n", "m"), False), (("new", "new"), True)):
        before = len(place.encoded())
        place.write_source([*TEXTS, new[0]])
        place.write_source([*SECOND, new[1]], "more")
        ended = place.gives([*TEXTS, new[0]], "--update")
        assert ("will have a vector" in ended.stderr) == waits
        assert sorted(place.encoded()[before:]) == sorted(set(new))
        place.has([*SECOND, new[1]], name="more")


@pytest.mark.parametrize("when", ["before", "after"])
def test_two_killed_anywhere(tmp_path: Path, when: str) -> None:
    """Killed at any change of a name, a run of two outputs that share texts goes on, and nothing is
    left over.
    """
    place = two(tmp_path / "place")
    for left in killed_anywhere(place, tmp_path / "scratch", when, "6:a"):
        left.has(TEXTS)
        left.has(SECOND, name="more")
        left.does("verify")
        names_left = sorted(path.name for path in (left.hidden / "outputs/out").iterdir())
        assert names_left == ["0001", "final.json"]
