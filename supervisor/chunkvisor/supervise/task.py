"""Texts to be worked on: a chunk, or a part of one."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from chunkvisor_worker.contract.messages import Tier

NOW = 0.0
"""Due at any time: before all that is due at a time of its own, in the order of the texts."""

TaskKey: TypeAlias = tuple[int, int, int, tuple[int, ...]]
"""Output, first text, one past the last, and those between that are left out."""


class Seat(NamedTuple):
    """A device, and the machine that it belongs to."""

    device: int
    node: str = ""


class Control(Enum):
    """A text that is encoded only to see whether the device can do it."""

    KNOWN_GOOD = "known good"
    """It has its vector already."""
    PROBE = "probe"
    """A short one, where none is known to be good."""


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
    control: Control | None = None
    """None = its vectors are wanted."""
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
