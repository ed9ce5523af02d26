"""What an output goes through: where it stands is read without writing, and each step may be cut
off.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import join

import numpy as np
import pytest

from damaged import flip
from harness import SOAK_SEED, expected, sweep
from scripted_workplace import ScriptedWorkplace

TEXTS = ["a", "b", "c", "a", "d", "e"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> ScriptedWorkplace:
    """A finished output, to be copied."""
    folder = tmp_path_factory.mktemp("finished") / "place"
    place = ScriptedWorkplace.make(folder, TEXTS, chunk__size=2)
    assert place.run_here().returncode == 0
    return place


def encoded(place: ScriptedWorkplace) -> list[str]:
    """The texts that were encoded so far, in order."""
    return [text for call in place.calls() for text in call]


def tree(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Inode and times of everything in the folder."""
    found = {str(path): path.lstat() for path in folder.rglob("*")}
    return {path: (each.st_ino, each.st_mtime_ns, each.st_ctime_ns) for path, each in found.items()}


def begin_update(place: ScriptedWorkplace) -> None:
    """A next generation, of which one chunk failed."""
    place.write_source([*TEXTS, "n", "m"])
    place.lay("m", "damage!")
    assert place.run_here("--update").returncode == 75


LEFT: dict[str, Callable[[ScriptedWorkplace], object]] = {
    "touched": lambda place: (place.workdir / "out.npy").touch(),
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
def test_who_reads_writes_nothing(finished: ScriptedWorkplace, tmp_path: Path, left: str) -> None:
    """`status`, `verify`, `audit` and `report -o` take a workdir to which nothing can be written,
    as it is left.
    """
    place = finished.copy(tmp_path / "place")
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
    finished: ScriptedWorkplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before it is planned, a run from scratch takes nothing over when it goes on as a
    plain run.
    """
    place = finished.copy(tmp_path / "place")
    before = len(encoded(place))

    def stop(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("chunkvisor.supervise.opening.plan", stop)
        assert place.run_here("--from-scratch", "--yes").returncode == 74
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS))
    assert place.run_here().returncode == 0
    assert sorted(encoded(place)[before:]) == sorted(set(TEXTS))
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
        assert place.run_here().returncode == 0
        place.write_source(TEXTS)
    place.lay("e", "damage!")
    assert place.run_here("--update", "--set", "recovery.attempts=1").returncode == 75
    place.lift("e")
    before = len(encoded(place))
    damage(place.hidden / f"outputs/out/000{1 + reused}/chunks/reuse/plan.json")
    ended = place.run_here()
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS))
    if damage is Path.unlink and not reused:
        assert not {"a", "b", "c", "d"} & set(encoded(place)[before:])


def test_refused_before_anything_is_touched(finished: ScriptedWorkplace, tmp_path: Path) -> None:
    """A damaged final file stays where it is if the config is another one than before."""
    place = finished.copy(tmp_path / "place")
    flip(place.workdir / "out.npy")
    before = {path: path.read_bytes() for path in place.workdir.glob("out*")}
    assert place.run_here("--set", "encode.prompt=x").returncode == 78
    assert {path: path.read_bytes() for path in place.workdir.glob("out*")} == before
    assert place.run_here().returncode == 0
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS))
    assert (place.workdir / "out.npy.aside").exists()


def test_retried_while_it_was_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`retry` completes what a kill has ended, and the next run tries the bad texts again."""
    place = ScriptedWorkplace.make(tmp_path, TEXTS, chunk__size=2)
    place.lay("b", "value_error!")

    def stop(*_: object) -> None:
        raise OSError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("chunkvisor.outputs.publish._write_records", stop)
        assert place.run_here().returncode not in (0, 3)
    place.lift("b")
    assert place.here("retry", str(place.workdir)).returncode == 0
    assert place.run_here().returncode == 0
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS))


MORE = {"source": "more.jsonl", "column": "text"}
SECOND = ["x", "d", "y", "b", "x", "b", "e"]


def write_more(place: ScriptedWorkplace, texts: Sequence[str]) -> None:
    """The source of the second output, which comes first in the config."""
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    (place.folder / "more.jsonl").write_text("".join(lines))


