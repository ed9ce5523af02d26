"""Charts of one report: all over the same time axis, each in two sizes.

Pure: it never knows what a chart shows.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chunkvisor.observe.report import svg
from chunkvisor.observe.report.bins import Bin, Bins
from chunkvisor.observe.report.svg import Chart, Piece, Scale, Series, Shade
from chunkvisor.observe.report.timeline import Tick, Timeline
from chunkvisor.units import human_time

WIDE, NARROW = 880, 350
"""Pixels; the style sheet shows the one that fits."""
_HEIGHT, _LANE = 200, 22


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of a legend."""

    css: str
    words: str
    line: bool = True


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart in both sizes, with its title and legend."""

    title: str
    wide: str
    narrow: str
    legend: tuple[Key, ...] = ()
    note: str = ""


class Canvas:
    """Draws figures, and puts values where they belong on the axis."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._pauses = [
            (left, right, f"not running for {human_time(length_s)}") for left, right, length_s in timeline.pauses()
        ]
        self._starts = [Tick(timeline.at(span.start_s), _when(span.start_s)) for span in timeline.spans]

    def figure(
        self,
        title: str,
        scale: Scale | None,
        series: Sequence[Series],
        *,
        keys: tuple[Key, ...] = (),
        shades: Sequence[Shade] = (),
        lanes: Sequence[str] = (),
        note: str = "",
    ) -> Figure:
        """A chart with its title and legend; without a scale it has lanes."""
        chart = Chart(title, scale, series, shades, self._pauses, self._starts, lanes)
        height = _HEIGHT if not lanes else 72 + _LANE * len(lanes)
        wide, narrow = (
            svg.draw(chart, *self.timeline.ticks(count), width, height) for width, count in ((WIDE, 12), (NARROW, 5))
        )
        return Figure(title, wide, narrow, keys, note)

    def shade(self, start_s: float, stop_s: float, css: str, title: str, lane: int | None = None) -> Shade:
        """A stretch of time behind the lines."""
        return Shade(self.timeline.at(start_s), self.timeline.at(stop_s), css, title, lane)

    def pieces(self, bins: Bins, value: Callable[[Bin], float]) -> list[Piece]:
        """A line for each run; broken where the sensors were silent."""
        pieces: list[Piece] = []
        last: tuple[int | None, float] = (None, 0.0)
        for each in bins.bins():
            at_s = each.start_s + bins.width_s / 2
            span = self.timeline.span_of(at_s)
            # Silent for ten bins, and longer than the slowest sensors' interval.
            if not pieces or span != last[0] or at_s - last[1] > max(10 * bins.width_s, 60):
                pieces.append([])
            pieces[-1].append((self.timeline.at(at_s), value(each)))
            last = (span, at_s)
        return pieces

    def steps(self, points: Sequence[tuple[float, float]]) -> list[Piece]:
        """A staircase through all runs: a limit holds until it changes."""
        pieces: list[Piece] = []
        for span in self.timeline.spans:
            within = [point for point in points if point[0] <= span.stop_s]
            before = [point for point in within if point[0] <= span.start_s]
            piece = [(self.timeline.at(span.start_s), before[-1][1])] if before else []
            for at_s, value in within[len(before) :]:
                at = self.timeline.at(at_s)
                piece += [(at, piece[-1][1]), (at, value)] if piece else [(at, value)]
            if piece:
                pieces.append([*piece, (self.timeline.at(span.stop_s), piece[-1][1])])
        return pieces


def _when(at_s: float) -> str:
    return time.strftime("%d %b %H:%M", time.localtime(at_s))
