"""Running again is resuming: whatever was killed, whenever, the same command ends with the same
bytes.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import expected, local_engine_only, sweep
from killed import TEXTS, assert_whole, eventful
from scripted_workplace import ScriptedWorkplace


@local_engine_only
@pytest.mark.parametrize(
    ("targets", "share"),
    [
        (("chunkvisor.events.journal:Journal.write",), "2:a"),
        (("os:replace", "os:rename", "os:fsync", "os:rmdir"), "5:a"),
    ],
    ids=["events", "renames and syncs"],
)
def test_killed_again_and_again(tmp_path: Path, targets: tuple[str, ...], share: str) -> None:
    """A folder in which every run was killed at a new place, once before each of them, still comes
    out right.
    """
    template = eventful(tmp_path / "template").folder
    told = sweep("chain", "before", template, tmp_path / "chain", *targets, share=share)
    assert told[-1]["returncode"] == 0, told[-1]["stderr"]
    assert not [line for line in told if "Traceback" in line["stderr"]]
    assert_whole(Path(told[-1]["folder"]))
    killed_at = [line["call"].split()[0] for line in told[:-1]]
    assert set(killed_at) <= {re.split("[:.]", target)[-1] for target in targets}
    assert len(killed_at) >= 6


@local_engine_only
@pytest.mark.parametrize(
    ("fault", "first"),
    [("kill_worker", 0), ("kill_supervisor", -9), ("kill_both", -9)],
    ids=lambda value: str(value),
)
def test_killed_while_computing(tmp_path: Path, fault: str, first: int) -> None:
    """A worker that is killed is replaced at once; where the supervisor is killed, the next run
    goes on.
    """
    place = ScriptedWorkplace.make(tmp_path / "place", TEXTS, chunk__size=2)
    place.lay("t2", fault)
    assert place.run().returncode == first
    assert place.run().returncode == 0
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS))
    canary = Counter({("t0",): not first})
    assert (
        Counter(map(tuple, place.calls())) == Counter({("t0", "t1"): 1, ("t2", "t3"): 2}) + canary
    )


@pytest.mark.parametrize(
    "change",
    [
        {"encode__batch_size": 1},
        {"chunk__size": 1000},
        {"chunk__keep": True},
        {"env__OTHER": "1"},
    ],
    ids=str,
)
def test_tuning_may_change(tmp_path: Path, change: dict[str, Any]) -> None:
    """What only changes how the work is done may change at a resume; only what is missing is
    computed.
    """
    place = ScriptedWorkplace.make(tmp_path / "place", TEXTS, chunk__size=2, recovery__attempts=1)
    place.lay("t0", "damage!")
    assert place.run_here().returncode == 75
    place.lift("t0")
    done_before = len(place.calls())
    place.write_config("scripted:make", **{"chunk__size": 2, "recovery__attempts": 1, **change})
    ended = place.run_here()
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS))
    assert [text for call in place.calls()[done_before:] for text in call] == ["t0", "t1"]
    assert ("keeps chunks of 2 texts" in ended.stderr) == ("chunk__size" in change)
    assert (place.hidden / "outputs/out/0001" / "chunks").exists() == ("chunk__keep" in change)
