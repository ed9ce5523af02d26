"""Bugs that were mended, put back one at a time: a history has to find each."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

from chunkvisor.heart.policy import Memory
from chunkvisor.heart.scheduler import GateState, Scheduler

_ended, _fail, _history = Scheduler.ended, Scheduler._fail, Scheduler._history
_retry, _split = Scheduler._retry, Scheduler._split
_note = Memory.note


def _go_before_verdict(self: Any, end: Any) -> Any:
    worker = self.workers[end.worker]
    worker.gate = GateState.PASSED if worker.gate is GateState.OPEN else worker.gate
    self._open_gates(worker.device, self._clock())
    return _ended(self, end)


def _learn_whatever_comes(self: Any, kind: str, lesson: Any) -> Any:
    self._lessons[kind] = lesson
    return lesson


def _alone_is_proof(self: Any, work: Any, end: Any, *rest: Any) -> Any:
    return replace(_history(self, work, end, *rest), proven=end.proven or len(work.texts) == 1)


def _one_look(self: Any, work: Any, end: Any, *rest: Any) -> Any:
    return replace(_history(self, work, end, *rest), tries=1)


def _no_canary_fails(self: Any, *given: Any) -> Any:
    return replace(_history(self, *given), canaries=0)


def _trust_templates(self: Any, step: Any, work: Any, *rest: Any) -> None:
    _retry(self, step, replace(work, fresh=False), *rest)
    for device in self.alive:
        device.fresh = False


def _wait_by_the_sum(self: Any, what: Any, where: Any = None, *rest: Any, **named: Any) -> None:
    _note(self, what, where, *rest, **named)
    self._streaks[what, where].first_s -= 5


def _suspect_no_device(self: Any, work: Any, end: Any, verdict: Any, worker: Any) -> None:
    doubted = worker.device.doubt
    _fail(self, work, end, verdict, worker)
    worker.device.doubt = doubted


def _count_splits(self: Any, *given: Any) -> None:
    self._memory.note("fruitless")
    _split(self, *given)


def _keep_no_grace(_self: Any, _now_s: float) -> None:
    return None


def _store_late(self: Any, end: Any) -> Any:
    """Decide as if what was salvaged did not count before the disk has answered."""
    with (
        mock.patch.object(Memory, "stored", _store_nothing),
        mock.patch.object(Scheduler, "_history", _without_salvage),
    ):
        return _ended(self, end)


def _store_nothing(_self: Any, _output: int, _now_s: float) -> None:
    return None


def _without_salvage(self: Any, work: Any, end: Any, *rest: Any) -> Any:
    good = self._outputs[work.output].known_good() is not None
    return replace(_history(self, work, end, *rest), good=good)


BUGS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "go before the verdict": (Scheduler, "ended", _go_before_verdict),
    "a wider lesson replaces a narrower": (Memory, "learn", _learn_whatever_comes),
    "a text alone is taken for a proof": (Scheduler, "_history", _alone_is_proof),
    "a text is blamed at the first look": (Scheduler, "_history", _one_look),
    "canaries that fail are not counted": (Scheduler, "_history", _no_canary_fails),
    "a broken GPU gets warm workers for ever": (Scheduler, "_retry", _trust_templates),
    "wait_timeout is summed over workers": (Memory, "note", _wait_by_the_sum),
    "no device is suspected": (Scheduler, "_fail", _suspect_no_device),
    "what was salvaged counts only once it is stored": (Scheduler, "ended", _store_late),
    "nobody is asked to leave, nor ended in time": (Scheduler, "_drain", _keep_no_grace),
    "splits count as fruitless": (Scheduler, "_split", _count_splits),
}
"""(where, what, the bug)."""
