"""Stopping a run by signals, as a terminal, a scheduler or a person does."""

import signal
from signal import SIGHUP, SIGINT, SIGTERM

import psutil
import pytest

from harness import Process, Workplace, finish, wait_for

TEXTS = [f"text {number}" for number in range(12)]
"""Three chunks of four; the second waits until it is released."""


@pytest.fixture
def waiting(workplace: Workplace) -> Process:
    """A run whose second chunk is on the device."""
    workplace.prepare(
        TEXTS, "waiting:make", model__kwargs={"chunk": 1}, chunk__size=4, workers__standby=1
    )
    process = workplace.begin()
    wait_for((workplace.folder / "waiting").exists)
    # It computes while the one before it, if there was one, is being committed.
    wait_for(
        lambda: {event["chunk"] for event in workplace.named("go")} == committed(workplace) | {1}
    )
    return process


def committed(workplace: Workplace) -> set[int]:
    """The chunks that are committed; which of two was ready first is left to chance."""
    return {event["chunk"] for event in workplace.named("chunk_committed")}


def check_resume(workplace: Workplace) -> None:
    """The same command goes on, does no chunk again, and ends with the right vectors."""
    workplace.release()
    workplace.gives(TEXTS)
    assert committed(workplace) == {0, 1, 2}
    assert len(workplace.named("chunk_committed")) == 3


@pytest.mark.parametrize(
    ("number", "code"), [(SIGINT, 130), (SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_first_signal_drains(
    workplace: Workplace, waiting: Process, number: signal.Signals, code: int
) -> None:
    """The chunk on the device is finished and committed, nothing new is begun, and a standby is not
    charged.
    """
    before = committed(workplace)
    waiting.send_signal(number)
    wait_for(lambda: workplace.named("draining"))
    workplace.release()
    ended = finish(waiting, code=code)
    assert f"stopped by {number.name}" in ended.stderr
    assert "Run the same command again" in ended.stderr
    assert committed(workplace) == before | {1}
    status = workplace.status()
    assert status["state"] == "stopped"
    assert status["outputs"]["out"]["chunks_done"] == len(before) + 1
    assert not workplace.named("attempt_failed")
    check_resume(workplace)


def test_hangup_is_ignored(workplace: Workplace, waiting: Process) -> None:
    """A closed terminal does not end the run."""
    worker = psutil.Process(waiting.pid).children()
    waiting.send_signal(SIGHUP)
    workplace.release()
    finish(waiting, code=0)
    assert worker
    workplace.has(TEXTS)


def test_signal_ends_a_wait(workplace: Workplace) -> None:
    """A run that waits for the hub or the disk does not wait to the end before it obeys."""
    workplace.prepare(
        TEXTS,
        "misbehaving:make",
        model__kwargs={"plan": {"out/0": "hub_429@load"}, "times": None},
        chunk__size=4,
    )
    process = workplace.begin()
    wait_for(lambda: workplace.named("waiting"))
    process.send_signal(SIGTERM)
    finish(process, code=143)
    assert workplace.status()["state"] == "stopped"
