"""Whatever becomes of the files of a workdir: the next run computes anew or refuses, and never gives wrong vectors."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from harness import Ended, expected
from scripted_workplace import ScriptedWorkplace

TEXTS = ["t0", "t1", "t0", "t2", "t3", "t4", "t1", "t5", "t6", ""]
LAST = "t6"


def unfinished(folder: Path) -> ScriptedWorkplace:
    """All chunks but the last are committed; that one failed, and an out-of-memory fault left its lesson."""
    place = ScriptedWorkplace.make(folder, TEXTS, chunk__size=2, recovery__attempts=1, encode__batch_size=2)
    place.lay("t0", "oom")
    place.lay(LAST, "terminate!")
    assert place.run_here().returncode == 75
    return place


def unjudged(folder: Path) -> ScriptedWorkplace:
    """The last chunk's result was not looked at before the supervisor died."""
    place = ScriptedWorkplace.make(folder, TEXTS, chunk__size=2)
    place.lay(LAST, "kill_supervisor")
    assert place.run().returncode == -9
    (attempt,) = (place.workdir / "outputs" / "out" / "attempts" / "000003").iterdir()
    by_hand = [sys.executable, "-P", "-m", "chunkvisor_worker", str(attempt)]
    assert subprocess.run(by_hand, check=False, timeout=60).returncode == 0
    return place


def complete(folder: Path) -> ScriptedWorkplace:
    """Nothing is left to be done."""
    place = ScriptedWorkplace.make(folder, TEXTS, chunk__size=4)
    assert place.run_here().returncode == 0
    return place


def kept(folder: Path) -> ScriptedWorkplace:
    """Nothing is left to be done, and the chunk files are still there."""
    place = ScriptedWorkplace.make(folder, TEXTS, chunk__size=4, chunk__keep=True)
    assert place.run_here().returncode == 0
    return place


def truncate(path: Path) -> None:
    """Half of it is gone."""
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    """It is there, with nothing in it."""
    os.truncate(path, 0)


def flip(path: Path) -> None:
    """One bit is another."""
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 1
    path.write_bytes(data)


