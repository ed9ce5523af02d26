"""The time axis of a workdir that was worked on now and then: running time, with the pauses cut out."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from chunkvisor.units import human_moment, human_time

_GAP, _GAPS = 0.012, 0.2
"""Shares of the width that a pause takes, and that all may take together."""
_IN_SECONDS_S = 600
"""So short a time is told by its seconds, a longer one by day and minute."""
_STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_UNITS = ((86400 * 3, 86400, "days"), (3600 * 3, 3600, "hours"), (60 * 3, 60, "minutes"), (0, 1, "seconds"))


@dataclass(frozen=True, slots=True)
class Span:
    """While the run lived, seconds since the epoch."""

    start_s: float
    stop_s: float


@dataclass(frozen=True, slots=True)
class Mark:
    """Words at a place of the axis, from 0 to 1 of its width."""

    at: float
    words: str


@dataclass(frozen=True, slots=True)
class Pause:
    """A time without a run."""

    at: float
    width: float
    words: str


class Timeline:
    """Maps times to places from 0 to 1."""

    def __init__(self, spans: Iterable[Span]) -> None:
        """Spans in order; those that overlap, as after the clock was set back, are cut to fit."""
        self.spans: list[Span] = []
        for span in spans:
            start_s = max(span.start_s, self.spans[-1].stop_s if self.spans else span.start_s)
            self.spans.append(Span(start_s, max(start_s, span.stop_s)))
        self.running_s = sum(span.stop_s - span.start_s for span in self.spans)
        gaps = max(1, len(self.spans) - 1)
        self._gap = min(_GAP, _GAPS / gaps)
        self._scale = (1 - (len(self.spans) - 1) * self._gap) / (self.running_s or 1.0)
        self._starts = [0.0]
        for span in self.spans[:-1]:
            self._starts.append(self._starts[-1] + (span.stop_s - span.start_s) * self._scale + self._gap)

    def at(self, time_s: float) -> float:
        """Where a time stands; a time in a pause or outside stands at the nearest edge."""
        number = self.span_of(time_s)
        span = self.spans[number]
        return self._starts[number] + (min(max(time_s, span.start_s), span.stop_s) - span.start_s) * self._scale

    def span_of(self, time_s: float) -> int:
        """Number of the span in which the time lies, or of the last before it; 0 for what is before the first."""
        return max(0, bisect_right(self.spans, time_s, key=lambda span: span.start_s) - 1)

    def pauses(self) -> list[Pause]:
        """All of them, with their length in words."""
        lengths = (after.start_s - before.stop_s for before, after in pairwise(self.spans))
        return [
            Pause(at - self._gap, self._gap, f"not running for {human_time(length_s)}")
            for at, length_s in zip(self._starts[1:], lengths, strict=False)
        ]

    def starts(self, room: float) -> Iterator[Mark]:
        """The time of day where runs began, as far as the words have room: that share of the width for each."""
        free, short = 0.0, bool(self.spans) and self.spans[-1].stop_s - self.spans[0].start_s < _IN_SECONDS_S
        for span in self.spans:
            if free <= (at := self.at(span.start_s)) <= 1 - room:
                free = at + room
                moment = human_moment(span.start_s)
                yield Mark(at, moment[11:] if short else moment[5:16])

    def ticks(self, count: int) -> Iterator[Mark]:
        """At most `count` marks at round running times, beside that of the start."""
        unit_s = next(unit_s for least, unit_s, _ in _UNITS if self.running_s >= least)
        fitting = (step_s for step_s in _STEPS_S if self.running_s / step_s <= count)
        step_s = next(fitting, 86400 * -(-self.running_s // (86400 * count)))
        passed_s, due_s = 0.0, 0.0
        for span, start in zip(self.spans, self._starts, strict=False):
            after_s = passed_s + span.stop_s - span.start_s
            while due_s <= after_s + 1e-9:
                yield Mark(start + (due_s - passed_s) * self._scale, f"{due_s / unit_s:g}")
                due_s += step_s
            passed_s = after_s

    @property
    def unit(self) -> str:
        """Of the ticks."""
        return next(name for least, _, name in _UNITS if self.running_s >= least)
