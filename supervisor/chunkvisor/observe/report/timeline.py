"""The time axis of a workdir that was worked on now and then: running time, with the pauses cut out.

Pure: it never knows how anything is drawn, only where.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

_GAP = 0.012
"""Share of the width that a pause takes."""
_GAPS = 0.2
"""Share of the width that all pauses may take together."""
_STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_UNITS = ((86400 * 3, 86400, "days"), (3600 * 3, 3600, "hours"), (60 * 3, 60, "minutes"), (0, 1, "seconds"))


@dataclass(frozen=True, slots=True)
class Span:
    """While the run lived, seconds since the epoch."""

    start_s: float
    stop_s: float


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of the axis, from 0 to 1 of its width."""

    at: float
    label: str


class Timeline:
    """Maps times to places from 0 to 1."""

    def __init__(self, spans: Sequence[Span]) -> None:
        """Spans in order; those that overlap, as after the clock was set back, are cut to fit."""
        self.spans: list[Span] = []
        for span in spans:
            start_s = max(span.start_s, self.spans[-1].stop_s if self.spans else span.start_s)
            self.spans.append(Span(start_s, max(start_s, span.stop_s)))
        self.running_s = sum(span.stop_s - span.start_s for span in self.spans)
        gaps = max(0, len(self.spans) - 1)
        self._gap = min(_GAP, _GAPS / gaps) if gaps else 0.0
        scale = (1 - gaps * self._gap) / (self.running_s or 1.0)
        self._starts: list[float] = []
        at = 0.0
        for span in self.spans:
            self._starts.append(at)
            at += (span.stop_s - span.start_s) * scale + self._gap
        self._scale = scale

    def at(self, time_s: float) -> float:
        """Where a time stands; a time in a pause or outside stands at the nearest edge."""
        number = self.span_of(time_s)
        if number is None:
            return 0.0
        span = self.spans[number]
        return self._starts[number] + (min(time_s, span.stop_s) - min(span.start_s, time_s)) * self._scale

    def span_of(self, time_s: float) -> int | None:
        """Number of the span in which the time lies, or of the last before it; None without any span."""
        if not self.spans:
            return None
        return max(0, bisect_right([span.start_s for span in self.spans], time_s) - 1)

    def pauses(self) -> list[tuple[float, float, float]]:
        """(left, right, seconds) of each pause."""
        pairs = zip(self.spans, self.spans[1:], self._starts[1:], strict=False)
        return [(start - self._gap, start, after.start_s - before.stop_s) for before, after, start in pairs]

    def ticks(self, count: int) -> tuple[list[Tick], str]:
        """At most so many marks at round running times, and their unit."""
        unit_s, unit = next((unit_s, name) for least, unit_s, name in _UNITS if self.running_s >= least)
        fitting = [step for step in _STEPS_S if self.running_s / step <= count]
        step_s = fitting[0] if fitting else 86400 * -(-self.running_s // (86400 * count))
        ticks, passed_s = [], 0.0
        number = 0
        for span, start in zip(self.spans, self._starts, strict=True):
            length_s = span.stop_s - span.start_s
            while number * step_s <= passed_s + length_s + 1e-9:
                ticks.append(Tick(start + (number * step_s - passed_s) * self._scale, f"{number * step_s / unit_s:g}"))
                number += 1
            passed_s += length_s
        return ticks, unit
