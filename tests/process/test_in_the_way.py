"""What is not ours stays as it is: files of the person's in our places, places that a person names,
copied workdirs.
"""

import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from chunkvisor.store.layout import Layout, claim, hold_lock, read_holder
from damaged import TEXTS, flip, kept
from harness import contents, expected, finish, halts, kill, wait_for
from scripted_workplace import ScriptedWorkplace, fixture_of

place = fixture_of(kept)


# Files of the person's in a folder that is to be the workdir


@pytest.mark.parametrize("name", ["out.npy", "out.json", "report.html", "out.truncated.jsonl"])
def test_folder_of_the_persons_is_left_alone(tmp_path: Path, name: str) -> None:
    """A run in a folder with something of the person's under a name that we need is refused by that
    name.
    """
    place = ScriptedWorkplace.make(tmp_path, TEXTS, workdir=".")
    mine = place.folder / name
    mine.write_text("mine\n")
    before = contents(place.folder)
    for arguments in ([], ["--from-scratch", "--yes"]):
        assert f"{mine} already exists" in place.ends(78, *arguments).stderr
    place.call("clean", place.folder, code=78)
    assert contents(place.folder) == before


def test_workdir_may_be_a_folder_with_other_files(tmp_path: Path) -> None:
    """`workdir: .` next to config and source is fine, and `clean` leaves them; our files are these,
    and private.
    """
    place = ScriptedWorkplace.make(tmp_path, TEXTS, workdir=".")
    (place.folder / "notes.json").write_text("mine")
    before, names = contents(place.folder), {path.name for path in place.folder.iterdir()}
    for _ in range(2):
        place.ends(0)
    place.call("clean", place.folder, code=0)
    assert before.items() <= contents(place.folder).items()
    assert np.array_equal(np.load(place.folder / "out.npy"), expected(TEXTS))
    ours = {"out.npy", "out.json", "report.html", ".chunkvisor"}
    assert {path.name for path in place.folder.iterdir()} - names - {
        "__pycache__",
        "calls.jsonl",
    } == ours
    assert stat.S_IMODE((place.folder / ".chunkvisor").stat().st_mode) == 0o700


def another_version(place: ScriptedWorkplace) -> tuple[str, ...]:
    """A format that is not ours."""
    (place.hidden / "format.json").write_text('{"workdir_format": 99}')
    return "made by another version of chunkvisor", "its finished files are whole and stay"


def open_to_others(place: ScriptedWorkplace) -> tuple[str, ...]:
    """State that another user may have written."""
    place.hidden.chmod(0o750)
    return "cannot be trusted", "it is open to others", f"chmod 700 {place.hidden}"


def of_another_user(place: ScriptedWorkplace) -> tuple[str, ...]:
    """State that belongs to another user is not read, by root neither."""
    os.chown(place.hidden, 1, 1)
    return "cannot be trusted", "it belongs to "


def a_link_to_state(place: ScriptedWorkplace) -> tuple[str, ...]:
    """Final files are renamed out of the state, which needs one file system."""
    place.hidden.rename(place.folder / "elsewhere")
    place.hidden.symlink_to(place.folder / "elsewhere")
    return f"{place.hidden} already exists", "it is not a folder"


ROOT_ALONE = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.mark.parametrize(
    "change",
    [
        another_version,
        open_to_others,
        pytest.param(of_another_user, marks=ROOT_ALONE),
        a_link_to_state,
    ],
)
def test_state_that_is_not_ours(
    place: ScriptedWorkplace, change: Callable[[ScriptedWorkplace], tuple[str, ...]]
) -> None:
    """Every command refuses such a workdir, and leaves it as it is."""
    words, before = change(place), contents(place.workdir)
    for command in ("status", "verify", "clean", "retry", "report", "run"):
        ended = place.does(command, code=78)
        assert all(each in ended.stderr for each in words), ended.stderr
    assert contents(place.workdir) == before


