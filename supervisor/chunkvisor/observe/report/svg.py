"""Draws a chart over time as SVG, to stand inside a page whose style sheet gives the colours.

Pure: it never knows what the values mean; every text that goes in comes out escaped.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from chunkvisor.observe.report.timeline import Tick

_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 36, 36
_CHAR = 6.6
"""Width of a character at the style sheet's 12 pixels, about."""

Piece = list[tuple[float, float]]
"""Points of an unbroken line: (place from 0 to 1, value)."""


@dataclass(frozen=True, slots=True)
class Series:
    """A line, or several pieces of one."""

    name: str
    css: str
    """Class that gives it its colour."""
    pieces: list[Piece]
    area: bool = False


@dataclass(frozen=True, slots=True)
class Shade:
    """A stretch of time behind the lines, as high as the chart or a lane of it."""

    left: float
    right: float
    css: str
    title: str = ""
    lane: int | None = None


@dataclass(frozen=True, slots=True)
class Scale:
    """The upright axis."""

    unit: str
    ticks: list[float]
    label: Callable[[float], str]
    log: bool = False

    def share(self, value: float) -> float:
        """How high a value stands, from 0 to 1."""
        low, high = self.ticks[0], self.ticks[-1]
        if self.log:
            value, low, high = (math.log2(max(each, 1.0)) for each in (value, low, high))
        return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.0


@dataclass(frozen=True, slots=True)
class Chart:
    """Everything that one chart shows."""

    title: str
    scale: Scale | None
    """None: lanes instead of an upright axis."""
    series: Sequence[Series]
    shades: Sequence[Shade]
    pauses: Sequence[tuple[float, float, str]]
    """(left, right, words) of the times without a run."""
    starts: Sequence[Tick]
    """Where runs began, with the time of day."""
    lanes: Sequence[str] = ()


def linear(highest: float, unit: str, label: Callable[[float], str] = "{:,g}".format) -> Scale:
    """An axis from 0 to a round number not below `highest`, with some five ticks."""
    raw = (highest or 1.0) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    return Scale(unit, [step * number for number in range(math.ceil((highest or 1.0) / step - 1e-9) + 1)], label)


def in_bytes(highest: float) -> Scale:
    """An axis in KiB, MiB, GiB or TiB, whichever gives readable numbers."""
    power = min(4, max(1, int(math.log(max(highest, 1024), 1024))))
    unit_bytes = 1024.0**power
    inner = linear(highest / unit_bytes, "")
    unit = ("", "KiB", "MiB", "GiB", "TiB")[power]
    return Scale(unit, [tick * unit_bytes for tick in inner.ticks], lambda value: f"{value / unit_bytes:,g}")


def powers_of_two(lowest: float, highest: float, unit: str) -> Scale:
    """A logarithmic axis that has both values within, with at most some seven ticks."""
    least = max(0, math.floor(math.log2(max(lowest, 1))) - 1)
    most = max(least + 1, math.ceil(math.log2(max(highest, 1))))
    step = -(-(most - least) // 6)
    return Scale(unit, [2.0**exponent for exponent in range(least, most + step, step)], "{:,.0f}".format, log=True)


def draw(chart: Chart, ticks: Sequence[Tick], time_unit: str, width: int, height: int) -> str:
    """The chart as an `svg` element of that size in pixels."""
    return "".join(_parts(chart, ticks, time_unit, width, height))


def _parts(chart: Chart, ticks: Sequence[Tick], time_unit: str, width: int, height: int) -> Iterator[str]:
    inner, bottom = width - _LEFT - _RIGHT, height - _BOTTOM
    tall = bottom - _TOP

    def x(at: float) -> str:
        return f"{_LEFT + min(1.0, max(0.0, at)) * inner:.1f}"

    def y(share: float) -> str:
        return f"{bottom - share * tall:.1f}"

    yield f'<svg class="chart" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
    yield f' aria-label="{escape(chart.title)}">'
    for left, right, words in chart.pauses:
        yield _rect("pause", float(x(left)), float(x(right)), _TOP, tall, words)
    lane = tall / max(1, len(chart.lanes))
    for shade in chart.shades:
        top, high = (_TOP, tall) if shade.lane is None else (_TOP + shade.lane * lane + 2, lane - 4)
        yield _rect(shade.css, float(x(shade.left)), float(x(shade.right)), top, high, shade.title)
    for number, name in enumerate(chart.lanes):
        yield _text(_LEFT - 6, _TOP + (number + 0.5) * lane + 4, name, "end")
    if chart.scale is not None:
        for value in chart.scale.ticks:
            at = y(chart.scale.share(value))
            yield f'<line class="grid" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{at}" y2="{at}"/>'
            yield _text(_LEFT - 6, float(at) + 4, chart.scale.label(value), "end")
        yield _text(4, 12, chart.scale.unit, "start", "unit")
    for series in chart.series:
        assert chart.scale is not None
        for piece in series.pieces:
            points = [f"{x(at)},{y(chart.scale.share(value))}" for at, value in piece]
            if series.area and points:
                outline = [f"{x(piece[0][0])},{bottom}", *points, f"{x(piece[-1][0])},{bottom}"]
                yield f'<polygon class="area {series.css}" points="{" ".join(outline)}"/>'
            # Of a single point nothing is drawn; of a line without length, a dot.
            yield f'<polyline class="line {series.css}" points="{" ".join(points if points[1:] else 2 * points)}"/>'
    yield f'<line class="axis" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{bottom}" y2="{bottom}"/>'
    for tick in ticks:
        yield f'<line class="axis" x1="{x(tick.at)}" x2="{x(tick.at)}" y1="{bottom}" y2="{bottom + 4}"/>'
    for tick in _apart(ticks, inner, 8):
        yield _text(float(x(tick.at)), bottom + 16, tick.label, "middle")
    yield _text(width - _RIGHT, height - 4, f"{time_unit} of running time", "end", "unit")
    for tick in _apart(chart.starts, inner, 10, centred=False):
        yield f'<line class="start" x1="{x(tick.at)}" x2="{x(tick.at)}" y1="{_TOP - 12}" y2="{_TOP}"/>'
        yield _text(float(x(tick.at)) + 3, _TOP - 4, tick.label, "start", "when")
    yield "</svg>"


def _apart(ticks: Sequence[Tick], width: float, space: float, *, centred: bool = True) -> Iterator[Tick]:
    """Those whose labels do not run into the one before, nor beyond the right edge."""
    free = -math.inf
    for tick in ticks:
        length = len(tick.label) * _CHAR
        left = tick.at * width - (length / 2 if centred else 0)
        if left >= free and (centred or left + length <= width):
            free = left + length + space
            yield tick


def _rect(css: str, left: float, right: float, top: float, height: float, title: str) -> str:
    # Narrower than a pixel it would not be seen.
    wide = max(1.0, right - left)
    inside = f"<title>{escape(title)}</title>" if title else ""
    return f'<rect class="{css}" x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{height:.1f}">{inside}</rect>'


def _text(x: float, y: float, words: str, anchor: str, css: str = "") -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