def flip_in_place(path: Path) -> None:
    """With the old modification time, as a failing program with a mapped file may leave it."""
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(before.st_size * 2 // 3)
        byte = file.read(1)[0]
        file.seek(before.st_size * 2 // 3)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def files_of(folder: Path) -> list[Path]:
    """All files with content, relative to the folder."""
    found = [Path(root) / name for root, _, names in os.walk(folder) for name in names]
    return sorted(path.relative_to(folder) for path in found if path.stat().st_size)


def assert_harmless(place: ScriptedWorkplace, ended: Ended, what: object) -> None:
    """A clear refusal, or the right vectors."""
    words = f"{what}: {ended}"
    assert ended.returncode in (0, 74, 78), words
    assert "Traceback" not in ended.stderr, words
    if ended.returncode == 0:
        np.testing.assert_array_equal(place.vectors(), expected(TEXTS), err_msg=words)
        assert place.manifest()["rows"] == len(TEXTS)
    else:
        assert "chunkvisor: " in ended.stderr, words
        assert "do:  " in ended.stderr, words


@pytest.mark.parametrize(
    ("state", "damage"),
    [
        *((unfinished, damage) for damage in (truncate, flip, Path.unlink)),
        (unjudged, flip),
        *((complete, damage) for damage in (truncate, empty, flip, Path.unlink)),
        (kept, flip),
    ],
)
def test_any_file_damaged(
    tmp_path: Path, state: Callable[[Path], ScriptedWorkplace], damage: Callable[[Path], None]
) -> None:
    """One file of the workdir is damaged or gone: only where the identity is lost does a run refuse to go on."""
    made = state(tmp_path / "made")
    refused = []
    for number, name in enumerate(files_of(made.workdir)):
        place = made.copy(tmp_path / str(number))
        if state is unfinished:
            place.lift(LAST)
        damage(place.workdir / name)
        ended = place.run_here()
        assert_harmless(place, ended, (state, damage, name))
        if ended.returncode:
            refused.append(name)
        shutil.rmtree(place.folder)
    assert refused == [Path("outputs/out/identity.json")]


@pytest.mark.parametrize("state", [unfinished, complete])
def test_damaged_in_place(tmp_path: Path, state: Callable[[Path], ScriptedWorkplace]) -> None:
    """A change that leaves size and modification time alone is seen in files that are not read at every run."""
    place = state(tmp_path / "place")
    names = ["out.npy", "out.json", "outputs/out/done.json"] if state is complete else []
    if state is unfinished:
        names = [f"outputs/out/table/{name}.bin" for name in ("texts", "offsets", "row_text", "first_row")]
    for name in names:
        flip_in_place(place.workdir / name)
        ended = place.run_here()
        if state is complete:
            assert_harmless(place, ended, name)
        else:
            assert "the staged texts are damaged" in ended.stderr
            assert ended.returncode == 75
    if state is unfinished:
        place.lift(LAST)
    assert_harmless(place, place.run_here(), state)


def test_final_file_kept_aside(tmp_path: Path) -> None:
    """A final file that was changed is made anew; the changed one is kept under another name, and named."""
    place = complete(tmp_path / "place")
    flip(place.workdir / "out.npy")
    changed = (place.workdir / "out.npy").read_bytes()
    ended = place.run_here()
    assert_harmless(place, ended, "out.npy")
    assert "out.npy.damaged" in ended.stderr
    assert (place.workdir / "out.npy.damaged").read_bytes() == changed


def chunk_files(place: ScriptedWorkplace, output: str = "out") -> list[Path]:
    """Committed chunks, in order."""
    return sorted((place.workdir / "outputs" / output / "chunks").rglob("*.npy"))


def swap(first: Path, second: Path) -> None:
    """Each under the other's name."""
    between = first.with_name("between")
    first.rename(between)
    second.rename(first)
    between.rename(second)


def test_chunks_swapped(tmp_path: Path) -> None:
    """Two chunk files under each other's names, or under each other's numbers, are computed again."""
    place = unfinished(tmp_path / "place")
    first, second, *_ = chunk_files(place)
    swap(first, second)
    place.lift(LAST)
    renumbered = place.copy(tmp_path / "renumbered")
    ended = place.run_here()
    assert_harmless(place, ended, "swapped")
    assert "chunk 0 is damaged" in ended.stderr
    first, second, *_ = chunk_files(renumbered)
    swap(first, second)
    first.rename(first.with_name(f"000001{first.name[6:]}"))
    second.rename(second.with_name(f"000000{second.name[6:]}"))
    assert_harmless(renumbered, renumbered.run_here(), "renumbered")


@pytest.mark.parametrize("beside", [True, False])
def test_chunk_of_another_output(tmp_path: Path, beside: bool) -> None:
    """A chunk file of another output is not taken for one of this, be it beside it or in its place."""
    place = unfinished(tmp_path / "place")
    other = ScriptedWorkplace.make(
        tmp_path / "other", TEXTS, chunk__size=2, chunk__keep=True, encode__truncate_dim=8, model__name="other"
    )
    assert other.run_here().returncode == 0
    mine, theirs = chunk_files(place)[1], chunk_files(other)[1]
    shutil.copy(theirs, mine.with_name(theirs.name))
    if not beside:
        mine.unlink()
    place.lift(LAST)
    assert_harmless(place, place.run_here(), "another output's chunk")


@pytest.mark.parametrize("what", ["table", "done.json", "facts.json", "identity.json", "staged.json", "lessons.json"])
def test_state_of_another_output(tmp_path: Path, what: str) -> None:
    """State that is whole but belongs to another output of other texts is noticed, too."""
    places = []
    for name, texts in {"mine": TEXTS, "theirs": [f"{text}'" for text in TEXTS]}.items():
        place = ScriptedWorkplace.make(tmp_path / name, texts, chunk__size=2, recovery__attempts=1, chunk__keep=True)
        place.lay(texts[0], "oom")
        if name == "mine":
            place.lay(LAST, "terminate!")
        assert place.run_here().returncode == (75 if name == "mine" else 0)
        places.append(place)
    mine, theirs = (_state(place, what) for place in places)
    if mine.is_dir():
        shutil.rmtree(mine)
        shutil.copytree(theirs, mine)
    else:
        shutil.copy(theirs, mine)
    if what == "done.json":
        shutil.copy(places[1].workdir / "out.npy", places[0].workdir)
    places[0].lift(LAST)
    assert_harmless(places[0], places[0].run_here(), what)


def _state(place: ScriptedWorkplace, what: str) -> Path:
    return place.workdir / what if what == "lessons.json" else place.workdir / "outputs" / "out" / what


def a_file(path: Path) -> None:
    """Of no known content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"what is this?")


def a_folder(path: Path) -> None:
    """With something in it."""
    (path / "inside").mkdir(parents=True)
    a_file(path / "file")


def a_pipe(path: Path) -> None:
    """A named pipe that nobody writes to or reads from."""
    os.mkfifo(path)


def a_loop(path: Path) -> None:
    """A symbolic link to itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(path.name)


CHUNK = f"000001-{'0' * 32}.npy"


@pytest.mark.parametrize("kind", [a_file, a_folder, a_loop])
@pytest.mark.parametrize(
    "places",
    [
        ["unknown", "outputs/unknown", "outputs/.unknown", "outputs/out/unknown"],
        [
            "outputs/out/table/unknown",
            "outputs/out/table.new",
            "outputs/out/table.new.partial",
            "outputs/out/table.old",
        ],
        [
            "outputs/out/chunks/unknown",
            "outputs/out/chunks/000/unknown",
            "outputs/out/chunks/0",
            "outputs/out/chunks/007",
        ],
        [f"outputs/out/chunks/000/{CHUNK}"],
        [f"outputs/out/chunks/000/{CHUNK.replace('000001', '000003')}"],
        [f"outputs/out/chunks/000/{CHUNK.replace('000001', '000444')}"],
        [f"outputs/out/chunks/001/{CHUNK}", f"outputs/out/chunks/001/{CHUNK.replace('000001', '000003')}"],
        ["outputs/out/attempts/unknown", "outputs/out/attempts/000000", "outputs/out/attempts/000777"],
        ["outputs/out/attempts/000003/unknown", "outputs/out/attempts/000003/007"],
    ],
    ids=lambda places: places[0],
)
def test_unknown_things(tmp_path: Path, kind: Callable[[Path], None], places: list[str]) -> None:
    """Files, folders and loops that nobody here has made stop no command."""
    place = unfinished(tmp_path / "place")
    for each in places:
        path = place.workdir / each
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        kind(path)
    place.lift(LAST)
    for command in ("status", "verify"):
        ended = place.here(command, str(place.workdir))
        assert ended.returncode in (0, 74), ended.stderr
    ended = place.run_here()
    assert ended.returncode == 0, ended.stderr
    assert_harmless(place, ended, places)
    for command in ("status", "verify", "clean"):
        ended = place.here(command, str(place.workdir))
        assert ended.returncode == 0, (command, ended.stderr)
    assert_harmless(place, place.run_here(), places)


def test_a_final_file_of_ours_is_no_foreign_one(tmp_path: Path) -> None:
    """One whose manifest was not written any more, as after a kill, is replaced, and no copy stays behind."""
    place = kept(tmp_path / "place")
    for name in ("out.json", "outputs/out/done.json"):
        (place.workdir / name).unlink()

    assert_harmless(place, place.run_here(), "unrecorded")

    assert not list(place.workdir.glob("*.aside*"))


STATE = [
    "events.jsonl",
    "lessons.json",
    "out.npy",
    "out.json",
    ".out.npy.partial",
    "outputs/out/facts.json",
    "outputs/out/staged.json",
    "outputs/out/done.json",
]


@pytest.mark.parametrize("kind", [a_pipe, a_folder, a_loop])
@pytest.mark.parametrize("name", STATE)
def test_no_file_where_a_file_belongs(tmp_path: Path, kind: Callable[[Path], None], name: str) -> None:
    """What stands in the way is set aside, never waited for and never removed; the vectors are right."""
    place = unfinished(tmp_path / "place")
    path = place.workdir / name
    path.unlink(missing_ok=True)
    kind(path)
    place.lift(LAST)

    ended = place.run_here()

    assert ended.returncode == 0, ended.stderr
    assert_harmless(place, ended, name)
    # Lessons are written only when there is one.
    assert os.path.lexists(path.with_name(f"{path.name}.aside")) or name == "lessons.json"
    assert place.here("verify", str(place.workdir)).returncode == 0


@pytest.mark.parametrize(("name", "words"), [("lock", "is no file"), ("outputs/out/identity.json", "is damaged")])
@pytest.mark.parametrize("kind", [a_pipe, a_folder, a_loop])
def test_what_cannot_be_replaced_is_named(tmp_path: Path, kind: Callable[[Path], None], name: str, words: str) -> None:
    """Without lock or identity nothing is begun, and the last lines say which file it is."""
    place = unfinished(tmp_path / "place")
    path = place.workdir / name
    path.unlink()
    kind(path)

    ended = place.run_here()

    assert ended.returncode == 78, ended.stderr
    assert words in ended.stderr
    assert str(path) in ended.stderr


def test_a_foreign_final_file_is_kept(tmp_path: Path) -> None:
    """A file that somebody put at the final file's place while the run was unfinished is kept beside it."""
    place = unfinished(tmp_path / "place")
    (place.workdir / "out.npy").write_bytes(b"mine")
    place.lift(LAST)

    assert_harmless(place, place.run_here(), "foreign")

    assert (place.workdir / "out.npy.aside").read_bytes() == b"mine"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"\xff\xfe\n\n{",
        b"[" * 200_000,
        b"[]\n5\nnull\n{}\n",
        b'{"event": 5}\n{"event": "chunk_committed"}\n{"event": "halted", "code": "x"}\n{"event": "run_ended"}\n',
        b'{"event": "run_started", "outputs": 5, "t": "x"}\n',
        b'{"event": "attempt_failed", "outcome": {"a": []}}\n{"event": "chunk_committed", "texts_per_s": "x"}\n',
    ],
    ids=lambda content: repr(content[:20]),
)
@pytest.mark.parametrize("name", ["events.jsonl", "lock"])
def test_garbage_in_the_story(tmp_path: Path, content: bytes, name: str) -> None:
    """Garbage in the journal or in the lock file costs what it said, and nothing else."""
    place = complete(tmp_path / "place")
    (place.workdir / name).write_bytes(content)
    status = place.here("status", str(place.workdir), "--json")
    assert status.returncode == 0, status.stderr
    assert json.loads(status.stdout)["outputs"]["out"]["rows_done"] == len(TEXTS)
    assert_harmless(place, place.run_here(), content)
    assert json.loads(place.here("status", str(place.workdir), "--json").stdout)["state"] == "complete"


def test_garbage_holder(tmp_path: Path) -> None:
    """A lock file with the right keys and the wrong values is nobody's."""
    place = complete(tmp_path / "place")
    lock = place.workdir / "lock"
    holder = json.loads(lock.read_text())
    for key in holder:
        for value in (None, -5, 1e300, "x", [], {}):
            lock.write_text(json.dumps({**holder, key: value}))
            ended = place.here("status", str(place.workdir))
            assert ended.returncode == 0, (key, value, ended.stderr)
            lock.write_text(json.dumps({**holder, key: value}))
            assert place.run_here().returncode == 0