def two(folder: Path, second: Sequence[str] = SECOND, **keys: object) -> ScriptedWorkplace:
    """Two outputs that share texts; "more" is the first in the config."""
    place = ScriptedWorkplace.make(folder, TEXTS, chunk__size=2, outputs__more=MORE | keys)
    write_more(place, second)
    return place


def assert_final(place: ScriptedWorkplace, name: str, texts: Sequence[str]) -> None:
    """The final file has the vectors of the texts."""
    found = np.load(place.workdir / f"{name}.npy", allow_pickle=False)
    np.testing.assert_array_equal(found, expected(texts).astype(found.dtype))


@pytest.mark.parametrize(
    ("second", "keys"), [(SECOND, {}), (TEXTS[::-1], {}), (SECOND, {"dtype": "float16"})]
)
def test_shared_texts_are_encoded_once(
    tmp_path: Path, second: list[str], keys: dict[str, str]
) -> None:
    """What two outputs of a first run share is encoded by the first, and taken over from its
    chunks.
    """
    place = two(tmp_path, second, **keys)
    ended = place.run_here()
    assert ended.returncode == 0, ended.stderr
    assert sorted(encoded(place)) == sorted({*TEXTS, *second})
    assert_final(place, "out", TEXTS)
    assert_final(place, "more", second)
    assert "will have a vector" in ended.stderr
    assert place.status()["outputs"]["out"]["rows_done"] == len(TEXTS)


def test_a_shared_text_is_bad(tmp_path: Path) -> None:
    """Nothing waits for ever: what the first output quarantines or gives up, the second tries by
    itself.
    """
    place = two(tmp_path)
    place.lay("b", "value_error!")
    ended = place.run_here()
    assert ended.returncode == 3, ended.stderr
    nan = np.isnan(np.load(place.workdir / "out.npy")).all(axis=1)
    np.testing.assert_array_equal(nan, [text == "b" for text in TEXTS])
    place.lift("b")
    assert place.here("retry", str(place.workdir)).returncode == 0
    assert place.run_here().returncode == 0
    assert_final(place, "out", TEXTS)


def test_stopped_before_its_turn(tmp_path: Path) -> None:
    """A run that ends before an output's turn goes on with it, and does not read its source again."""
    place = two(tmp_path)
    place.lay("e", "damage!")
    assert place.run_here("--set", "recovery.attempts=1").returncode == 75
    place.lift("e")
    before = encoded(place)
    ended = place.run_here()
    assert ended.returncode == 0, ended.stderr
    assert "reading" not in ended.stderr
    assert not {"x", "d", "y", "b"} & set(encoded(place)[len(before) :])
    assert_final(place, "out", TEXTS)


def test_update_of_two(tmp_path: Path) -> None:
    """In an update, outputs wait only for texts that are new to both."""
    place = two(tmp_path)
    assert place.run_here().returncode == 0
    for new, waits in ((("n", "m"), False), (("new", "new"), True)):
        before = len(encoded(place))
        place.write_source([*TEXTS, new[0]])
        write_more(place, [*SECOND, new[1]])
        ended = place.run_here("--update")
        assert ended.returncode == 0, ended.stderr
        assert ("will have a vector" in ended.stderr) == waits
        assert sorted(encoded(place)[before:]) == sorted(set(new))
        assert_final(place, "out", [*TEXTS, new[0]])
        assert_final(place, "more", [*SECOND, new[1]])


@pytest.mark.parametrize("when", ["before", "after"])
def test_two_killed_anywhere(tmp_path: Path, when: str) -> None:
    """Killed at any change of a name, a run of two outputs that share texts goes on, and nothing is
    left over.
    """
    place = two(tmp_path / "place")
    names = ("rename", "replace", "unlink")
    targets = (*(f"pathlib:Path.{name}" for name in names), "shutil:rmtree")
    share = "1:" if SOAK_SEED else "6:a"
    told = sweep("each", when, place.folder, tmp_path / "scratch", *targets, share=share)
    assert len(told) > 3
    for line in told:
        assert line["returncode"] == 0, line
        left = ScriptedWorkplace(Path(line["folder"]))
        assert_final(left, "out", TEXTS)
        assert_final(left, "more", SECOND)
        assert left.here("verify", str(left.workdir)).returncode == 0, line["call"]
        names_left = sorted(path.name for path in (left.hidden / "outputs/out").iterdir())
        assert names_left == ["0001", "final.json"], line["call"]
