"""Bugs of one line that are planted in the real program: a history or a life has to find each.

To plant another one, copy some code that stands once in a function into `right`, write what is to
stand there instead into `wrong`, and run `pytest tests/simulator -k PART_OF_ITS_NAME`. The function
is compiled anew with that change; nothing else is different. `python -m tests.simulator --bug NAME`
plays fresh lives with the bug, and prints how to replay the first that breaks.
"""

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from chunkvisor.core.attempt import RunningAttempt
from chunkvisor.core.loop import Loop
from chunkvisor.core.policy import FailureHistory
from chunkvisor.core.scheduler import Scheduler
from chunkvisor.core.store import ResultStore
from chunkvisor.store.ledger import Parts


@dataclass(frozen=True)
class Bug:
    """Wrong code in the place of right code."""

    owner: Any
    """The class or the module that has the function."""
    function: str
    right: str
    wrong: str
    seed: int = 0
    """Where to begin to look for a small life that finds the bug."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Replace the function while the context lasts.

        Raises AssertionError if the right code does not stand in it exactly once.
        """
        found = inspect.getattr_static(self.owner, self.function)
        function = found.fget if isinstance(found, property) else found
        assert isinstance(function, FunctionType)
        text = textwrap.dedent(inspect.getsource(function))
        assert text.count(self.right) == 1, f"{self.function} has no such line any more"
        made: dict[str, Any] = {}
        code = compile(
            "from __future__ import annotations\n" + text.replace(self.right, self.wrong),
            "planted",
            "exec",
        )
        exec(code, sys.modules[function.__module__].__dict__, made)
        setattr(self.owner, self.function, made[function.__name__])
        try:
            yield
        finally:
            setattr(self.owner, self.function, found)


BUGS_FOR_HISTORIES = {
    "go before the verdict": Bug(
        Scheduler,
        "attempt_finished",
        "self._forget_device(device)",
        "self._open_gates(device, now_s)",
    ),
    "a wider lesson replaces a narrower": Bug(
        FailureHistory,
        "lower_limit",
        "self._lessons[kind] = new",
        "self._lessons[kind] = new = limit",
    ),
    "a text alone is taken for a proof": Bug(
        Scheduler,
        "_history",
        "any_text_succeeded=end.any_text_succeeded",
        "any_text_succeeded=end.any_text_succeeded or len(task.texts) == 1",
    ),
    "a text is blamed at the first look": Bug(
        Scheduler,
        "_history",
        "charged_failures=task.charged_failures.count(verdict.outcome)",
        "charged_failures=1",
    ),
    "canaries that fail are not counted": Bug(
        Scheduler,
        "_history",
        "failed_canaries=failures.count(Repeated.CANARY, device, worker.gate_opened_s)",
        "failed_canaries=0",
    ),
    "a broken GPU gets warm workers for ever": Bug(
        Scheduler,
        "_start_worker",
        "cold_start=task.cold_start or device.cold_start",
        "cold_start=False",
    ),
    "wait_timeout is summed over workers": Bug(
        FailureHistory,
        "record",
        "_Streak(0, now_s, -math.inf))",
        "_Streak(0, now_s, -math.inf)); streak.first_s -= 5",
    ),
    "no device is suspected": Bug(
        Scheduler,
        "_attempt_failed",
        "device.needs_canary = device.needs_canary or needs_canary",
        "pass",
    ),
    "what was salvaged counts only once it is stored": Bug(
        Scheduler, "attempt_finished", "self._failures.note_stored(task.output, now_s)", "pass"
    ),
    "nobody is asked to leave, nor ended in time": Bug(
        Scheduler, "_drain", "in self.workers.values()", "in ()"
    ),
    "splits count as fruitless": Bug(
        Scheduler,
        "_split",
        "texts = list(task.texts)",
        "texts = list(task.texts); self._failures.record(Repeated.NO_PROGRESS)",
    ),
}
"""By name, bugs that were mended once: a history holds each of them, however seldom a life meets
it."""

BUGS_FOR_LIVES = {
    "E8: the scheduler does not hear at once that a worker is gone": Bug(
        Loop, "_conclude", "self._scheduler.worker_exited(attempt.number)", "pass", seed=484
    ),
    "E0: parts are given in the order in which they were stored": Bug(
        Parts,
        "good_texts",
        "sorted(itertools.chain(*(part.texts for part in self._index.parts)))",
        "list(itertools.chain(*(part.texts for part in self._index.parts)))",
        seed=440,
    ),
    "the end of a lost machine stays a stop": Bug(
        Loop, "_conclude", "attempt.ended_by = EndedBy.ITSELF", "pass", seed=513
    ),
    "who was asked to leave is not noted": Bug(
        Loop, "_do", "running[worker].asked_to_stop = True", "pass", seed=239
    ),
    "who leaves when asked to counts as ended by others": Bug(
        Loop, "_conclude", "attempt.ended_by = EndedBy.STOP", "pass", seed=239
    ),
    "a run never gets used to neighbors": Bug(
        Loop,
        "_attempt_failed",
        "attempt.handle.accept_others(verdict.figures.others_bytes)",
        "pass",
        seed=311,
    ),
    "no worker is killed": Bug(
        RunningAttempt,
        "_next_signal",
        "self.worker.signal(number)",
        "number is not signal.SIGKILL and self.worker.signal(number)",
        seed=28,
    ),
    "a worker that has ended well has its device until the verdict": Bug(
        Loop,
        "_conclude",
        "self._execute(self._scheduler.worker_called(attempt.number, freed=True))",
        "pass",
    ),
    "a hang is not seen": Bug(RunningAttempt, "poll", "self.end(EndedBy.HANG, why, now_s)", "pass"),
    "finished batches of a failed attempt are forgotten": Bug(
        Loop, "_judge", "done=frozenset(start + row for row in left.done)", "done=frozenset()"
    ),
    "every attempt is taken for proven": Bug(
        Loop,
        "_judge",
        "any_text_succeeded=bool(left.done) or some_good or folder.canary_passed()",
        "any_text_succeeded=True",
        seed=92,
    ),
    "a device that is dropped is used again": Bug(
        Scheduler, "_lose_device", "device.gone = True", "pass"
    ),
    "a damaged chunk is not computed again": Bug(
        Loop, "_turn", "self._scheduler.chunk_invalidated(output, chunk)", "pass", seed=63
    ),
    "vectors that a full disk refused are forgotten": Bug(
        Scheduler, "stored", "self._unstored.append(instruction)", "pass", seed=381
    ),
    "a signal that comes again stops nothing": Bug(
        Loop, "_check_signals", "self._execute(self._scheduler.stop(-math.inf))", "pass", seed=16
    ),
    "a device that was found sound is asked again for ever": Bug(
        Scheduler, "_judge_health", "device.suspected_s = None", "pass", seed=13
    ),
    "a device that may be broken is not looked at": Bug(
        Scheduler, "_open_gates", "if device.suspected_s is not None:", "if False:", seed=13
    ),
    "workers beyond per_device": Bug(
        Scheduler,
        "_open_gates",
        "self._workers.per_device - device.count_workers(GateState.OPEN)",
        "self._workers.per_device",
    ),
    "an output is joined before one that needs its vectors is planned": Bug(
        ResultStore, "_is_ready", "not is_awaited and", "True and"
    ),
    "an output is planned while another, which has its texts, is worked at": Bug(
        Scheduler,
        "_plan_outputs",
        "self._queue.pending() | {each.task.output for each in held}",
        "self._queue.pending()",
    ),
}
"""By name, bugs that a life finds."""
