"""Which texts are worked on next.

Pure: it holds no more than what was put back: the rest is a position in each output.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from chunkvisor.decide.bisect import BadText
from chunkvisor_worker.contract.messages import Limits, Tier

NOW = 0.0
"""Due at any time: before all that is due at a time of its own, in the order of the texts."""


class Progress(Protocol):
    """What is done of one output; the driver writes it down, the scheduler only reads it."""

    limits: Limits
    """Of the config, before any lesson."""

    @property
    def name(self) -> str:
        """Of the output, as the config has it."""

    @property
    def chunks(self) -> int:
        """Chunks in all, those of other slices included."""

    @property
    def left(self) -> int:
        """Our chunks that are not committed."""

    @property
    def complete(self) -> bool:
        """Whether all chunks are committed, and the output can be joined by us."""

    @property
    def whole(self) -> bool:
        """Whether all chunks are ours; of a slice they are not."""

    @property
    def has_facts(self) -> bool:
        """Whether the vectors' dimension is known."""

    @property
    def bad_count(self) -> int:
        """Texts in quarantine."""

    def bad_rows(self) -> int:
        """Rows that have one of them: more, where a text stands in several."""

    def rows_of(self, text: int) -> int:
        """Rows that have the text."""

    @property
    def last_bad(self) -> BadText | None:
        """The last of them."""

    @property
    def texts(self) -> int:
        """Distinct texts of the whole output."""

    def bounds(self, chunk: int) -> tuple[int, int]:
        """First text of the chunk, and one past its last."""

    def next_pending(self, start: int) -> int | None:
        """The first of our chunks from `start` on that is not committed."""

    def missing(self, chunk: int) -> list[tuple[int, int]]:
        """Ranges of texts that have neither vectors nor a verdict, in order, cut where the chunk was taken apart."""

    def known_good(self) -> tuple[int, int] | None:
        """(chunk, text) of a text that has a vector; None where there is none yet."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A device, and the machine that it belongs to."""

    device: int
    node: str = ""


@dataclass(order=True, frozen=True, slots=True)
class Task:
    """Texts to be worked on: a chunk, or a part of one; none of them = its parts are to be put together."""

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
    avoid: Seat | None = field(default=None, compare=False)
    """Where it has failed last."""
    control: bool = field(default=False, compare=False)
    """Whether the text is known to be good, and encoded again only to see whether the device can do it."""
    hole: bool = field(default=False, compare=False)
    """Whether the others of its batches have their vectors."""
    only: int | None = field(default=None, compare=False)
    """The device that it is for; None = any."""

    @property
    def key(self) -> tuple[int, int, int]:
        """Which texts: output, first, one past the last."""
        return self.output, self.start, self.stop

    @property
    def texts(self) -> int:
        """How many."""
        return self.stop - self.start


class Backlog:
    """Pending texts of all outputs, in order; what is to be tried again comes first when it is due."""

    def __init__(self, outputs: Sequence[Progress]) -> None:
        self._outputs = outputs
        self._positions = [0] * len(outputs)
        self._again: list[Task] = []

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
        others are to say whose fault it was. With `far`, one that is as far as can be from what was put back first.
        """
        if far and (task := self._take_new(now_s)) is not None:
            return task
        passed_over, found = [], None
        while found is None and self._again and self._again[0].due_s <= now_s:
            task = heapq.heappop(self._again)
            if (seat is not None and _avoids(task, seat, alone=alone, by_node=by_node)) or (
                far and self._again and self._again[0].due_s <= now_s
            ):
                passed_over.append(task)
            else:
                found = task
        for task in passed_over:
            self.put_back(task)
        return found or self._take_new(now_s)

    def _take_new(self, now_s: float) -> Task | None:
        for number, output in enumerate(self._outputs):
            while (chunk := output.next_pending(self._positions[number])) is not None:
                self._positions[number] = chunk + 1
                missing = output.missing(chunk)
                whole = missing == [output.bounds(chunk)]
                first = output.bounds(chunk)[0]
                ranges = missing or [(first, first)]
                tasks = [Task(now_s if whole else NOW, number, chunk, *part, fresh=not whole) for part in ranges]
                for other in tasks[1:]:
                    self.put_back(other)
                return tasks[0]
        return None

    def handed_out(self, output: int, chunk: int) -> bool:
        """Whether `take` has come past the chunk: what is missing of it comes back only if it is put back."""
        return chunk < self._positions[output]

    def due(self, now_s: float) -> bool:
        """Whether some device could be given something now."""
        if self._again and self._again[0].due_s <= now_s:
            return True
        return any(
            output.next_pending(position) is not None
            for output, position in zip(self._outputs, self._positions, strict=True)
        )

    @property
    def empty(self) -> bool:
        """Whether nothing is pending, neither now nor later, but what was handed out."""
        outputs = zip(self._outputs, self._positions, strict=True)
        return not self._again and all(output.next_pending(position) is None for output, position in outputs)

    def put_back(self, task: Task) -> None:
        """Have the texts tried, or tried again."""
        heapq.heappush(self._again, task)

    def withdraw(self, task: Task) -> bool:
        """Take back what was put back; False where it has been handed out meanwhile."""
        kept = [each for each in self._again if each is not task]
        found = len(kept) < len(self._again)
        heapq.heapify(kept)
        self._again = kept
        return found


def _avoids(task: Task, seat: Seat, *, alone: bool, by_node: bool) -> bool:
    if task.only is not None:
        return task.only != seat.device
    if alone or task.avoid is None:
        return False
    return task.avoid.node == seat.node if by_node else task.avoid.device == seat.device
