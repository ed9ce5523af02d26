"""Which charts a report has, and what is in them; one of which nothing is known is left out."""

import itertools
from collections.abc import Iterator

from chunkvisor.events.progress import labels_of
from chunkvisor.observe.report.attempts import Kind, legend_of
from chunkvisor.observe.report.bins import Bin
from chunkvisor.observe.report.chart import (
    Chart,
    Line,
    Scale,
    Shade,
    curve,
    highest,
    in_bytes,
    lane_chart,
    line_chart,
    linear,
    powers_of_two,
    staircase,
)
from chunkvisor.observe.report.history import History
from chunkvisor.observe.report.sensorcurves import SensorCurves
from chunkvisor.observe.report.timeline import Span, Timeline
from chunkvisor.units import human_bytes, human_time

_SHADED = 80
"""With more attempts than this, only those that failed are shaded behind the curves."""
_COLOURS = 6
_SAMPLES = 3
"""Of the sensors, at least: two make a straight line, which says nothing."""


def timeline_of(history: History, sensors: SensorCurves) -> Timeline:
    """The time axis; sensors know longer than the journal that a run was alive."""
    seen = [each.most for _, each in sensors.times.items()]
    spans: list[Span] = []
    for run, after in itertools.zip_longest(history.runs, history.runs[1:]):
        until = after.start_s if after is not None else float("inf")
        over = max((s for s in seen if run.start_s <= s < until), default=0.0) if run.ending is None else run.stop_s
        span = Span(run.start_s, max(run.stop_s, over))
        if spans and span.start_s < spans[-1].stop_s:  # slices work at the same time
            spans[-1] = Span(spans[-1].start_s, max(spans[-1].stop_s, span.stop_s))
        else:
            spans.append(span)
    return Timeline(spans)


