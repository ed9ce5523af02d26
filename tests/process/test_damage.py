"""Whatever becomes of the files of a workdir: the next run computes anew or refuses, and never
gives wrong vectors.
"""

import itertools
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from chunkvisor.sources.table import StagedTable
from chunkvisor.store.records import DamagedError
from damaged import (
    LAST,
    TEXTS,
    complete,
    empty,
    files_of,
    flip,
    flip_in_place,
    harmless,
    kept,
    truncate,
    unfinished,
    unjudged,
)
from harness import SOAK_SEED
from scripted_workplace import ScriptedWorkplace, made_once
from soaked import wide

STATES = (unfinished, unjudged, complete, kept)
DAMAGES: tuple[Callable[[Path], None], ...] = (truncate, empty, flip, flip_in_place, Path.unlink)
IDENTITY = Path(".chunkvisor/outputs/out/0001/identity.json")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("state", "damage"),
    [(unfinished, flip), (complete, Path.unlink), *wide(*itertools.product(STATES, DAMAGES))],
)
def test_any_file_damaged(
    tmp_path: Path, state: Callable[[Path], ScriptedWorkplace], damage: Callable[[Path], None]
) -> None:
    """One file is damaged or gone, and the run goes on; of several, in a soak, the identity may be
    one that nothing confirms any more: then it refuses to.
    """
    made, refused, chance = state(tmp_path / "made"), [], random.Random(SOAK_SEED)
    files = files_of(made.workdir)
    for number, name in enumerate(files):
        place = made.copy(tmp_path / str(number))
        if state is unfinished:
            place.lift(LAST)
        spoiled = {name, *(chance.sample(files, chance.randrange(3)) if SOAK_SEED else ())}
        for each in spoiled:
            damage(place.workdir / each)
        if damage is flip_in_place and any("table" in each.parts for each in spoiled):
            place.run()  # the staged texts are read without a look at each: the next run knows
        if harmless(place, (state, damage, spoiled)).returncode:
            assert IDENTITY in spoiled, spoiled
            refused.append(name)
        shutil.rmtree(place.folder)
    assert SOAK_SEED or not refused


@pytest.mark.parametrize("damage", [Path.unlink, flip])
@pytest.mark.parametrize("state", STATES)
def test_a_lost_identity(
    tmp_path: Path, state: Callable[[Path], ScriptedWorkplace], damage: Callable[[Path], None]
) -> None:
    """The source is read again; its manifest or its chunk files show that the output is of it, and
    nothing that is done is encoded again.
    """
    place = state(tmp_path / "place")
    if state is unfinished:
        place.lift(LAST)
    damage(place.workdir / IDENTITY)
    before = len(place.encoded())
    place.gives(TEXTS)
    again = place.encoded()[before:]
    assert set(again) <= ({LAST, ""} if state in (unfinished, unjudged) else set())
    assert (place.workdir / IDENTITY).is_file()


@pytest.mark.parametrize("state", [unfinished, complete])
@pytest.mark.parametrize("change", ["source", "config"])
def test_a_lost_identity_of_something_else(
    tmp_path: Path, state: Callable[[Path], ScriptedWorkplace], change: str
) -> None:
    """If the source or the config is another one than what is there was made of, the run refuses."""
    place = state(tmp_path / "place")
    (place.workdir / IDENTITY).unlink()
    if change == "source":
        place.write_source([*TEXTS, "more"])
    else:
        place.set(encode__prompt="query: ")
    before = place.calls()
    assert f"{place.workdir / IDENTITY} is missing or damaged" in place.ends(78).stderr
    assert place.calls() == before
    if state is unfinished:
        place.lift(LAST)
    place.ends(0, "--from-scratch")


def test_a_lost_identity_of_nothing(tmp_path: Path) -> None:
    """If nothing was done yet, the run begins anew."""
    place = ScriptedWorkplace.make(tmp_path, TEXTS, recovery__attempts=1)
    place.lay("t0", "damage!")
    place.ends(75)
    place.lift("t0")
    (place.workdir / IDENTITY).unlink()
    place.write_source([*TEXTS, "more"])
    place.gives([*TEXTS, "more"])


