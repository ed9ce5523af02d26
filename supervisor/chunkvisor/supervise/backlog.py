"""Which chunk is worked on next.

It never starts anything, and holds no more than the chunks that have failed: the rest is a position in each output.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from chunkvisor.store.ledger import Ledger
from chunkvisor_worker.contract.messages import Tier


@dataclass(order=True, frozen=True, slots=True)
class Task:
    """Texts to be worked on: a chunk, or a part of one that is being taken apart; none = its parts are to be joined."""

    due_s: float
    """Not before this time on the supervisor's clock."""
    output: int
    """Position of the output in the config."""
    chunk: int
    start: int
    """First distinct text."""
    stop: int
    """One past the last."""
    tier: Tier | None = field(default=None, compare=False)
    """Narrower batch limits for this try alone."""
    blocking_launches: bool = field(default=False, compare=False)
    fresh: bool = field(default=False, compare=False)
    """Whether the worker has to be a new interpreter: something has failed before."""
    avoid: str = field(default="", compare=False)
    """Machine of a cluster, or device, on which it has failed last."""


class Backlog:
    """Pending chunks of all outputs, in order; what is to be tried again comes first when it is due."""

    def __init__(self, ledgers: Sequence[Ledger]) -> None:
        self._ledgers = ledgers
        self._positions = [0] * len(ledgers)
        self._again: list[Task] = []

    def take(self, now_s: float, place: str = "") -> Task | None:
        """The next task that may start now; it is not handed out twice unless it is put back.

        With a `place`, none that has failed there: others are to say whether it is the fault of that place.
        """
        passed_over, found = [], None
        while found is None and self._again and self._again[0].due_s <= now_s:
            task = heapq.heappop(self._again)
            if place and task.avoid == place:
                passed_over.append(task)
            else:
                found = task
        for task in passed_over:
            self.put_back(task)
        return found or self._take_new(now_s)

    def _take_new(self, now_s: float) -> Task | None:
        for output, ledger in enumerate(self._ledgers):
            while (chunk := ledger.next_pending(self._positions[output])) is not None:
                self._positions[output] = chunk + 1
                tasks = [Task(now_s, output, chunk, *part) for part in ledger.parts(chunk).missing()]
                for other in tasks[1:]:
                    self.put_back(other)
                if tasks:
                    return tasks[0]
            self._positions[output] = ledger.plan.count
        return None

    def handed_out(self, output: int, chunk: int) -> bool:
        """Whether `take` has come past the chunk: what is missing of it comes back only if it is put back."""
        return chunk < self._positions[output]

    @property
    def empty(self) -> bool:
        """Whether nothing is pending, neither now nor later, but what was handed out."""
        outputs = zip(self._ledgers, self._positions, strict=True)
        return not self._again and all(ledger.next_pending(position) is None for ledger, position in outputs)

    def put_back(self, task: Task) -> None:
        """Have the texts tried, or tried again."""
        heapq.heappush(self._again, task)

    def next_due_s(self) -> float | None:
        """When the first of what was put back may start; None where none waits."""
        return self._again[0].due_s if self._again else None
