"""A container that is frozen, or a laptop that is closed: nobody is killed for the time in which nobody ran."""

import signal
import time
from pathlib import Path

import psutil
import pytest

from harness import expected, finish, wait_for
from scripted_workplace import ScriptedWorkplace

TEXTS = [f"text {number}" for number in range(16)]
STALL_S = 8


@pytest.mark.soak(only=True)  # once in three whole suites it did not get as far as its freeze in time
def test_a_frozen_run_kills_nobody(tmp_path: Path) -> None:
    """C4: supervisor, template and workers stand still for longer than stall_timeout, and go on as if nothing was."""
    place = ScriptedWorkplace.make(
        tmp_path / "place",
        TEXTS,
        chunk__size=8,
        workers={"start": "warm", "standby": 1},
        recovery__stall_timeout=STALL_S,
        recovery__attempts=1,
    )
    place.lay("text 0", "wait_for_release")
    run = place.start("run", str(place.config_path))
    wait_for(place.calls)
    # The template, the worker under way and the one that is prepared.
    wait_for(lambda: len(psutil.Process(run.pid).children(recursive=True)) == 3)
    tree = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]

    for process in tree:
        process.send_signal(signal.SIGSTOP)
    wait_for(lambda: all(process.status() == psutil.STATUS_STOPPED for process in tree))
    time.sleep(STALL_S + 1)  # the frozen time itself
    for process in tree:  # the supervisor first: the workers have nothing new to tell when it looks at them
        process.send_signal(signal.SIGCONT)
    wait_for(lambda: any("stood still" in event.get("text", "") for event in place.events()))
    (place.folder / "release").touch()
    ended = finish(run)

    assert ended.returncode == 0, ended.stderr
    assert place.vectors().tobytes() == expected(TEXTS).tobytes()
    assert len(place.calls()) == 2
    assert not [event for event in place.events() if "failed" in event["event"] or "interrupted" in event["event"]]
