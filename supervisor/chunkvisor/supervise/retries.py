"""Tries again after an attempt that failed: at once, in smaller batches, later, or when the world is ready.

Pure: it puts tasks back, and says what is to be told.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chunkvisor.decide.steps import Retry, StartAgain, Wait
from chunkvisor.supervise import instructions as do
from chunkvisor.supervise.backlog import Backlog
from chunkvisor.supervise.fleet import Fleet
from chunkvisor.supervise.lessonbook import LessonBook
from chunkvisor.supervise.runhistory import AttemptEnd, RunHistory
from chunkvisor.supervise.task import NOW
from chunkvisor_worker.contract.exits import Outcome


class Retries:
    """Of all attempts."""

    def __init__(
        self,
        history: RunHistory,
        backlog: Backlog,
        fleet: Fleet,
        book: LessonBook,
        say: Callable[[do.Instruction], None],
    ) -> None:
        """`say` hands an instruction to the driver."""
        self._history = history
        self._backlog = backlog
        self._fleet = fleet
        self._book = book
        self._say = say

    def again(self, end: AttemptEnd, *, due_s: float = NOW, fresh: bool = True, **changes: Any) -> None:
        """Put back the texts of the attempt."""
        self._backlog.put_back(replace(end.task, avoid=end.avoid, due_s=due_s, fresh=fresh, **changes))

    def retry(self, step: Retry, end: AttemptEnd) -> None:
        """Try them once more, in smaller batches where that is what helps."""
        task, device = end.task, end.device
        if step.charged:
            self._history.charge(end)
        if step.tier is not None and step.lesson and device is not None:
            self._tell(self._book.learn(device.kind, step.tier))
        self.again(
            end,
            due_s=end.now_s + step.delay_s if step.delay_s else NOW,
            tier=task.tier if step.lesson else step.tier,
            blocking_launches=step.blocking_launches,
            fresh=task.fresh or end.verdict.outcome is not Outcome.LOST,
        )

    def start_again(self, step: StartAgain, end: AttemptEnd) -> None:
        """Give the device a rest after a worker that did not start, and the texts to others first."""
        self._history.did_not_start(end)
        if end.device is not None:
            end.device.fresh_only = end.device.fresh_only or end.life_s is None
            end.device.pause(end.now_s + step.delay_s)
        # Others first: whether their workers start tells whether it is the device, or the model, or chance.
        self.again(end, due_s=end.now_s + 2 * step.delay_s)

    def wait(self, step: Wait, end: AttemptEnd) -> None:
        """Pause the device that is not ready, or all of them where it is the world."""
        waited_s = self._history.waits(end)
        _, number = self._history.cause(end)
        waits = self._fleet if number is None or end.device is None else end.device
        waits.pause(end.now_s + step.delay_s)
        self._say(do.TellWaiting(number, step.delay_s, end.verdict, waited_s))

    def _tell(self, instruction: do.Instruction | None) -> None:
        if instruction is not None:
            self._say(instruction)
