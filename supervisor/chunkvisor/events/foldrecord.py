"""A fold as plain values, of which JSON makes the same again: so a reader need not begin at a journal's first event.

It never says what the values mean: `fold` does.
"""

from dataclasses import dataclass
from typing import Any

from chunkvisor.events.concern import Troubles
from chunkvisor.events.workers import Worker


@dataclass(slots=True)
class OutputCounts:
    """How far an output is, as the events tell."""

    rows: int
    distinct: int
    chunks: int
    chunks_done: int
    texts_done: int
    complete: bool = False


@dataclass(frozen=True, slots=True)
class UnderWay:
    """An attempt under way."""

    output: str
    chunk: int
    attempt: int
    worker: Worker


@dataclass(frozen=True, slots=True)
class Named:
    """A device."""

    number: int
    name: str


@dataclass(frozen=True, slots=True)
class FoldRecord:
    """A fold as plain values, of which JSON makes the same again."""

    workdir: str | None
    invocation: str
    slice: str
    ending: dict[str, Any] | None
    workers: tuple[UnderWay, ...]
    troubles: Troubles
    began_s: float
    told_s: float
    doing: str
    devices: tuple[Named, ...]
    nodes: dict[str, tuple[int, ...]]
    outputs: dict[str, OutputCounts]
    apart: dict[str, tuple[int, ...]]
    first_go_s: float | None
    texts_here: int
    tokens_here: int
    chunks_here: int
    points: tuple[tuple[float, ...], ...]
