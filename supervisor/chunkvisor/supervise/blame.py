"""Which texts are quarantined.

Pure. A text that fails alone is blamed only once another text has been encoded after its chunk began to fail: until
then it may be the device or the model. Such texts are undecided. Where nothing else is left to try, a text that is known to be good
is encoded once more, alone, as a control: if that fails as well, it is not the texts.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from chunkvisor.decide import lastwords
from chunkvisor.decide.bisect import BadText
from chunkvisor.decide.outcome import Verdict
from chunkvisor.supervise import instructions as do
from chunkvisor.supervise.backlog import NOW, Backlog, Progress, Task
from chunkvisor_worker.contract.exits import Outcome

UNDECIDED_MAX = 20
"""So many texts in a row that fail alone, and none that does not, and no further one is tried before a control."""


class Blame:
    """Texts that fail alone."""

    def __init__(
        self,
        outputs: Sequence[Progress],
        limit: lastwords.BadRows,
        backlog: Backlog,
        say: Callable[[do.Instruction], None],
    ) -> None:
        self._outputs = outputs
        self._limit = limit
        self._backlog = backlog
        self._say = say
        self._encoded = 0
        """Attempts of this run that gave vectors."""
        self._before: dict[tuple[int, int], int] = {}
        """How many there were when the chunk failed first, by output and chunk."""
        self._undecided: list[tuple[Task, Verdict, int]] = []
        """(text, how it failed, the worker)."""
        self._control: Task | None = None
        self._told = 0
        """Texts whose quarantine the driver has not confirmed yet."""
        self.last: BadText | None = None

    @property
    def undecided(self) -> bool:
        """Whether there are texts that fail alone, and nothing to compare them with."""
        return bool(self._undecided)

    def failed(self, task: Task) -> None:
        """An attempt at these texts failed."""
        self._before.setdefault((task.output, task.chunk), self._encoded)

    def encoded(self) -> None:
        """Some text has got its vector: those that fail alone do so by themselves."""
        self._encoded += 1
        undecided, self._undecided = self._undecided, []
        for task, verdict, worker in undecided:
            self._quarantine(task, verdict, worker)

    def accuse(self, task: Task, verdict: Verdict, worker: int) -> None:
        """The text fails alone."""
        sure = verdict.outcome is Outcome.BAD_INPUT or self._encoded > self._before[task.output, task.chunk]
        if sure:
            self._quarantine(task, verdict, worker)
        else:
            self._undecided.append((task, verdict, worker))

    def settle(self, *, nothing_else: bool) -> None:
        """Find out about texts that are undecided, where nothing else is under way or there are too many of them."""
        if not self._undecided or self._control is not None:
            return
        if not nothing_else and len(self._undecided) < UNDECIDED_MAX:
            return
        task, verdict, worker = self._undecided[-1]
        for number, output in enumerate(self._outputs):
            if (good := output.known_good()) is not None:
                chunk, text = good
                self._control = Task(NOW, number, chunk, text, text + 1, fresh=True, control=True)
                self._backlog.put_back(self._control)
                return
        name = self._outputs[task.output].name
        self._say(do.HaltRun(lastwords.nothing_encoded(name, task.chunk, verdict), worker))

    def control_ended(self, worker: int, task: Task, verdict: Verdict) -> None:
        """A text that is known to be good was encoded once more, or was not."""
        self._say(do.Discard(worker, task, verdict))
        if verdict.blameless:
            self._backlog.put_back(replace(task, due_s=NOW))
            return
        self._control = None
        if verdict.outcome is Outcome.COMMITTED:
            self.encoded()
        else:
            name = self._outputs[task.output].name
            self._say(do.HaltRun(lastwords.control_failed(name, task.chunk, verdict), worker))

    def confirmed(self) -> None:
        """The driver has noted a quarantine, or could not: the progress counts it from now on."""
        self._told -= 1

    def _quarantine(self, task: Task, verdict: Verdict, worker: int) -> None:
        count = 1 + self._told + sum(output.bad_count for output in self._outputs)
        if self._limit.fail or count > self._limit.limit:
            self._say(do.HaltByBadRows(worker, task, verdict, count))
            return
        self._told += 1
        self.last = BadText(task.start, verdict.outcome, verdict.reason)
        self._say(do.Quarantine(task, verdict))