@pytest.mark.parametrize("source", [".chunkvisor/*.jsonl", "../place/.chunkvisor/events.jsonl"])
def test_source_is_not_a_state_file(tmp_path: Path, source: str) -> None:
    """A source that is a file of the run's own, or a pattern that matches one, is refused, by
    `plan` as well.
    """
    place = ScriptedWorkplace.make(tmp_path / "place", TEXTS, workdir=".")
    place.ends(0)
    place.write_config(
        "scripted:make", workdir=".", outputs={"more": {"source": source, "column": "text"}}
    )
    for command in ("run", "plan"):
        ended = place.does(command, code=78)
        assert "outputs.more.source" in ended.stderr
        assert "chunkvisor keeps in the workdir for itself" in ended.stderr


# Places that a person names


def a_link(path: Path) -> None:
    """A link to a file of the person's."""
    path.with_name("elsewhere").write_text("mine")
    path.symlink_to("elsewhere")


def a_file(path: Path) -> None:
    """A file of the person's."""
    path.write_text("mine")


@pytest.mark.parametrize("make", [os.mkfifo, a_link, a_file, Path.mkdir])
@pytest.mark.parametrize("command", ["report", "encode", "encode-manifest", "metrics"])
def test_named_place_is_not_written_over(
    place: ScriptedWorkplace, command: str, make: Callable[[Path], None]
) -> None:
    """What stands where -o or metrics.textfile points, and chunkvisor has not made, is refused and
    stays.
    """
    folder = place.folder / "there"
    folder.mkdir()
    name = {
        "report": "night.html",
        "encode": "o.npy",
        "encode-manifest": "o.json",
        "metrics": "figures.prom",
    }[command]
    make(folder / name)
    before = contents(folder), os.lstat(folder / name).st_ino
    match command:
        case "report":
            ended = place.call("report", place.workdir, "-o", folder / name)
        case "metrics":
            ended = place.run("--set", f"metrics.textfile={folder / name}")
        case _:
            options = "--model test --encoder scripted:make --device cpu --column text -o"
            ended = place.call("encode", place.source, *options.split(), folder / "o.npy")
    assert ended.returncode in ((2, 78) if make is Path.mkdir else (78,)), ended.stderr
    assert name in ended.stderr
    assert (contents(folder), os.lstat(folder / name).st_ino) == before
    assert {path.name for path in folder.iterdir()} <= {"elsewhere", name}


def test_own_files_are_replaced(place: ScriptedWorkplace) -> None:
    """A report and figures of our own are written anew; so is what is empty. Source and state take
    no figures.
    """
    night, figures = place.folder / "night.html", place.folder / "figures.prom"
    night.touch()
    for _ in range(2):
        place.does("report", "-o", str(night))
        place.ends(0, "--set", f"metrics.textfile={figures}")
    assert night.read_bytes().startswith(b"<!doctype html>")
    assert figures.read_bytes().startswith(b"# HELP chunkvisor_")
    for name in ("rows.jsonl", "work/.chunkvisor/figures.prom"):
        ended = place.ends(78, "--set", f"metrics.textfile={place.folder / name}")
        assert "metrics.textfile" in ended.stderr


def test_verify_without_state(place: ScriptedWorkplace) -> None:
    """A final file is checked by its manifest if the state is gone, in the workdir or anywhere
    else.
    """
    shutil.rmtree(place.hidden / "outputs")
    elsewhere = place.folder / "results"
    elsewhere.mkdir()
    for name in ("out.npy", "out.json"):
        shutil.copy(place.workdir / name, elsewhere)
    for folder in (place.workdir, elsewhere):
        ended = place.call("verify", folder)
        assert (ended.returncode, ended.stdout) == (0, "2 files checked: all are intact\n"), (
            ended.stderr
        )
        flip(folder / "out.npy")
        ended = place.call("verify", folder, code=74)
        assert "out.npy: has another digest" in ended.stderr


