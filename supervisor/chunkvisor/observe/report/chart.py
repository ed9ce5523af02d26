"""Charts over time, drawn on a canvas of 2,000 x 1,000 that the page stretches to its width; the words are HTML."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from chunkvisor.observe.report.bins import Bin, Bins
from chunkvisor.observe.report.timeline import Timeline

WIDTH, HEIGHT = 2000, 1000
_LEAST_WIDTH = 0.002
_SILENT_BINS, _SILENT_S = 10, 60.0
"""A curve is broken where there was no value for ten bins, and for longer than the slowest sensors' interval."""

Points = list[tuple[float, float]]
"""(place from 0 to 1, value) of an unbroken line."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line in pieces."""

    css: str
    """Class that gives it its colour."""
    words: str
    """For the legend; none there where it is empty."""
    pieces: list[Points]
    area: bool = False


@dataclass(frozen=True, slots=True)
class Shade:
    """A stretch of time behind the lines, or in a lane."""

    css: str
    words: str
    left: float
    right: float
    lane: int = 0

    @property
    def width(self) -> float:
        """Wide enough to be seen: a rectangle without a width is not drawn at all."""
        return max(_LEAST_WIDTH, self.right - self.left)


@dataclass(frozen=True, slots=True)
class Scale:
    """The upright axis."""

    unit: str
    ticks: Sequence[float]
    label: Callable[[float], str] = "{:,g}".format
    log: bool = False

    def share(self, value: float) -> float:
        """How high a value stands, from 0 to 1."""
        low, high = self.ticks[0], self.ticks[-1]
        if self.log:
            value, low, high = (math.log2(max(each, 1.0)) for each in (value, low, high))
        return min(1.0, max(0.0, (value - low) / (high - low)))


@dataclass(frozen=True, slots=True)
class Chart:
    """What the template draws: paths and stretches in the canvas's units, words with their places."""

    title: str
    unit: str
    marks: list[tuple[float, str]]
    """(height from 0 to 1, words) of the upright axis, or of the lanes."""
    paths: list[tuple[str, str]]
    """(class, SVG path)."""
    shades: Sequence[Shade]
    legend: Sequence[tuple[str, str]]
    """(class, words)."""
    note: str = ""
    lanes: int = 0


def lane_chart(title: str, lanes: Sequence[str], shades: Sequence[Shade], legend: Sequence[tuple[str, str]]) -> Chart:
    """Stretches of time, one lane above the other."""
    marks = [(1 - (number + 0.5) / len(lanes), name) for number, name in enumerate(lanes)]
    return Chart(title, "", marks, [], shades, legend, lanes=len(lanes))


def line_chart(
    title: str,
    scale: Scale,
    lines: Sequence[Line],
    shades: Sequence[Shade] = (),
    legend: Sequence[tuple[str, str]] = (),
    note: str = "",
) -> Chart:
    """Lines over a scale, with stretches of time behind them."""
    paths = []
    for line in lines:
        pieces = [
            [(round(at * WIDTH), round(HEIGHT * (1 - scale.share(y)))) for at, y in piece] for piece in line.pieces
        ]
        if line.area:
            closed = [[(piece[0][0], HEIGHT), *piece, (piece[-1][0], HEIGHT)] for piece in pieces]
            paths.append((f"area {line.css}", _path(closed)))
        paths.append((f"line {line.css}", _path(pieces)))
    named = [(f"stroke {line.css}", line.words) for line in lines if line.words]
    marks = [(scale.share(tick), scale.label(tick)) for tick in scale.ticks]
    return Chart(title, scale.unit, marks, paths, shades, [*named, *legend], note)


def _path(pieces: Iterable[Sequence[tuple[int, int]]]) -> str:
    # Of a single point nothing is drawn; of a line without length, a dot.
    doubled = ([*piece, *piece[-1:]] if len(piece) == 1 else piece for piece in pieces)
    return "".join("M" + "L".join(f"{x} {y}" for x, y in piece) for piece in doubled)


def highest(lines: Iterable[Line]) -> float:
    """The largest value of all."""
    return max((value for line in lines for piece in line.pieces for _, value in piece), default=0.0)


def curve(timeline: Timeline, bins: Bins, value: Callable[[Bin], float]) -> list[Points]:
    """A piece for each run; broken where the sensors were silent."""
    pieces: list[Points] = []
    last, last_s = -1, 0.0
    for start_s, each in bins.items():
        at_s = start_s + bins.width_s / 2
        span = timeline.span_of(at_s)
        if span != last or at_s - last_s > max(_SILENT_BINS * bins.width_s, _SILENT_S):
            pieces.append([])
        pieces[-1].append((timeline.at(at_s), value(each)))
        last, last_s = span, at_s
    return pieces


def staircase(timeline: Timeline, points: Sequence[tuple[float, float]]) -> list[Points]:
    """A piece for each run, of (time, value): a value holds until the next."""
    pieces: list[Points] = []
    for span in timeline.spans:
        within = [point for point in points if point[0] <= span.stop_s]
        before = [point for point in within if point[0] <= span.start_s]
        piece: Points = []
        for at_s, value in [*before[-1:], *within[len(before) :]]:
            at = timeline.at(max(at_s, span.start_s))
            piece += [(at, piece[-1][1]), (at, value)] if piece else [(at, value)]
        if piece:
            pieces.append([*piece, (timeline.at(span.stop_s), piece[-1][1])])
    return pieces


def linear(most: float, unit: str) -> Scale:
    """An axis from 0 to a round number not below `most`, with some five ticks."""
    most = most or 1.0
    power = 10.0 ** math.floor(math.log10(most / 4))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= most / 4 * 0.999)
    return Scale(unit, [step * number for number in range(math.ceil(most / step - 1e-9) + 1)])


def in_bytes(most: float) -> Scale:
    """An axis in KiB, MiB, GiB or TiB, whichever gives readable numbers."""
    power = min(4, max(1, int(math.log(max(most, 1024), 1024))))
    inner = linear(most / 1024.0**power, ("", "KiB", "MiB", "GiB", "TiB")[power])
    return Scale(
        inner.unit, [tick * 1024.0**power for tick in inner.ticks], lambda value: f"{value / 1024.0**power:,g}"
    )


def powers_of_two(least: float, most: float, unit: str) -> Scale:
    """A logarithmic axis that has both values within, with at most some seven ticks."""
    low = max(0, math.floor(math.log2(max(least, 1))) - 1)
    high = max(low + 1, math.ceil(math.log2(max(most, 1))))
    step = -(-(high - low) // 6)
    return Scale(unit, [2.0**exponent for exponent in range(low, high + step, step)], "{:,.0f}".format, log=True)
