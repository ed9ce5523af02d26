"""When a living worker counts as hung, as a table of pulses."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from chunkvisor.config.model import RecoveryConfig
from chunkvisor.core.attempt import RunningAttempt
from chunkvisor.judge import EndedBy, Pulse
from chunkvisor_worker.contract.messages import Beat, Limits, Phase

PATIENCE = RecoveryConfig(startup_timeout=100, stall_timeout=10)
STARTING = (
    None,
    Phase.START,
    Phase.IMPORT,
    Phase.MODEL_LOAD,
    Phase.TOKENIZE,
    Phase.CUDA_INIT,
    Phase.WEIGHTS_COPY,
)
WORKING = (Phase.FORWARD, Phase.WRITE, Phase.DONE)


def pulse(phase: Phase | None, *, changed_s: float = 0, started_s: float = 0) -> Pulse:
    """A worker in a phase, whose last news came at `changed_s`."""
    return Pulse(started_s, changed_s, Beat(1, 2, phase) if phase else None)


@pytest.mark.parametrize(
    ("worker", "now_s", "words"),
    [
        *((pulse(phase), 99.0, "") for phase in STARTING),
        *((pulse(phase), 101.0, "startup_timeout") for phase in STARTING),
        *((pulse(phase, changed_s=100), 101.0, "startup_timeout") for phase in STARTING),
        (pulse(Phase.READY), 101.0, "startup_timeout"),
        *((pulse(phase, changed_s=500), 509.0, "") for phase in WORKING),
        *(
            (pulse(p, changed_s=500), 511.0, f"no progress for 11 s in phase {p} (stall_timeout)")
            for p in WORKING
        ),
        (pulse(Phase.START, started_s=50), 149.0, ""),
    ],
)
def test_overdue(worker: Pulse, now_s: float, words: str) -> None:
    """Before the first batch the start-up time counts, afterwards the time since the last sign of
    progress.
    """
    why = worker.overdue(now_s, PATIENCE)
    assert bool(why) == bool(words)
    assert words in why


def test_same_beat_is_no_sign_of_life() -> None:
    """Only another sequence number counts, also a lower one; a missing or damaged beat changes
    nothing.
    """
    first = Pulse(0, 0).with_beat(Beat(5, 2, Phase.FORWARD), 1)
    assert first.changed_s == 1
    assert first.with_beat(Beat(5, 2, Phase.FORWARD, rows_done=9), 7) == first
    assert first.with_beat(None, 7) == first
    assert first.with_beat(Beat(6, 2, Phase.FORWARD), 7).changed_s == 7
    assert first.with_beat(Beat(1, 2, Phase.FORWARD), 7).changed_s == 7


def test_a_suspended_run_calls_no_worker_hung() -> None:
    """If the parent itself was stopped, by docker pause say, its workers get all of their time
    anew; one that hangs after it is ended.
    """
    nobody: Any = SimpleNamespace(
        folder=SimpleNamespace(add_log_line=lambda _: None), worker=SimpleNamespace(signal=id)
    )
    attempt = RunningAttempt(
        1, cast("Any", None), nobody, nobody.folder, nobody.worker, Limits(1), started_s=0
    )
    attempt.pulse = pulse(Phase.FORWARD)
    for now_s in (*range(9), *range(1000, 1010)):
        attempt.poll(now_s, PATIENCE)
        assert attempt.ended_by is EndedBy.ITSELF, now_s
    for now_s in (1010, 1011):
        attempt.poll(now_s, PATIENCE)
    assert attempt.ended_by is EndedBy.HANG


def test_wait_at_the_gate_does_not_count_as_start_up() -> None:
    """The start-up time goes on where it stopped when the worker became ready."""
    ready = Pulse(0, 0).with_beat(Beat(1, 2, Phase.READY), 60)
    after_gate = ready.after_pause(1060, 1000)
    assert not after_gate.overdue(1099, PATIENCE)
    assert "startup_timeout" in after_gate.overdue(1101, PATIENCE)
