"""Which texts are worked on next.

Pure: it holds no more than what was put back: the rest is a position in each output.
"""

import itertools
from bisect import bisect_right, insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeAlias

from chunkvisor.decide.bisect import BadText
from chunkvisor_worker.contract.messages import Limits, Tier

NOW = 0.0
"""Due at any time: before all that is due at a time of its own, in the order of the texts."""


TaskKey: TypeAlias = tuple[int, int, int, tuple[int, ...]]
"""Output, first text, one past the last, and those between that are left out."""


ALONE_MAX = 8
"""Where more texts than this wait to be tried alone, they are tried before any others."""


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

    def cuts(self, chunk: int) -> Collection[int]:
        """Texts before which the chunk was taken apart."""

    def known_good(self) -> tuple[int, int] | None:
        """(chunk, text) of a text that has a vector; None where there is none yet."""


class Seat(NamedTuple):
    """A device, and the machine that it belongs to."""

    device: int
    node: str = ""


@dataclass(frozen=True, slots=True)
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
    tier: Tier | None = None
    """Narrower batch limits for this try alone."""
    blocking_launches: bool = False
    fresh: bool = False
    """Whether the worker has to be a new interpreter: something has failed before."""
    avoid: Seat | None = None
    """Where it has failed last."""
    control: bool = False
    """Whether the text is known to be good, and encoded again only to see whether the device can do it."""
    hole: bool = False
    """Whether the others of its batches have their vectors."""
    only: int | None = None
    """The device that it is for; None = any."""
    skip: tuple[int, ...] = ()
    """Texts of the range that are not its own, in order: they have their vectors, or are looked at by themselves."""
    part: bool = False
    """Whether the chunk was taken apart, to find texts that fail."""

    @property
    def key(self) -> TaskKey:
        """Which texts."""
        return self.output, self.start, self.stop, self.skip

    @property
    def texts(self) -> int:
        """How many."""
        return self.stop - self.start - len(self.skip)

    @property
    def wanted(self) -> list[int]:
        """The texts, in order."""
        skip = frozenset(self.skip)
        return [text for text in range(self.start, self.stop) if text not in skip]

    def of(self, texts: Collection[int], **changes: Any) -> "Task":
        """The same for some of its texts, of which there is at least one."""
        start, stop = min(texts), max(texts) + 1
        own = frozenset(texts)
        skip = tuple(text for text in range(start, stop) if text not in own)
        return replace(self, start=start, stop=stop, skip=skip, **changes)


class Backlog:
    """Pending texts of all outputs, in order; what is to be tried again comes first when it is due."""

    def __init__(self, outputs: Sequence[Progress]) -> None:
        self._outputs = outputs
        self._positions = [0] * len(outputs)
        self._again: list[Task] = []
        """Sorted by when they are due, then by their texts."""

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
        due = range(bisect_right(self._again, now_s, key=_due_s))
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
        """Have the texts tried, or tried again."""
        insort(self._again, task, key=_order)

    def withdraw(self, task: Task) -> bool:
        """Take back what was put back; False where it has been handed out meanwhile."""
        found = any(each is task for each in self._again)
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
