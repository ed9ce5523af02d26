"""Bugs that were mended, put back one at a time: to see that lives find them, and how soon."""

import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from chunkvisor.decide.lessons import learn
from chunkvisor.decide.steps import Split
from chunkvisor.supervise import stimuli as on
from chunkvisor.supervise.blame import Blame
from chunkvisor.supervise.consequences import Consequences
from chunkvisor.supervise.draining import Draining
from chunkvisor.supervise.lessonbook import LessonBook
from chunkvisor.supervise.retries import Retries
from chunkvisor.supervise.runhistory import RunHistory
from chunkvisor.supervise.scheduler import Scheduler

from .life import simulate
from .watchdog import Broken

_heed_worker, _do, _wait = Scheduler._heed_worker, Consequences._do, Retries.wait
_failed = RunHistory.failed
_encoded = Blame.encoded


def _go_before_verdict(self: Any, stimulus: Any, now_s: float) -> None:
    worker = self.fleet.workers.get(stimulus.worker)
    if isinstance(stimulus, on.Ended) and worker is not None and not self._drain.begun:
        _heed_worker(self, on.Freed(stimulus.worker), now_s)
    _heed_worker(self, stimulus, now_s)


def _learn_whatever_comes(self: Any, kind: str, tier: Any) -> Any:
    return self._change(kind, learn(self._lessons.get(kind, ()), tier))


def _blame_by_any_success(self: Any, _device: int, _go_s: float, _task: Any) -> None:
    known, self._undecided = self._undecided, []
    for each in known:
        self._quarantine(each)


def _blame_at_once(self: Any, accused: Any) -> None:
    self._quarantine(accused)


def _blame_by_earlier_workers(self: Any, device: int, _go_s: float, task: Any) -> None:
    _encoded(self, device, math.inf, task)


def _trust_templates(self: Any, step: Any, end: Any) -> None:
    _do(self, step, end)
    for device in self._fleet.alive:
        device.fresh_only = False


def _wait_by_the_sum(self: Any, step: Any, end: Any) -> None:
    _wait(self, step, end)
    self._history._waits._since_s[self._history.cause(end)] -= step.delay_s


def _suspect_no_device(self: Any) -> Any:
    return ()


def _keep_lost_controls(self: Any) -> None:
    return None


def _try_no_short_text(self: Any, output: int) -> None:
    return None


def _blame_by_other_chunks(_self: Any, _accused: Any) -> bool:
    return False


def _count_splits(self: Any, end: Any, step: Any) -> None:
    self._fruitless += isinstance(step, Split)
    _failed(self, end, step)


def _keep_no_grace(_self: Any, _now_s: float) -> None:
    return None


BUGS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "go before the verdict": (Scheduler, "_heed_worker", _go_before_verdict),
    "a wider lesson replaces a narrower": (LessonBook, "learn", _learn_whatever_comes),
    "a text is blamed by a success on another device": (Blame, "encoded", _blame_by_any_success),
    "a text is blamed without a control": (Blame, "accuse", _blame_at_once),
    "a text is blamed by a worker that had the device before": (Blame, "encoded", _blame_by_earlier_workers),
    "a broken GPU gets warm workers for ever": (Consequences, "_do", _trust_templates),
    "wait_timeout is summed over workers": (Retries, "wait", _wait_by_the_sum),
    "no device is suspected": (RunHistory, "guilty", _suspect_no_device),
    "texts accused on a lost device wait for it": (Blame, "_acquit_on_lost_devices", _keep_lost_controls),
    "no short text is tried": (Blame, "_short_text", _try_no_short_text),
    "a text is too long by a success in another chunk": (Blame, "_awaits_shorter", _blame_by_other_chunks),
    "nobody is asked to leave, nor ended in time": (Draining, "turn", _keep_no_grace),
    "splits count as fruitless": (RunHistory, "failed", _count_splits),
}
"""(where, what, the bug)."""


def lives_to_find(bug: str, first: int, most: int, size: str = "small") -> tuple[int | None, str]:
    """How many lives from that seed on it takes to find the bug, at most so many; and what tells it."""
    owner, name, broken = BUGS[bug]
    with mock.patch.object(owner, name, broken):
        for lives in range(most):
            try:
                simulate(first + lives, size)
            except Broken as found:
                return lives + 1, found.invariant
    return None, ""


def table(starts: int, most: int) -> None:
    """Print a table of all bugs."""
    for bug in BUGS:
        began, found, told = time.process_time(), [], set[str]()
        for start in range(starts):
            lives, invariant = lives_to_find(bug, random.Random(start).randrange(10**9), most)
            found.append(lives if lives is not None else most)
            told.add(invariant)
        took_s = (time.process_time() - began) / starts
        lives_of = f"{statistics.median(found):.0f} ({min(found)} to {max(found)})"
        print(f"| {bug} | {lives_of} | {took_s:.1f} s | {'; '.join(sorted(told))} |", flush=True)
