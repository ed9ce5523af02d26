"""Runs and slices that are killed at any call that touches the disk, by chance, and come out right all the same."""

import random
from pathlib import Path

import numpy as np

from harness import expected, sweep
from killed import assert_whole, eventful
from scripted_workplace import ScriptedWorkplace

JOURNAL = "chunkvisor.events.journal:Journal.write"
CALLS = (
    JOURNAL,
    "os:replace",
    "os:rename",
    "os:fsync",
    "os:rmdir",
    "os:unlink",
    "os:mkdir",
    "os:ftruncate",
    "os:write",
)
SLICED = ["t0", "t1", "t0", "t2", "t3", "t1", "t4", "t5", "t2"]


def a_lot(chance: random.Random, one_in: int) -> str:
    """Which calls are deadly, one in so many."""
    return f"{one_in}:{chance.randrange(1 << 32)}"


def test_killed_once(tmp_path: Path, chance: random.Random) -> None:
    """Before or after any such call: the next run completes, and the bytes are right."""
    template, calls = eventful(tmp_path / "template").folder, chance.sample(CALLS, 3)
    told = sweep(
        "each", chance.choice(["before", "after"]), template, tmp_path / "each", *calls, share=a_lot(chance, 6), most=10
    )
    for line in told:
        assert line["returncode"] == 0, line
        assert "Traceback" not in line["stderr"], line
        assert_whole(Path(line["folder"]))


def test_killed_again_and_again(tmp_path: Path, chance: random.Random) -> None:
    """At one such call after another, in the same folder, until a run comes to its end."""
    template = eventful(tmp_path / "template").folder
    when = chance.choice(["before", "after"])
    told = sweep("chain", when, template, tmp_path / "chain", *CALLS, share=a_lot(chance, 5), most=25)
    assert told[-1]["returncode"] == 0, told[-1]
    assert not [line for line in told if "Traceback" in line["stderr"]]
    assert_whole(Path(told[-1]["folder"]))


def test_slice_killed_again_and_again(tmp_path: Path, chance: random.Random) -> None:
    """The slice that joins, killed at one such call after another, still completes the whole."""
    place = ScriptedWorkplace.make(tmp_path / "place", SLICED, chunk__size=2)
    for which in ("1/3", "3/3"):
        assert place.run_here("--slice", which).returncode == 0
    calls = [JOURNAL, *chance.sample(CALLS[1:], 2)]
    when, share = chance.choice(["before", "after"]), a_lot(chance, 3)
    told = sweep("chain", when, place.folder, tmp_path / "chain", *calls, options="--slice 2/3", share=share, most=20)
    assert told[-1]["returncode"] == 0, told[-1]["stderr"]
    assert not [line for line in told if "Traceback" in line["stderr"]]
    whole = ScriptedWorkplace(Path(told[-1]["folder"]))
    np.testing.assert_array_equal(whole.vectors(), expected(SLICED))
    assert not (whole.workdir / "outputs" / "out" / "chunks").exists()
