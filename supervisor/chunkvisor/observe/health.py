"""Decides whether the person should worry about a run, and says so in one sentence.

Pure: it looks only at the state of the run and at what its workers do.
"""

from collections.abc import Sequence

from chunkvisor.events.event import Severity
from chunkvisor.events.state import RunState
from chunkvisor.observe.snapshot import RunHealth, WorkerState
from chunkvisor.units import human_time

_SILENCE_S = 60.0
"""No batch of a sensible model takes as long."""


def health_of(state: RunState, workers: Sequence[WorkerState], now_s: float, *, live: bool) -> RunHealth:
    """The gravest matter of the moment."""
    if live and state.waits_for:
        left_s = state.waits_until_s - now_s
        doing = f"waiting for {human_time(left_s)}, then it goes on by itself" if left_s > 0 else "trying again"
        return RunHealth(Severity.CARE, f"{doing}: {state.waits_for}")
    silent = max((worker for worker in workers if live), key=lambda worker: worker.silent_s, default=None)
    if silent is not None and silent.silent_s > _SILENCE_S:
        for_long = human_time(silent.silent_s)
        words = f"no progress in chunk {silent.chunk} for {for_long}; if that lasts, it is tried anew by itself"
        return RunHealth(Severity.CARE, words)
    lost = []
    if state.quarantined:
        none = f"{_count(state.quarantined, 'text')} could not be encoded"
        lost.append(f"{none} and {'will be NaN' if live else 'got no vector'}")
    if state.set_aside:
        lost.append(f"{_count(state.set_aside, 'chunk')} given up for now, running again tries them anew")
    if state.dropped:
        lost.append(f"{_count(state.dropped, 'device')} left out")
    if lost:
        return RunHealth(Severity.LOSS, "; ".join(lost))
    if state.failed:
        several = state.failed > 1
        tried = ("are" if several else "is") if live else ("were" if several else "was")
        words = f"{_count(state.failed, 'attempt')} failed and {tried} tried again; nothing is lost"
        return RunHealth(Severity.CARE, words)
    return RunHealth(Severity.NEWS, "all is well" if live else "without a fault")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
