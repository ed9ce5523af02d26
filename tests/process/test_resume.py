"""Running again is resuming: whatever was killed, whenever, the same command ends with the same
bytes.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from harness import SOAK_SEED, local_engine_only, sweep
from killed import TEXTS, assert_whole, eventful, killed_anywhere
from scripted_workplace import ScriptedWorkplace
from soaked import wide

EVENTS = ("chunkvisor.events.journal:Journal.write",)
SYNCS = tuple(f"os:{name}" for name in ("replace", "rename", "fsync", "rmdir"))
CALLS = (*EVENTS, *SYNCS, *(f"os:{name}" for name in ("unlink", "mkdir", "ftruncate", "write")))


@pytest.mark.soak
@local_engine_only
@pytest.mark.parametrize("when", ["before", *wide("after")])
@pytest.mark.parametrize(
    ("targets", "share"),
    [(EVENTS, "2:a"), (SYNCS, "5:a"), *wide((CALLS, f"5:{SOAK_SEED}"))],
    ids=["events", "renames and syncs", *wide("all")],
)
def test_killed_again_and_again(
    tmp_path: Path, when: str, targets: tuple[str, ...], share: str
) -> None:
    """A folder in which every run was killed at a new place, once before each of them, still comes
    out right.
    """
    template = eventful(tmp_path / "template").folder
    told = sweep("chain", when, template, tmp_path / "chain", *targets, share=share, most=25)
    assert told[-1]["returncode"] == 0, told[-1]["stderr"]
    assert not [line for line in told if "Traceback" in line["stderr"]]
    assert_whole(Path(told[-1]["folder"]))
    killed_at = [line["call"].split()[0] for line in told[:-1]]
    assert set(killed_at) <= {re.split("[:.]", target)[-1] for target in targets}
    assert len(killed_at) >= 6


@pytest.mark.soak(only=True)
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_once(tmp_path: Path, when: str) -> None:
    """At some calls that touch the disk: the next run completes, and the bytes are right."""
    place, share = eventful(tmp_path / "template"), f"20:{SOAK_SEED}"
    for left in killed_anywhere(place, tmp_path / "each", when, share, *CALLS, soak=share, most=10):
        assert_whole(left.folder)


CHANGES: dict[str, Any] = {
    "encode__batch_size": 1,
    "chunk__size": 1000,
    "chunk__keep": True,
    "env__OTHER": "1",
}


@pytest.mark.parametrize("change", CHANGES)
def test_tuning_may_change(tmp_path: Path, change: str) -> None:
    """What only changes how the work is done may change at a resume; only what is missing is
    computed.
    """
    place = ScriptedWorkplace.make(tmp_path, TEXTS, chunk__size=2, recovery__attempts=1)
    place.lay("t0", "damage!")
    place.ends(75)
    place.lift("t0")
    done_before = len(place.encoded())
    place.set(**{change: CHANGES[change]})
    ended = place.gives(TEXTS)
    assert place.encoded()[done_before:] == ["t0", "t1"]
    assert ("is ignored: this output began with 2" in ended.stderr) == (change == "chunk__size")
    assert (place.hidden / "outputs/out/0001" / "chunks").exists() == (change == "chunk__keep")
