"""Which charts a report has, and what is in them.

Pure: it never reads a file; a chart of which nothing is known is left out.
"""

import itertools
from collections.abc import Iterator

from chunkvisor.observe.report import svg
from chunkvisor.observe.report.attemptspans import WORDS_OF, Kind
from chunkvisor.observe.report.bins import Bin
from chunkvisor.observe.report.canvas import Canvas, Figure, Key
from chunkvisor.observe.report.history import History
from chunkvisor.observe.report.readings import Readings
from chunkvisor.observe.report.svg import Piece, Scale, Series, Shade
from chunkvisor.observe.report.timeline import Span, Timeline
from chunkvisor.units import human_bytes, human_time

_SHADED = 80
"""With more attempts than this, only those that failed are shaded behind the curves."""


def timeline_of(history: History, readings: Readings) -> Timeline:
    """The time axis; sensors know longer than the journal that a run was alive."""
    seen = [each.most for each in readings.times.bins()]
    spans: list[Span] = []
    for run, after in itertools.zip_longest(history.runs, history.runs[1:]):
        until = after.start_s if after is not None else float("inf")
        over = run.stop_s if run.code is not None else max((s for s in seen if run.start_s <= s < until), default=0.0)
        span = Span(run.start_s, max(run.stop_s, over))
        if spans and span.start_s < spans[-1].stop_s:  # slices work at the same time
            spans[-1] = Span(spans[-1].start_s, max(spans[-1].stop_s, span.stop_s))
        else:
            spans.append(span)
    return Timeline(spans)


class Figures:
    """Makes the charts of one report, all over the same time axis."""

    def __init__(self, history: History, readings: Readings) -> None:
        self._story = history
        self._readings = readings
        self._spans = history.attempts.spans()
        self._timeline = timeline_of(history, readings)
        self._canvas = Canvas(self._timeline)

    @property
    def running_s(self) -> float:
        """How long the workdir was worked on, all runs together."""
        return self._timeline.running_s

    @property
    def paused(self) -> bool:
        """Whether there were times without a run, which the charts mark."""
        return len(self._timeline.spans) > 1

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
        bins.coarsen(timeline.running_s / bins.limit)
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
        return self._canvas.figure("Throughput", svg.linear(max(highest, mean), "texts/s"), lines, keys=keys)

    def _attempts(self) -> Figure | None:
        spans = self._spans
        devices = sorted({span.device for span in spans if span.device}, key=lambda name: (len(name), name))
        if not devices:
            return None
        shades = [
            self._canvas.shade(span.start_s, span.stop_s, f"k-{span.kind}", span.words, devices.index(span.device))
            for span in spans
            if span.device
        ]
        kinds = {span.kind for span in spans if span.device}
        keys = tuple(Key(f"k-{kind}", WORDS_OF[kind], line=False) for kind in Kind if kind in kinds)
        names = [f"device {name}" for name in devices]
        return self._canvas.figure("Attempts", None, [], keys=keys, shades=shades, lanes=names)

    def _gpu_memory(self) -> Figure | None:
        gpus = {number: gpu for number, gpu in sorted(self._readings.gpus.items()) if gpu.memory_bytes.bins()}
        if not gpus:
            return None
        lines, keys = [], []
        for place, (number, gpu) in enumerate(gpus.items()):
            lines.append(Series(f"GPU {number}", f"s{place % 6 + 1}", self._canvas.pieces(gpu.memory_bytes, _most)))
            hot = f", at most {gpu.hottest_c:.0f} °C" if gpu.hottest_c is not None else ""
            keys.append(Key(f"s{place % 6 + 1}", f"GPU {number}{hot}"))
        total = max(gpu.total_bytes for gpu in gpus.values())
        if total:
            lines.append(Series("installed", "limit", [[(0.0, total), (1.0, total)]]))
            keys.append(Key("limit", "installed"))
        highest = max(total, *(value for line in lines for piece in line.pieces for _, value in piece))
        return self._canvas.figure(
            "GPU memory", svg.in_bytes(highest), lines, keys=(*keys, *self._span_keys()), shades=list(self._behind())
        )

    def _gpu_use(self) -> Figure | None:
        gpus = {number: gpu for number, gpu in sorted(self._readings.gpus.items()) if gpu.utilization.bins()}
        if not gpus:
            return None
        lines = [
            Series("", f"s{place % 6 + 1}", self._canvas.pieces(gpu.utilization, _mean))
            for place, gpu in enumerate(gpus.values())
        ]
        keys = tuple(Key(f"s{place % 6 + 1}", f"GPU {number}") for place, number in enumerate(gpus))
        scale = Scale("%", [0, 25, 50, 75, 100], "{:.0f}".format)
        note = "Share of the time in which at least one kernel ran, as nvidia-smi has it."
        return self._canvas.figure("GPU utilisation", scale, lines, keys=keys, note=note)

    def _host_memory(self) -> Figure | None:
        readings = self._readings
        if not readings.times.bins():
            return None
        lines = [
            Series("workers", "s1", self._canvas.pieces(readings.workers_bytes, _most)),
            Series("supervisor", "s2", self._canvas.pieces(readings.parent_bytes, _most)),
        ]
        keys = (Key("s1", "all workers"), Key("s2", "supervisor"), *self._span_keys())
        highest = max((value for line in lines for piece in line.pieces for _, value in piece), default=0.0)
        note = "Pages that forked workers share are counted once for each of them."
        if readings.least_available_bytes is not None:
            note = f"At least {human_bytes(readings.least_available_bytes)} stayed available on the machine. {note}"
        if readings.peak_worker_bytes:
            note = f"The largest worker took {human_bytes(readings.peak_worker_bytes)}. {note}"
        return self._canvas.figure(
            "Host memory", svg.in_bytes(highest), lines, keys=keys, note=note, shades=list(self._behind())
        )

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
        lines, keys = [Series("any", "s1", self._canvas.steps(short))], [Key("s1", "texts of any length")]
        if longest != [value for _, value in short]:
            points = [(at_s, value) for (at_s, _), value in zip(short, longest, strict=True)]
            lines.append(Series("long", "s2", self._canvas.steps(points)))
            keys = [Key("s1", "short texts"), Key("s2", "the longest texts, after an out-of-memory fault")]
        scale = svg.powers_of_two(min(longest), max(value for _, value in short), unit)
        return self._canvas.figure(title, scale, lines, keys=tuple(keys))

    def _behind(self) -> Iterator[Shade]:
        few = len(self._spans) <= _SHADED
        for number, span in enumerate(self._spans):
            if span.kind is not Kind.DONE:
                css = f"behind k-{span.kind}" if few else f"behind faint k-{span.kind}"
                yield self._canvas.shade(span.start_s, span.stop_s, css, span.words)
            elif few:
                yield self._canvas.shade(span.start_s, span.stop_s, f"behind k-done{number % 2}", span.words)

    def _span_keys(self) -> Iterator[Key]:
        kinds = {span.kind for span in self._spans}
        if Kind.DONE in kinds and len(self._spans) <= _SHADED:
            yield Key("behind k-done1", "an attempt that was committed", line=False)
        yield from (Key(f"behind k-{kind}", WORDS_OF[kind], line=False) for kind in Kind if kind in kinds - {Kind.DONE})


def _most(each: Bin) -> float:
    return each.most


def _mean(each: Bin) -> float:
    return each.total / each.count