@pytest.mark.parametrize("make", [os.mkfifo, a_file, a_link, Path.mkdir])
@pytest.mark.parametrize(
    "name",
    [
        "out.npy",
        "out.json",
        "report.html",
        *(f".chunkvisor/{name}" for name in ["lock", "format.json", "events.jsonl", "events.sums"]),
        "out.npy .chunkvisor/outputs/out/final.json",
    ],
)
def test_anything_in_the_place_of_a_file(
    place: ScriptedWorkplace, name: str, make: Callable[[Path], None]
) -> None:
    """A pipe, a file, a link or a folder there: each command ends, in words; a final file is not
    written through a link.
    """
    for each in name.split():
        path = place.workdir / each
        path.unlink()
        make(path)
    for command in ("status", "verify", "report", "clean", "retry", "run"):
        path_given = place.config_path if command == "run" else place.workdir
        ended = place.call(command, path_given, code=(0, 74, 78))
    if ended.returncode == 0:
        place.has(TEXTS)
    if make is a_link and path.parent == place.workdir:
        assert path.with_name("elsewhere").read_text() == "mine"


def test_two_first_runs_at_once(tmp_path: Path) -> None:
    """Of two runs that begin one workdir together one goes on, and the other ends with 75 in words."""
    places = [ScriptedWorkplace.make(tmp_path / str(number), TEXTS) for number in range(4)]
    pairs = [(place.begin(), place.begin()) for place in places]
    for place, pair in zip(places, pairs, strict=True):
        ended = [finish(process) for process in pair]
        assert sorted(each.returncode for each in ended) in ([0, 0], [0, 75]), ended
        for each in ended:
            assert (each.returncode == 0) == ("is using" not in each.stderr), each
        place.has(TEXTS)


def test_nothing_is_written_before_the_lock_is_held(tmp_path: Path) -> None:
    """A first run that finds the lock held, or gone once it has it, ends with 75 and leaves no mark."""
    layout = Layout(tmp_path)
    layout.hidden.mkdir(mode=0o700)
    with hold_lock(layout.lock), halts(75):
        claim(layout, ["out"], "run").__enter__()
    assert not layout.mark.exists()
    remove = mock.patch("fcntl.flock", side_effect=lambda *_: layout.lock.unlink())
    with remove, halts(75):
        claim(layout, ["out"], "run").__enter__()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_disk_without_locks(place: ScriptedWorkplace, number: int) -> None:
    """A run and `clean` end with 69 and name the mount; nothing else is touched."""
    refused = OSError(number, os.strerror(number))
    before = contents(place.workdir)
    with mock.patch("fcntl.flock", side_effect=refused):
        for command in ("run", "clean"):
            ended = place.does(command, code=69)
            assert "no file can be locked on this disk" in ended.stderr
            assert "Mount it with locks" in ended.stderr
    assert contents(place.workdir) == before


def test_copy_of_a_live_workdir(tmp_path: Path) -> None:
    """A run, `clean` and `status` in a copy leave the original's workers alone, and do not take the
    copy for live.
    """
    place = ScriptedWorkplace.make(tmp_path / "place", ["t0", "slow"], chunk__size=1)
    place.lay("slow", "wait_for_release")
    process = place.begin()
    try:
        wait_for(lambda: place.has_struck("slow"))  # the copy's own worker is not to wait
        # Nothing is written any more: a file that vanishes would end the copying.
        wait_for(lambda: place.named("chunk_committed"))
        worker = place.named("attempt_started")[-1]["pid"]
        copy = place.copy(tmp_path / "copy")
        assert read_holder(Layout(place.workdir).lock) is not None
        assert copy.status()["state"] == "stopped"
        copy.does("clean")
        copy.ends(0)
        os.kill(worker, 0)
        assert process.poll() is None
    finally:
        kill(process)
    place.gives(["t0", "slow"])
