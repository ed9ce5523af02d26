"""Bugs that were mended, put back one at a time: a history has to find each."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

from chunkvisor.core.policy import FailureHistory, Repeated
from chunkvisor.core.scheduler import GateState, Scheduler

_ended, _attempt_failed, _history = (
    Scheduler.attempt_finished,
    Scheduler._attempt_failed,
    Scheduler._history,
)
_retry, _split = Scheduler._retry, Scheduler._split
_record = FailureHistory.record


def _go_before_verdict(self: Any, end: Any) -> Any:
    worker = self.workers[end.worker]
    worker.gate = GateState.PASSED if worker.gate is GateState.OPEN else worker.gate
    self._open_gates(worker.device, self._clock())
    return _ended(self, end)


def _learn_whatever_comes(self: Any, kind: str, limit: Any) -> Any:
    self._lessons[kind] = limit
    return limit


def _alone_is_proof(self: Any, task: Any, end: Any, *rest: Any) -> Any:
    return replace(
        _history(self, task, end, *rest),
        any_text_succeeded=end.any_text_succeeded or len(task.texts) == 1,
    )


def _one_look(self: Any, task: Any, end: Any, *rest: Any) -> Any:
    return replace(_history(self, task, end, *rest), charged_failures=1)


def _no_canary_fails(self: Any, *given: Any) -> Any:
    return replace(_history(self, *given), failed_canaries=0)


def _trust_templates(self: Any, step: Any, task: Any, *rest: Any) -> None:
    _retry(self, step, replace(task, cold_start=False), *rest)
    for device in self.alive:
        device.cold_start = False


def _wait_by_the_sum(self: Any, what: Any, where: Any = None, *rest: Any, **named: Any) -> None:
    _record(self, what, where, *rest, **named)
    self._streaks[what, where].first_s -= 5


def _suspect_no_device(self: Any, task: Any, end: Any, verdict: Any, worker: Any) -> None:
    doubted = worker.device.needs_canary
    _attempt_failed(self, task, end, verdict, worker)
    worker.device.needs_canary = doubted


def _count_splits(self: Any, *given: Any) -> None:
    self._failures.record(Repeated.NO_PROGRESS)
    _split(self, *given)


def _keep_no_grace(_self: Any, _now_s: float) -> None:
    return None


def _store_late(self: Any, end: Any) -> Any:
    """Decide as if what was salvaged did not count before the disk has answered."""
    with (
        mock.patch.object(FailureHistory, "note_stored", _store_nothing),
        mock.patch.object(Scheduler, "_history", _without_salvage),
    ):
        return _ended(self, end)


def _store_nothing(_self: Any, _output: int, _now_s: float) -> None:
    return None


def _without_salvage(self: Any, task: Any, end: Any, *rest: Any) -> Any:
    good = self._outputs[task.output].known_good is not None
    return replace(_history(self, task, end, *rest), output_has_vectors=good)


BUGS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "go before the verdict": (Scheduler, "attempt_finished", _go_before_verdict),
    "a wider lesson replaces a narrower": (FailureHistory, "lower_limit", _learn_whatever_comes),
    "a text alone is taken for a proof": (Scheduler, "_history", _alone_is_proof),
    "a text is blamed at the first look": (Scheduler, "_history", _one_look),
    "canaries that fail are not counted": (Scheduler, "_history", _no_canary_fails),
    "a broken GPU gets warm workers for ever": (Scheduler, "_retry", _trust_templates),
    "wait_timeout is summed over workers": (FailureHistory, "record", _wait_by_the_sum),
    "no device is suspected": (Scheduler, "_attempt_failed", _suspect_no_device),
    "what was salvaged counts only once it is stored": (Scheduler, "attempt_finished", _store_late),
    "nobody is asked to leave, nor ended in time": (Scheduler, "_drain", _keep_no_grace),
    "splits count as fruitless": (Scheduler, "_split", _count_splits),
}
"""(where, what, the bug)."""
