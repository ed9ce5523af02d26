"""Texts to be encoded, in which order, and what is known of each output. Pure."""

from bisect import bisect_right, insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Limits


class DevicePlace(NamedTuple):
    """A device, and the machine of a cluster that it belongs to."""

    device: int
    node: str = ""
    """Empty for our own machine."""


@dataclass(frozen=True, slots=True)
class Work:
    """Texts of one chunk, to be encoded by one worker; what failed so far travels with them."""

    output: int
    chunk: int
    texts: Sequence[int]
    """In order; a range for a whole chunk, else a tuple."""
    due_s: float = 0.0
    """When they may be started."""
    tries: tuple[Outcome, ...] = ()
    """How they failed so far, as far as that counts against them."""
    avoid: int | None = None
    """The device on which they failed last: others are asked first."""
    doubt: bool = False
    """Whether they may be what made an attempt fail: the next one begins with a canary."""
    part: bool = False
    """Whether the chunk is searched for texts that fail: these are taken apart at the first failure."""
    one_by_one: bool = False
    """Whether each text is to be in a batch by itself, so that the next end tells which one it is."""
    shortest_first: bool = False
    """Whether its shortest text is to show if it is for its length that a GPU's memory does not suffice."""
    lacking: bool = False
    """Whether that one lacked memory, too."""
    fresh: bool = False
    """Whether not to start from a template: something has failed before."""
    blocking: bool = False
    """Whether to set CUDA_LAUNCH_BLOCKING=1, so that the traceback names the kernel that failed."""

    def of(self, texts: Collection[int], **changes: Any) -> "Work":
        """Take some of the texts, of which nothing is known yet."""
        return replace(self, texts=tuple(texts), **{"tries": (), "shortest_first": False, **changes})


class OutputProgress(Protocol):
    """What is done of one output: the loop writes it down, the scheduler only reads it."""

    @property
    def name(self) -> str:
        """Name the output, as the config has it."""

    @property
    def limits(self) -> Limits:
        """Give the batch limits of the config, before any lesson."""

    @property
    def texts(self) -> int:
        """Count the distinct texts."""

    @property
    def bad_count(self) -> int:
        """Count the texts in quarantine."""

    def bounds(self, chunk: int) -> tuple[int, int]:
        """Give the first text of the chunk, and one past its last."""

    def next_pending(self, start: int) -> int | None:
        """Find the first chunk from `start` on of which a text has neither a vector nor a verdict."""

    def missing(self, chunk: int) -> Sequence[int]:
        """List those texts of the chunk, in order."""

    def known_good(self) -> int | None:
        """Name a text that has its vector, short and not blank if there is one; None while no text has."""

    def bad_rows(self) -> int:
        """Count the rows without a vector: more than texts, where a text stands in several rows."""

    def rows_of(self, text: int) -> int:
        """Count the rows that have the text."""


class Backlog:
    """What is pending: a position in each output, and what was put back."""

    def __init__(self, outputs: Sequence[OutputProgress]) -> None:
        self._outputs = outputs
        self._next = [0] * len(outputs)
        self._again: list[Work] = []

    def put_back(self, work: Work) -> None:
        """Have the texts tried, or tried again."""
        insort(self._again, work, key=_order)

    def lost(self, output: int, chunk: int) -> None:
        """Note that something stored of the chunk is gone."""
        if chunk < self._next[output] and (texts := self._outputs[output].missing(chunk)):
            self.put_back(Work(output, chunk, tuple(texts)))

    def take(self, now_s: float, device: int, *, alone: bool) -> Work | None:
        """Take the next that may start on this device.

        What failed last on this device is left for others unless the device is `alone`. While no text of an output was
        ever encoded, chunks that have not been tried come before those that failed: the texts that fail may be few.
        """
        # While no text of the output has a vector, a chunk that failed may be bad throughout: another one may show that
        # the model works, and gives a canary.
        any_new = self._any_new()
        for position in range(bisect_right(self._again, now_s, key=lambda work: work.due_s)):
            work = self._again[position]
            if any_new and work.doubt and self._outputs[work.output].known_good() is None:
                continue
            # Another device is asked first: it shows whether it is the texts or the device.
            if alone or work.avoid != device:
                return self._again.pop(position)
        return self._take_new()

    def _take_new(self) -> Work | None:
        for number, output in enumerate(self._outputs):
            if (chunk := output.next_pending(self._next[number])) is not None:
                self._next[number] = chunk + 1
                # A range costs nothing to hold; a tuple of the texts of 50,000 chunks would.
                missing, whole = output.missing(chunk), range(*output.bounds(chunk))
                return Work(number, chunk, whole if len(missing) == len(whole) else tuple(missing))
        return None

    def due(self, now_s: float) -> bool:
        """Say whether a device could be given something now."""
        return bool(self._again and self._again[0].due_s <= now_s) or self._any_new()

    @property
    def empty(self) -> bool:
        """Whether nothing is pending, now or later, except what was handed out."""
        return not self._again and not self._any_new()

    def _any_new(self) -> bool:
        return any(output.next_pending(at) is not None for output, at in zip(self._outputs, self._next, strict=True))


def _order(work: Work) -> tuple[float, int, int, int]:
    return work.due_s, work.output, work.texts[0], work.texts[-1]
