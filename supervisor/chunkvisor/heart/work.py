"""Texts to be encoded, and in which order. Pure."""

from bisect import bisect_right, insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from chunkvisor_worker.contract.exits import Outcome

if TYPE_CHECKING:  # it reads the disk; the scheduler only asks it
    from chunkvisor.heart.output import OutputRun


@dataclass(frozen=True, slots=True)
class Work:
    """Texts of one chunk, to be encoded by one worker; what failed so far travels with them."""

    output: int
    chunk: int
    texts: Sequence[int]  # in order; a range for a whole chunk, else a tuple
    due_s: float = 0.0  # when they may be started
    tries: tuple[Outcome, ...] = ()  # how they failed so far, as far as that counts against them
    avoid: int | None = None  # the device on which they failed last: others are asked first
    doubt: bool = False  # they may be what made an attempt fail: the next one begins with a canary
    part: bool = False  # the chunk is searched for texts that fail: they are taken apart at the first failure
    one_by_one: bool = False  # each text is a batch by itself, so that the next end tells which one it is
    fresh: bool = False  # it does not start from a template: something has failed before

    def of(self, texts: Collection[int], **changes: Any) -> "Work":
        """Take some of the texts, of which nothing is known yet."""
        return replace(self, texts=tuple(texts), **{"tries": (), **changes})


class Backlog:
    """What is pending: a position in each output, and what was put back."""

    def __init__(self, outputs: "Sequence[OutputRun]") -> None:
        self._outputs = outputs
        self._next = [0] * len(outputs)
        self._again: list[Work] = []
        self._left: set[tuple[int, int]] = set()  # chunks left to the next run

    def put_back(self, work: Work) -> None:
        """Have the texts tried, or tried again."""
        if (work.output, work.chunk) not in self._left:
            insort(self._again, work, key=lambda each: (each.due_s, each.output, each.texts[0], each.texts[-1]))

    def lost(self, output: int, chunk: int) -> None:
        """Note that something stored of the chunk is gone."""
        if chunk < self._next[output] and (texts := self._outputs[output].missing(chunk)):
            self.put_back(Work(output, chunk, tuple(texts)))

    def leave(self, output: int, chunk: int) -> None:
        """Leave what is pending of the chunk to the next run, and what still comes back."""
        self._left.add((output, chunk))
        self._again = [work for work in self._again if (work.output, work.chunk) != (output, chunk)]

    def take(self, now_s: float, device: int, *, alone: bool) -> Work | None:
        """Take the next that may start on this device.

        What failed last on this device is left for others unless the device is `alone`.
        """
        # While no text of the output has a vector, a chunk that failed may be bad throughout: another one may show that
        # the model works, and gives a canary.
        any_new = self._any_new()
        for position in range(bisect_right(self._again, now_s, key=lambda work: work.due_s)):
            work = self._again[position]
            if any_new and work.doubt and self._outputs[work.output].known_good() is None:
                continue
            if alone or work.avoid != device:
                return self._again.pop(position)
        for number, output in enumerate(self._outputs):
            if (chunk := output.next_pending(self._next[number])) is not None:
                self._next[number] = chunk + 1
                # A range costs nothing to hold; a tuple of the texts of 50,000 chunks would.
                missing, whole = output.missing(chunk), range(*output.bounds(chunk))
                return Work(number, chunk, whole if len(missing) == len(whole) else tuple(missing))
        return None

    @property
    def empty(self) -> bool:
        """Whether nothing is pending, now or later, except what was handed out."""
        return not self._again and not self._any_new()

    def _any_new(self) -> bool:
        return any(output.next_pending(at) is not None for output, at in zip(self._outputs, self._next, strict=True))
