"""A stop that gives little notice: SIGTERM leaves `recovery.grace`, --stop-after what is left of
its time.

The encoder does a call of 32 texts as soon as a file lets it, so that tests decide how far a chunk
is.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness import Process, finish, kill, local_engine_only, wait_for
from scripted_workplace import ScriptedWorkplace

TEXTS = [f"text {number}" for number in range(320)]
"""One chunk, ten calls."""


Begun = tuple[ScriptedWorkplace, Process]


def begun(folder: Path, **changes: Any) -> Begun:
    """A run that is in its fifth call, and waits in it."""
    place = made(folder, **changes)
    process = place.begin_to(5)
    return place, process


def made(folder: Path, **changes: Any) -> ScriptedWorkplace:
    """A workplace whose fifth call waits until it is released."""
    changes = {"chunk__size": len(TEXTS), "encode__batch_size": 8, **changes}
    place = ScriptedWorkplace.make(folder, TEXTS, **changes)
    place.lay("text 128", "wait_for_release")
    return place


def check_resume(place: ScriptedWorkplace, *, lost: set[str]) -> None:
    """The next run ends well, with no text encoded twice but for these."""
    place.release()
    place.gives(TEXTS)
    counts = Counter(place.encoded())
    assert {text for text, count in counts.items() if count > 1} <= lost


def test_sigterm_saves_what_a_chunk_has_encoded_and_loses_nothing(tmp_path: Path) -> None:
    """A worker that cannot finish its chunk in time leaves after a batch under way: no text is
    encoded twice.
    """
    place, process = begun(tmp_path / "place", recovery__grace="25s")
    process.terminate()
    wait_for(lambda: place.named("worker_leaving"))
    place.release()
    ended = finish(process, code=143)
    done = len(place.calls())
    # The word takes a while: the worker may be in its next batch when it hears it.
    assert 5 <= done < 10
    assert f"kept {32 * done} texts that the attempt had finished" in ended.stderr
    assert not place.named("attempt_failed")
    assert place.status()["state"] == "stopped"
    assert not (place.workdir / "report.html").exists(), "there is no time for a report"
    check_resume(place, lost=set())
    assert len(place.calls()) == 10


def test_a_batch_that_does_not_end_within_the_grace_is_given_up(tmp_path: Path) -> None:
    """The run has ended by then; it loses the batch under way, and no other."""
    place, process = begun(tmp_path / "place", recovery__grace=1)
    process.terminate()
    finish(process, code=143)  # nobody lets the call go on
    assert [event["texts"] for event in place.named("batches_kept")] == [128]
    assert not place.named("attempt_failed")
    check_resume(place, lost=set(TEXTS[128:160]))


# what a node has encoded comes home when its worker ends: see docs/how-to/several-machines.md
@local_engine_only
def test_the_end_of_a_spot_machine_costs_one_batch(tmp_path: Path) -> None:
    """SIGTERM, and SIGKILL for everything before the grace is over: the next run finds every batch
    but one.
    """
    place, process = begun(tmp_path / "place", recovery__grace=6)
    process.terminate()
    wait_for(lambda: place.named("worker_leaving"))
    kill(process)

    check_resume(place, lost=set(TEXTS[128:160]))


def test_stop_after_ends_a_run_with_75_and_the_next_goes_on(tmp_path: Path) -> None:
    """Its time being over, it saves what is under way as a SIGTERM would, and says that running
    again goes on.
    """
    place = made(tmp_path / "place")
    ended = finish(place.begin("--stop-after", "3s"), code=75)

    assert "stopped after 3 s, as --stop-after asks" in ended.stderr
    assert "Run the same command again to continue" in ended.stderr
    assert [event["signal"] for event in place.named("draining")] == ["--stop-after"]
    # How far it came within its time is the machine's affair.
    check_resume(place, lost=set(TEXTS[128:160]))


@pytest.mark.parametrize("text", ["soon", "-1", "0", "3 weeks"])
def test_stop_after_wants_a_time(tmp_path: Path, text: str) -> None:
    """What is no time is a usage error that says what one looks like."""
    place = ScriptedWorkplace.make(tmp_path, TEXTS[:8])

    ended = place.ends(2, "--stop-after", text)
    assert '"90s", "10m" or "3h"' in ended.stderr
