"""Which charts a report has, and what is in them.

Pure: it never reads a file; a chart of which nothing is known is left out.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from chunkvisor.observe.report import svg
from chunkvisor.observe.report.bands import WORDS_OF, Kind
from chunkvisor.observe.report.bins import Bin, Bins
from chunkvisor.observe.report.readings import Readings
from chunkvisor.observe.report.story import Story
from chunkvisor.observe.report.svg import Chart, Piece, Scale, Series, Shade
from chunkvisor.observe.report.timeline import Span, Tick, Timeline
from chunkvisor.units import human_bytes, human_time

WIDE, NARROW = 880, 350
"""Pixels; the style sheet shows the one that fits."""
_HEIGHT, _LANE = 200, 22
_SHADED = 80
"""With more attempts than this, only those that failed are shaded behind the curves."""


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


def timeline_of(story: Story, readings: Readings) -> Timeline:
    """The time axis; sensors know longer than the journal that a run was alive."""
    seen = [each.most for each in readings.times.bins()]
    spans = []
    for run, after in itertools.zip_longest(story.runs, story.runs[1:]):
        until = after.start_s if after is not None else float("inf")
        over = run.stop_s if run.code is not None else max((s for s in seen if run.start_s <= s < until), default=0.0)
        spans.append(Span(run.start_s, max(run.stop_s, over)))
    return Timeline(spans)


class Figures:
    """Makes the charts of one report, all over the same time axis."""

    def __init__(self, story: Story, readings: Readings) -> None:
        self._story = story
        self._readings = readings
        self._timeline = timeline_of(story, readings)
        self._pauses = [
            (left, right, f"not running for {human_time(length_s)}")
            for left, right, length_s in self._timeline.pauses()
        ]
        self._starts = [Tick(self._timeline.at(span.start_s), _when(span.start_s)) for span in self._timeline.spans]

    @property
    def running_s(self) -> float:
        """How long the workdir was worked on, all runs together."""
        return self._timeline.running_s

    @property
    def paused(self) -> bool:
        """Whether there were times without a run, which the charts mark."""
        return bool(self._pauses)

    def all(self) -> Iterator[Figure]:
        """Every chart of which something is known."""
        if not self._timeline.running_s:
            return
        makers = (
            self._throughput,
            self._attempts,
            self._gpu_memory,
            self._gpu_use,
            self._host_memory,
            self._batch_texts,
            self._batch_tokens,
        )
        for make in makers:
            if (figure := make()) is not None:
                yield figure

    def _throughput(self) -> Figure | None:
        bins, timeline = self._story.texts, self._timeline
        if not bins.bins():
            return None
        pieces = []
        for span in timeline.spans:
            piece: Piece = []
            at_s = span.start_s
            while at_s < span.stop_s:
                stop_s = min(span.stop_s, (at_s // bins.width_s + 1) * bins.width_s)
                if stop_s <= at_s:
                    break
                rate = bins.total_at((at_s + stop_s) / 2) / bins.width_s
                piece += [(timeline.at(at_s), rate), (timeline.at(stop_s), rate)]
                at_s = stop_s
            pieces.append(piece)
        highest = max((value for piece in pieces for _, value in piece), default=0.0)
        mean = self._story.texts_done / timeline.running_s
        lines = [
            Series("texts", "s1", pieces, area=True),
            Series("mean", "s2", [[(0.0, mean), (1.0, mean)]]),
        ]
        keys = (Key("s1", f"texts per second, in steps of {human_time(bins.width_s)}"), Key("s2", f"mean {mean:,.1f}"))
        return self._figure("Throughput", svg.linear(max(highest, mean), "texts/s"), lines, keys=keys)

    def _attempts(self) -> Figure | None:
        bands = self._story.bands
        devices = sorted({band.device for band in bands if band.device}, key=lambda name: (len(name), name))
        if not devices:
            return None
        shades = [
            self._shade(band.start_s, band.stop_s, f"k-{band.kind}", band.words, devices.index(band.device))
            for band in bands
            if band.device
        ]
        kinds = {band.kind for band in bands if band.device}
        keys = tuple(Key(f"k-{kind}", WORDS_OF[kind], line=False) for kind in Kind if kind in kinds)
        names = [f"device {name}" for name in devices]
        return self._figure("Attempts", None, [], keys=keys, shades=shades, lanes=names)

    def _gpu_memory(self) -> Figure | None:
        gpus = {number: gpu for number, gpu in sorted(self._readings.gpus.items()) if gpu.memory_bytes.bins()}
        if not gpus:
            return None
        lines, keys = [], []
        for place, (number, gpu) in enumerate(gpus.items()):
            lines.append(Series(f"GPU {number}", f"s{place % 6 + 1}", self._pieces(gpu.memory_bytes, _most)))
            hot = f", at most {gpu.hottest_c:.0f} °C" if gpu.hottest_c is not None else ""
            keys.append(Key(f"s{place % 6 + 1}", f"GPU {number}{hot}"))
        total = max(gpu.total_bytes for gpu in gpus.values())
        if total:
            lines.append(Series("installed", "limit", [[(0.0, total), (1.0, total)]]))
            keys.append(Key("limit", "installed"))
        highest = max(total, *(value for line in lines for piece in line.pieces for _, value in piece))
        return self._figure("GPU memory", svg.in_bytes(highest), lines, keys=(*keys, *self._band_keys()), banded=True)

    def _gpu_use(self) -> Figure | None:
        gpus = {number: gpu for number, gpu in sorted(self._readings.gpus.items()) if gpu.utilization.bins()}
        if not gpus:
            return None
        lines = [
            Series("", f"s{place % 6 + 1}", self._pieces(gpu.utilization, _mean))
            for place, gpu in enumerate(gpus.values())
        ]
        keys = tuple(Key(f"s{place % 6 + 1}", f"GPU {number}") for place, number in enumerate(gpus))
        scale = Scale("%", [0, 25, 50, 75, 100], "{:.0f}".format)
        note = "Share of the time in which at least one kernel ran, as nvidia-smi has it."
        return self._figure("GPU utilisation", scale, lines, keys=keys, note=note)

    def _host_memory(self) -> Figure | None:
        readings = self._readings
        if not readings.times.bins():
            return None
        lines = [
            Series("workers", "s1", self._pieces(readings.workers_bytes, _most)),
            Series("supervisor", "s2", self._pieces(readings.parent_bytes, _most)),
        ]
        keys = (Key("s1", "all workers"), Key("s2", "supervisor"), *self._band_keys())
        highest = max((value for line in lines for piece in line.pieces for _, value in piece), default=0.0)
        note = "Pages that forked workers share are counted once for each of them."
        if readings.least_available_bytes is not None:
            note = f"At least {human_bytes(readings.least_available_bytes)} stayed available on the machine. {note}"
        if readings.peak_worker_bytes:
            note = f"The largest worker took {human_bytes(readings.peak_worker_bytes)}. {note}"
        return self._figure("Host memory", svg.in_bytes(highest), lines, keys=keys, note=note, banded=True)

    def _batch_texts(self) -> Figure | None:
        ceilings = self._story.ceilings
        # A row cap of as many rows as tokens caps nothing.
        if all((each.texts, each.texts_long) == (each.tokens, each.tokens_long) for each in ceilings):
            return None
        short = [(each.at_s, float(each.texts)) for each in ceilings]
        return self._ceiling(
            "Batch ceiling", "texts in a batch, at most", short, [float(e.texts_long) for e in ceilings]
        )

    def _batch_tokens(self) -> Figure | None:
        ceilings = [each for each in self._story.ceilings if each.tokens and each.tokens_long]
        told = len({(each.tokens, each.tokens_long) for each in ceilings}) > 1 or self._batch_texts() is None
        if not ceilings or not told:  # one that never changes is in the config
            return None
        short = [(each.at_s, float(each.tokens or 0)) for each in ceilings]
        longest = [float(each.tokens_long or 0) for each in ceilings]
        return self._ceiling("Token ceiling", "padded tokens in a batch, at most", short, longest)

    def _ceiling(self, title: str, unit: str, short: list[tuple[float, float]], longest: list[float]) -> Figure:
        lines, keys = [Series("any", "s1", self._steps(short))], [Key("s1", "texts of any length")]
        if longest != [value for _, value in short]:
            points = [(at_s, value) for (at_s, _), value in zip(short, longest, strict=True)]
            lines.append(Series("long", "s2", self._steps(points)))
            keys = [Key("s1", "short texts"), Key("s2", "the longest texts, after an out-of-memory fault")]
        scale = svg.powers_of_two(min(longest), max(value for _, value in short), unit)
        return self._figure(title, scale, lines, keys=tuple(keys))

    def _figure(
        self,
        title: str,
        scale: Scale | None,
        series: Sequence[Series],
        *,
        keys: tuple[Key, ...] = (),
        shades: Sequence[Shade] = (),
        lanes: Sequence[str] = (),
        note: str = "",
        banded: bool = False,
    ) -> Figure:
        behind = [*shades, *(self._behind() if banded else ())]
        chart = Chart(title, scale, series, behind, self._pauses, self._starts, lanes)
        height = _HEIGHT if not lanes else 72 + _LANE * len(lanes)
        wide, narrow = (
            svg.draw(chart, *self._timeline.ticks(count), width, height) for width, count in ((WIDE, 12), (NARROW, 5))
        )
        return Figure(title, wide, narrow, keys, note)

    def _behind(self) -> Iterator[Shade]:
        bands = self._story.bands
        few = len(bands) <= _SHADED
        for number, band in enumerate(bands):
            if band.kind is not Kind.DONE:
                yield self._shade(band.start_s, band.stop_s, f"behind k-{band.kind}", band.words)
            elif few:
                yield self._shade(band.start_s, band.stop_s, f"behind k-done{number % 2}", band.words)

    def _band_keys(self) -> Iterator[Key]:
        kinds = {band.kind for band in self._story.bands}
        if Kind.DONE in kinds and len(self._story.bands) <= _SHADED:
            yield Key("behind k-done1", "an attempt that was committed", line=False)
        yield from (Key(f"behind k-{kind}", WORDS_OF[kind], line=False) for kind in Kind if kind in kinds - {Kind.DONE})

    def _shade(self, start_s: float, stop_s: float, css: str, title: str, lane: int | None = None) -> Shade:
        return Shade(self._timeline.at(start_s), self._timeline.at(stop_s), css, title, lane)

    def _pieces(self, bins: Bins, value: Callable[[Bin], float]) -> list[Piece]:
        """A line for each run; broken where the sensors were silent."""
        pieces: list[Piece] = []
        last: tuple[int | None, float] = (None, 0.0)
        for each in bins.bins():
            at_s = each.start_s + bins.width_s / 2
            span = self._timeline.span_of(at_s)
            # Silent for ten bins, and longer than the slowest sensors' interval.
            if not pieces or span != last[0] or at_s - last[1] > max(10 * bins.width_s, 60):
                pieces.append([])
            pieces[-1].append((self._timeline.at(at_s), value(each)))
            last = (span, at_s)
        return pieces

    def _steps(self, points: Sequence[tuple[float, float]]) -> list[Piece]:
        """A staircase through all runs: a limit holds until it changes."""
        pieces: list[Piece] = []
        for span in self._timeline.spans:
            within = [point for point in points if point[0] <= span.stop_s]
            before = [point for point in within if point[0] <= span.start_s]
            piece = [(self._timeline.at(span.start_s), before[-1][1])] if before else []
            for at_s, value in within[len(before) :]:
                at = self._timeline.at(at_s)
                piece += [(at, piece[-1][1]), (at, value)] if piece else [(at, value)]
            if piece:
                pieces.append([*piece, (self._timeline.at(span.stop_s), piece[-1][1])])
        return pieces


def _most(each: Bin) -> float:
    return each.most


def _mean(each: Bin) -> float:
    return each.total / each.count


def _when(at_s: float) -> str:
    return time.strftime("%d %b %H:%M", time.localtime(at_s))