def test_damaged_in_place(tmp_path: Path) -> None:
    """A change that leaves size and modification time alone is seen in files that are not read at
    every run.
    """
    place = complete(tmp_path / "complete")
    for name in ("out.npy", "out.json", ".chunkvisor/outputs/out/final.json"):
        flip_in_place(place.workdir / name)
        changed = (place.workdir / name).read_bytes()
        ended = harmless(place, name)
        if name == "out.npy":  # it is made again; the changed one is kept under another name
            assert "out.npy.aside" in ended.stderr
            assert (place.workdir / "out.npy.aside").read_bytes() == changed
    place = unfinished(tmp_path / "unfinished")
    for name in ("texts", "offsets", "row_text", "first_row"):
        flip_in_place(place.hidden / f"outputs/out/0001/table/{name}.bin")
        assert "the staged texts are damaged" in place.ends(75).stderr
    place.lift(LAST)
    harmless(place, "table")


def test_damage_that_shows_when_nothing_is_left_to_do(tmp_path: Path) -> None:
    """The last chunk is adopted, no worker was wanted; then another one is found damaged, and
    computed again.
    """
    place = unjudged(tmp_path / "unjudged")
    (chunk,) = place.hidden.glob("outputs/out/0001/chunks/000/000002-*.npy")
    truncate(chunk)
    harmless(place, chunk)
    assert place.named("attempt_started")[-1]["chunk"] == 2


@made_once
def of_others(folder: Path) -> ScriptedWorkplace:
    """A whole run of other texts, which met the same fault."""
    texts = [f"{text}'" for text in TEXTS]
    place = ScriptedWorkplace.make(
        folder, texts, chunk__size=2, chunk__keep=True, encode__batch_size=2
    )
    place.lay(texts[0], "oom")
    place.ends(0)
    return place


@pytest.mark.parametrize(
    "what", ["table", "final.json", "facts.json", "identity.json", "lessons.json"]
)
def test_state_of_another_output(tmp_path: Path, what: str) -> None:
    """State that is whole but belongs to another output of other texts is noticed, too."""
    places = [unfinished(tmp_path / "mine"), of_others(tmp_path / "theirs")]
    mine, theirs = (_state(place, what) for place in places)
    if mine.is_dir():
        shutil.rmtree(mine)
        shutil.copytree(theirs, mine)
    else:
        shutil.copy(theirs, mine)
    if what == "final.json":
        shutil.copy(places[1].final, places[0].workdir)
    places[0].lift(LAST)
    harmless(places[0], what)


def _state(place: ScriptedWorkplace, what: str) -> Path:
    folders = {"lessons.json": "", "final.json": "outputs/out"}
    return place.hidden / folders.get(what, "outputs/out/0001") / what


def test_what_is_in_the_place(tmp_path: Path) -> None:
    """A file at the final's place is kept next to it; a folder at that of the identity is named."""
    place = unfinished(tmp_path / "place")
    place.final.write_bytes(b"mine")
    place.lift(LAST)
    harmless(place, "foreign")
    assert (place.workdir / "out.npy.aside").read_bytes() == b"mine"

    path = place.hidden / "outputs/out/0001/identity.json"
    path.unlink()
    (path / "inside").mkdir(parents=True)
    assert f"{path} cannot be used: Is a directory" in place.ends(78).stderr


@pytest.mark.parametrize("name", ["first_row", "places_of", "row_text", "texts_at"])
def test_texts_damaged_while_a_run_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whatever was about to be read of them, the run ends in words, and the next one goes on."""
    place = ScriptedWorkplace.make(tmp_path, TEXTS, chunk__size=2)
    place.lay("t1", "nan!")

    def changed(*_: object) -> None:
        raise DamagedError(f"{name} is shorter than it was")

    with monkeypatch.context() as patch:
        patch.setattr(StagedTable, name, changed)
        ended = place.ends(74)
    assert f"{name} is shorter than it was" in ended.stderr
    place.gives(TEXTS, bad=[1, 6])


@pytest.mark.parametrize("name", ["events.jsonl", "lock"])
def test_garbage_in_the_story(tmp_path: Path, name: str) -> None:
    """Garbage in the journal or in the lock file costs what it said, and nothing else."""
    place = complete(tmp_path / "place")
    garbage = (
        b'[[\xff\n{"event": 5}\n{"event": "chunk_committed"}\n{"event": "halted", "code": "x"}\n'
    )
    (place.hidden / name).write_bytes(garbage)
    assert place.progress()["rows_done"] == len(TEXTS)
    harmless(place, name)
    assert place.status()["state"] == "complete"
