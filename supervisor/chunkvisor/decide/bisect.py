"""Takes a failing chunk apart until the texts that make it fail stand alone.

Pure. What is known of a chunk that is being taken apart is its good parts and its bad texts;
the rest is missing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from chunkvisor_worker.contract.exits import Outcome


@dataclass(frozen=True, slots=True)
class Part:
    """Vectors of texts start..stop, but for the holes."""

    start: int
    stop: int
    digest: str
    """Checksum of the part's file."""
    holes: tuple[int, ...] = ()
    """Texts of the range whose vectors are not good."""


@dataclass(frozen=True, slots=True)
class BadText:
    """A text that fails alone."""

    text: int
    """Its number among the distinct texts."""
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring texts whose vectors come from one part; part None = they have none."""

    start: int
    stop: int
    part: Part | None


def missing(start: int, stop: int, parts: Sequence[Part], bad: Iterable[BadText]) -> list[tuple[int, int]]:
    """The ranges of texts that are neither in a part nor bad, in order."""
    return [(each.start, each.stop) for each in _runs(start, stop, parts, bad) if isinstance(each, _Gap)]


def segments(start: int, stop: int, parts: Sequence[Part], bad: Iterable[BadText]) -> list[Segment]:
    """Where the vectors of the range come from, in order; nothing may be missing."""
    runs = list(_runs(start, stop, parts, bad))
    assert not any(isinstance(each, _Gap) for each in runs)
    return [each for each in runs if isinstance(each, Segment)]


@dataclass(frozen=True, slots=True)
class _Gap:
    start: int
    stop: int


def _runs(start: int, stop: int, parts: Sequence[Part], bad: Iterable[BadText]) -> Iterator[Segment | _Gap]:
    """Neighbouring texts of one origin, in order; a later part goes before an earlier one."""
    origin: list[Part | _Gap | None] = [_Gap(0, 0)] * (stop - start)
    for part in parts:
        holes = set(part.holes)
        for text in range(max(start, part.start), min(stop, part.stop)):
            if text not in holes:
                origin[text - start] = part
    for each in bad:
        origin[each.text - start] = None
    first = start
    for text in range(start + 1, stop + 1):
        if text == stop or origin[text - start] is not origin[first - start]:
            source = origin[first - start]
            yield _Gap(first, text) if isinstance(source, _Gap) else Segment(first, text, source)
            first = text