class Charts:
    """Those of one report, all over the same time axis."""

    def __init__(self, history: History, sensors: SensorCurves) -> None:
        self._history = history
        self._sensors = sensors
        self._spans = history.attempts.spans()
        self.timeline = timeline_of(history, sensors)

    def all(self) -> Iterator[Chart]:
        """Every chart of which something is known."""
        if self.timeline.running_s:
            yield from self._throughput()
            yield from self._attempts()
            yield from self._gpu_memory()
            yield from self._gpu_use()
            yield from self._host_memory()
            yield from self._ceilings()

    def _throughput(self) -> Iterator[Chart]:
        bins, running_s = self._history.texts, self.timeline.running_s
        bins.coarsen(running_s / bins.limit)
        rates = {0.0: 0.0}
        for start_s, each in bins.items():
            rates[start_s] = each.total / bins.width_s
            rates[start_s + bins.width_s] = 0.0
        mean = self._history.texts_done / running_s
        words = f"distinct texts a second, in steps of {human_time(bins.width_s)}"
        lines = [
            Line("s1", words, staircase(self.timeline, list(rates.items())), area=True),
            Line("s2", f"mean of the running time: {mean:,.1f}", staircase(self.timeline, [(0.0, mean)])),
        ]
        if len(rates) > 1:
            yield line_chart("Throughput", linear(highest(lines), "texts/s"), lines)

    def _attempts(self) -> Iterator[Chart]:
        spans = [span for span in self._spans if span.device]
        devices = sorted({span.device for span in spans}, key=lambda name: (len(name), name))
        at = self.timeline.at
        shades = [
            Shade(f"k-{span.kind}", span.words, at(span.start_s), at(span.stop_s), devices.index(span.device))
            for span in spans
        ]
        if devices:
            known = self._labels()
            names = [known.get(name, f"device {name}") for name in devices]
            yield lane_chart("Attempts", names, shades, legend_of({span.kind for span in spans}, "swatch"))

    def _labels(self) -> dict[str, str]:
        """Names of the devices by their numbers, as the newest run tells them; nothing of a cluster, or of slices."""
        told = next((run.device for run in reversed(self._history.runs) if run.device), "")
        of_this_machine = told and all(name == "cpu" or "(" in name for name in told.split(", "))
        return labels_of(told) if of_this_machine else {}

    def _gpu_memory(self) -> Iterator[Chart]:
        lines = []
        for place, (number, gpu) in enumerate(sorted(self._sensors.gpus.items())):
            hot = f", at most {gpu.hottest_c:.0f} °C" if gpu.hottest_c else ""
            pieces = curve(self.timeline, gpu.memory_bytes, _most)
            lines.append(Line(f"s{place % _COLOURS + 1}", f"GPU {number}{hot}", pieces))
        if total := max((gpu.total_bytes for gpu in self._sensors.gpus.values()), default=0.0):
            lines.append(Line("limit", "installed", staircase(self.timeline, [(0.0, total)])))
        if any(gpu.memory_bytes.items() for gpu in self._sensors.gpus.values()):
            yield line_chart("GPU memory", in_bytes(highest(lines)), lines, self._behind(), self._behind_legend())

    def _gpu_use(self) -> Iterator[Chart]:
        lines = [
            Line(f"s{place % _COLOURS + 1}", f"GPU {number}", curve(self.timeline, gpu.utilization, _mean))
            for place, (number, gpu) in enumerate(sorted(self._sensors.gpus.items()))
        ]
        note = "Share of the time in which at least one kernel ran, as nvidia-smi has it."
        if any(line.pieces for line in lines):
            yield line_chart("GPU utilisation", Scale("%", [0, 25, 50, 75, 100]), lines, note=note)

    def _host_memory(self) -> Iterator[Chart]:
        sensors = self._sensors
        lines = [
            Line("s1", "all workers", curve(self.timeline, sensors.workers_bytes, _most)),
            Line("s2", "supervisor", curve(self.timeline, sensors.parent_bytes, _most)),
        ]
        note = "Pages that forked workers share are counted once for each of them."
        if sensors.least_available_bytes is not None:
            note = f"At least {human_bytes(sensors.least_available_bytes)} stayed available on the machine. {note}"
        if sensors.peak_worker_bytes:
            note = f"The largest worker took {human_bytes(sensors.peak_worker_bytes)}. {note}"
        if any(line.pieces for line in lines) and len(list(sensors.times.items())) >= _SAMPLES:
            scale = in_bytes(highest(lines))
            yield line_chart("Host memory", scale, lines, self._behind(), self._behind_legend(), note)

    def _ceilings(self) -> Iterator[Chart]:
        ceilings = self._history.ceilings
        texts = [(at_s, each.texts, each.texts_long) for at_s, each in ceilings]
        tokens = [(at_s, each.tokens, each.tokens_long) for at_s, each in ceilings if each.tokens and each.tokens_long]
        # A row cap of as many rows as tokens caps nothing.
        capped = any((each.texts, each.texts_long) != (each.tokens, each.tokens_long) for _, each in ceilings)
        if capped and len({limits[1:] for limits in texts}) > 1:
            yield self._ceiling("Batch ceiling", "texts in a batch, at most", texts)
        if tokens and (not capped or len({limits[1:] for limits in tokens}) > 1):  # one that stays is in the config
            yield self._ceiling("Token ceiling", "padded tokens in a batch, at most", tokens)

    def _ceiling(self, title: str, unit: str, limits: list[tuple[float, int, int]]) -> Chart:
        """Of (from when on, for short texts, for the longest ones)."""
        short = staircase(self.timeline, [(at_s, value) for at_s, value, _ in limits])
        longest = staircase(self.timeline, [(at_s, value) for at_s, _, value in limits])
        lines = [Line("s1", "texts of any length", short)]
        if longest != short:
            words = "the longest texts, after an out-of-memory fault"
            lines = [Line("s1", "short texts", short), Line("s2", words, longest)]
        scale = powers_of_two(min(low for *_, low in limits), max(high for _, high, _ in limits), unit)
        return line_chart(title, scale, lines)

    def _behind(self) -> list[Shade]:
        """Attempts behind curves: those that went well by turns lighter and darker, so that one sees where one ends."""
        at, few = self.timeline.at, len(self._spans) <= _SHADED
        shades = []
        for number, span in enumerate(self._spans):
            done = span.kind is Kind.DONE
            css = f"behind k-{span.kind}{number % 2 if done else ''}{'' if few else ' faint'}"
            if few or not done:
                shades.append(Shade(css, span.words, at(span.start_s), at(span.stop_s)))
        return shades

    def _behind_legend(self) -> list[tuple[str, str]]:
        kinds = {span.kind for span in self._spans}
        done = [("swatch behind k-done1", "an attempt that was committed")]
        shown = done if Kind.DONE in kinds and len(self._spans) <= _SHADED else []
        return [*shown, *legend_of(kinds - {Kind.DONE}, "swatch behind")]


def _most(each: Bin) -> float:
    return each.most


def _mean(each: Bin) -> float:
    return each.total / each.count
