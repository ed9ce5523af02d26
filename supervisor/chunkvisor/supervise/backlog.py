"""Which texts are worked on next.

Pure: it holds no more than what was put back: the rest is a position in each output.
"""

import itertools
from bisect import bisect_right, insort
from collections.abc import Collection, Sequence

from chunkvisor.supervise.progress import Progress
from chunkvisor.supervise.task import NOW, Seat, Task

ALONE_MAX = 8
"""Where more texts than this wait to be tried alone, they are tried before any others."""


class Backlog:
    """Pending texts of all outputs, in order; what is to be tried again comes first when it is due."""

    def __init__(self, outputs: Sequence[Progress]) -> None:
        self._outputs = outputs
        self._positions = [0] * len(outputs)
        self._again: list[Task] = []
        """Sorted by when they are due, then by their texts."""
        self._given_up: set[tuple[int, int]] = set()
        """(output, chunk) of those of which nothing more is tried."""

    def take(
        self,
        now_s: float,
        seat: Seat | None = None,
        *,
        alone: bool = False,
        by_node: bool = False,
        far: bool = False,
    ) -> Task | None:
        """The next task that may start now on the seat; it is not handed out twice unless it is put back.

        Unless the seat is `alone`, none that has failed last on that device, or (`by_node`) on that machine: the
        others are to say whose fault it was. With `far`, one that is as far as can be from what was put back first;
        a control, which decides about all of those, comes before any.
        """
        due = range(bisect_right(self._again, now_s, key=_due_s))
        for position in due:
            if self._again[position].control and (seat is None or self._again[position].only == seat.device):
                return self._again.pop(position)
        if far and (task := self._take_new(now_s)) is not None:
            return task
        order: Sequence[int] = due[::-1] if far else due
        if far and sum(self._again[position].texts == 1 for position in due) > ALONE_MAX:
            order = sorted(order, key=lambda position: self._again[position].texts)
        for position in order:
            if seat is None or not _avoids(self._again[position], seat, alone=alone, by_node=by_node):
                return self._again.pop(position)
        return self._take_new(now_s)

    def _take_new(self, now_s: float) -> Task | None:
        for number, output in enumerate(self._outputs):
            chunk = output.next_pending(self._positions[number])
            if chunk is not None:
                self._positions[number] = chunk + 1
                bounds = output.bounds(chunk)
                missing = output.missing(chunk)
                if missing == [bounds]:
                    return Task(now_s, number, chunk, *bounds)
                if not missing:
                    return Task(NOW, number, chunk, bounds[0], bounds[0], fresh=True)
                first, *others = left_of(Task(NOW, number, chunk, *bounds, fresh=True), missing, output.cuts(chunk))
                for other in others:
                    self.put_back(other)
                return first
        return None

    def handed_out(self, output: int, chunk: int) -> bool:
        """Whether `take` has come past the chunk: what is missing of it comes back only if it is put back."""
        return chunk < self._positions[output]

    def due(self, now_s: float) -> bool:
        """Whether some device could be given something now."""
        return bool(self._again and self._again[0].due_s <= now_s) or self._any_new()

    @property
    def empty(self) -> bool:
        """Whether nothing is pending, neither now nor later, but what was handed out."""
        return not self._again and not self._any_new()

    def _any_new(self) -> bool:
        """Whether there is a pending chunk that was not handed out yet."""
        pending = (output.next_pending(self._positions[number]) for number, output in enumerate(self._outputs))
        return any(chunk is not None for chunk in pending)

    def put_back(self, task: Task) -> None:
        """Have the texts tried, or tried again, unless their chunk was given up."""
        if task.control or not self.gave_up(task):
            insort(self._again, task, key=_order)

    def give_up(self, task: Task) -> None:
        """Try nothing more of its chunk in this run."""
        self._given_up.add((task.output, task.chunk))
        self._again = [each for each in self._again if each.control or not self.gave_up(each)]

    def gave_up(self, task: Task) -> bool:
        """Whether its chunk was given up as a whole."""
        return (task.output, task.chunk) in self._given_up

    def holds(self, task: Task) -> bool:
        """Whether what was put back has not been handed out yet."""
        return any(each is task for each in self._again)

    def withdraw(self, task: Task) -> bool:
        """Take back what was put back; False where it has been handed out meanwhile."""
        found = self.holds(task)
        self._again = [each for each in self._again if each is not task]
        return found


def left_of(task: Task, missing: Sequence[tuple[int, int]], cuts: Collection[int]) -> list[Task]:
    """What is left of a chunk, in order: a task for each of the parts that it was taken apart into."""
    edges, found = sorted(cuts), []
    for _, ranges in itertools.groupby(missing, key=lambda each: bisect_right(edges, each[0])):
        found.append(task.of([text for each in ranges for text in range(*each)], part=bool(edges)))
    return found


def _due_s(task: Task) -> float:
    return task.due_s


def _order(task: Task) -> tuple[float, int, int, int]:
    return task.due_s, task.output, task.start, task.stop


def _avoids(task: Task, seat: Seat, *, alone: bool, by_node: bool) -> bool:
    if task.only is not None:
        return task.only != seat.device
    if alone or task.avoid is None:
        return False
    return task.avoid.node == seat.node if by_node else task.avoid.device == seat.device
