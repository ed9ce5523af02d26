"""The report of a workdir: one HTML page, made from the folder alone, during a run or after any end of it.

It begins with what to worry about and ends with the paths. It needs no network and no script. A journal or a log may
be damaged or hostile: what does not fit is left out, and every word is cleaned and escaped before it is shown.
"""

import contextlib
import html
import json
import math
import pkgutil
import string
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from chunkvisor.assemble.manifest import read_done_manifest
from chunkvisor.events import event as of
from chunkvisor.events.event import Event
from chunkvisor.events.journal import read_events
from chunkvisor.events.state import AttemptKey
from chunkvisor.judge import without_cause
from chunkvisor.show.sensors import SensorLine, read_line
from chunkvisor.show.status import State, Status, screen_of
from chunkvisor.sources.table import peek
from chunkvisor.store.disk import check_target
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor.store.leftovers import read_tail
from chunkvisor.store.mark import require_workdir
from chunkvisor.store.records import DamagedError
from chunkvisor.units import counted, human_bytes, human_moment, human_time, printable
from chunkvisor.version import __version__
from chunkvisor.words import advice_on_row
from chunkvisor_worker.contract.arithmetic import masked
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles, read_bounded, write_atomic
from chunkvisor_worker.contract.messages import Fault
from chunkvisor_worker.contract.rules import RULES
from chunkvisor_worker.contract.wire import read_message

_MOST_ROWS, _MOST_KINDS, _MOST_LINES, _LOG_LINES, _SENSED = 100, 40, 200, 14, 20
_WIDTH, _HEIGHT, _STEPS = 1000, 500, 200
"""Of a drawing, which the page stretches; and the steps of time in it, since more cannot be told apart."""
_COLORS = {
    "done": ("committed", (Outcome.COMMITTED,)),
    "stopped": ("interrupted", (Outcome.INTERRUPTED, Outcome.LOST)),
    "memory": ("out of memory", (Outcome.GPU_OOM, Outcome.HOST_OOM)),
    "text": ("bad text or vectors", (Outcome.BAD_INPUT, Outcome.BAD_OUTPUT)),
    "world": ("machine, disk or hub", (Outcome.GPU_BUSY, Outcome.SETUP, Outcome.DISK_FULL, Outcome.HUB)),
    "fault": ("fault, crash or hang", ()),  # and whatever is in none of the others
}
_RULES = {rule.name: rule for rule in RULES}


class Markup(str):
    """HTML that is ready; whatever else comes into the page is escaped."""


def clean(value: object, chars: int = 1000) -> str:
    """Words of a log or a message as a page may show them: no tokens, no control characters, not endless."""
    text = printable(masked(str(value)[: 16 * chars]))
    return text if len(text) <= chars else f"{text[:chars]} …"


def tag(name: str, *inside: object, **attributes: object) -> Markup:
    """Make an element; what is not markup is cleaned and escaped. Attributes are named like `class_`, `data_label`."""
    named = ((key.rstrip("_").replace("_", "-"), html.escape(str(value))) for key, value in attributes.items())
    words = (each if isinstance(each, Markup) else html.escape(clean(each)) for each in inside)
    return Markup("".join(["<", name, *(f' {key}="{value}"' for key, value in named), ">", *words, f"</{name}>"]))


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    """Make a table; on a narrow screen each row becomes a list, in which the labels repeat the heads."""
    cells = (
        [tag("td", tag("div", *pair[1:]), data_label=pair[0]) for pair in zip(heads, row, strict=True)] for row in rows
    )
    body = [tag("tr", *row) for row in cells]
    return tag("table", tag("thead", tag("tr", *(tag("th", head) for head in heads))), tag("tbody", *body))


@dataclass(slots=True)
class Span:
    """An attempt, from the worker's `go` to its end."""

    device: str
    start_s: float = 0.0
    stop_s: float = 0.0
    outcome: str = Outcome.INTERRUPTED
    words: str = ""


@dataclass(slots=True)
class Story:
    """What the journals tell."""

    runs: list[tuple[float, float]] = field(default_factory=list)
    """(begin, last event) of each."""
    spans: list[Span] = field(default_factory=list)
    texts: list[tuple[float, float, int]] = field(default_factory=list)
    """(from, to, how many) distinct texts were encoded."""
    limits: list[tuple[float, int]] = field(default_factory=list)
    """(from when on, tokens in a batch, or texts if tokens are not counted)."""
    failures: dict[tuple[str, str], tuple[int, float, of.FailureEvent]] = field(default_factory=dict)
    """By outcome and rule: (how many, time of the last, the last)."""
    quarantined: dict[tuple[str, int], of.Quarantined] = field(default_factory=dict)
    lines: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=_MOST_LINES))
    _run_id: str = ""
    _ended: bool = True
    _span_of: dict[AttemptKey, Span] = field(default_factory=dict)
    _began_s: dict[tuple[str, int], float] = field(default_factory=dict)
    _saved: dict[tuple[str, int], int] = field(default_factory=dict)

    def apply(self, run_id: str, at_s: float, event: Event) -> None:
        """Take in the next event."""
        if run_id != self._run_id or not self.runs:
            self.cut_off()
            self.runs.append((at_s, at_s))
            self._run_id, self._ended = run_id, False
        self.runs[-1] = self.runs[-1][0], max(at_s, self.runs[-1][1])
        if event.line:
            self.lines.append((at_s, event.line))
        match event:
            case of.RunEnded() | of.Halted():
                self._ended = True
                self.lines.append((at_s, f"the run ended with code {event.code} {getattr(event, 'what', '')}"))
            case of.Quarantined() if len(self.quarantined) < _MOST_ROWS:
                self.quarantined[event.output, event.row] = event
            case of.ChunkEvent():
                self._of_chunk(event, at_s)

    def _of_chunk(self, event: of.ChunkEvent, at_s: float) -> None:
        place = event.output, event.chunk
        key = AttemptKey(*place, event.attempt if isinstance(event, of.AttemptEvent) else 0)
        span = self._span_of.get(key, Span(""))
        match event:
            case of.AttemptStarted():
                self._span_of[key] = Span(str(event.device))
                self.spans.append(self._span_of[key])
            case of.Go():
                span.start_s = span.stop_s = self._began_s[place] = at_s
                span.words = f"{event.output} chunk {event.chunk}, attempt {event.attempt}"
                span.words += f" in run {len(self.runs)}" if len(self.runs) > 1 else ""
                limit = event.tokens or event.rows
                if not self.limits or self.limits[-1][1] != limit:
                    self.limits.append((at_s, limit))
            case of.WorkerEnded():
                span.stop_s = at_s
                span.outcome = Outcome.INTERRUPTED if event.returncode else Outcome.COMMITTED
            case of.FailureEvent():
                span.outcome, span.words = event.outcome, f"{span.words}: {event.outcome}"
                if not isinstance(event, of.AttemptInterrupted):
                    kind = event.outcome, event.rule
                    self.failures[kind] = self.failures.get(kind, (0,))[0] + 1, at_s, event
            case of.PartCommitted() | of.BatchesKept():
                self._saved[place] = self._saved.get(place, 0) + event.texts
                self.texts.append((self._began_s.get(place, at_s), at_s, event.texts))
            case of.ChunkCommitted():
                began_s = self._began_s.pop(place, at_s)
                counted_before = max(self._saved.pop(place, 0), event.texts_before)
                self.texts.append((began_s, at_s, max(0, event.texts - counted_before)))

    def cut_off(self) -> None:
        """Note that a run is over: what is still open was stopped with it."""
        for span in self._span_of.values() if self.runs else ():
            if span.stop_s == span.start_s:
                span.stop_s = self.runs[-1][1]
        self._span_of.clear()
        if not self._ended:
            self.lines.append((self.runs[-1][1], "the last that is known of this run"))


class Axis:
    """Running time from 0 to 1: the pauses between runs are cut out."""

    def __init__(self, runs: Sequence[tuple[float, float]]) -> None:
        self.starts, self.stops, self.before_s = list[float](), list[float](), [0.0]
        for start_s, stop_s in runs:  # after the clock was set back they overlap, and are cut to fit
            self.starts.append(max([start_s, *self.stops[-1:]]))
            self.stops.append(max(self.starts[-1], stop_s))
            self.before_s.append(self.before_s[-1] + self.stops[-1] - self.starts[-1])
        self.running_s = self.before_s[-1]

    def at(self, time_s: float) -> float:
        """Return the place of a time; one in a pause or outside stands at the nearest edge."""
        number = max(0, bisect_right(self.starts, time_s) - 1)
        passed_s = min(max(time_s, self.starts[number]), self.stops[number]) - self.starts[number]
        return (self.before_s[number] + passed_s) / self.running_s

    def step(self, time_s: float) -> int:
        """Return the step in which a time lies."""
        return min(_STEPS - 1, int(self.at(time_s) * _STEPS))


Line = tuple[str, str, Sequence[tuple[float, float]]]
"""(CSS class, words, points: place from 0 to 1 and value)."""
Marks = Sequence[tuple[float, str]]
"""(height from 0 to 1, words) of the upright axis."""
Legend = Sequence[tuple[str, str]]


def charts_of(story: Story, sensors: Sequence[SensorLine]) -> Iterator[Markup]:
    """Draw the four charts; one of which nothing is known is left out."""
    axis = Axis(story.runs)
    if not axis.running_s:
        return
    step_s, rates = axis.running_s / _STEPS, [0.0] * _STEPS
    for start_s, stop_s, texts in story.texts:
        first, last = (min(axis.at(at_s) * _STEPS, _STEPS - 1e-9) for at_s in (start_s, stop_s))
        for step in range(int(first), int(last) + 1):
            share = (min(last, step + 1) - max(first, step)) / (last - first) if last > first else 1.0
            rates[step] += texts * share / step_s
    if mean := sum(rates) / _STEPS:
        points = [(at / _STEPS, rate) for step, rate in enumerate(rates) for at in (step, step + 1)]
        lines: list[Line] = [("s1", "distinct texts a second", points)]
        lines.append(("s2", f"mean: {mean:,.1f}", [(0.0, mean), (1.0, mean)]))
        yield _curves("Throughput", axis, lines, "{:,.4g}".format)
    if spans := [span for span in story.spans if span.start_s]:
        yield _lanes(axis, spans)
    if len(sensors) > 2:  # two readings make a straight line, which says nothing
        yield _memory(axis, sensors)
    if len(story.limits) > 1:
        stairs = pairwise([*((axis.at(at_s), float(limit)) for at_s, limit in story.limits), (1.0, 0.0)])
        points = [point for before, after in stairs for point in (before, (after[0], before[1]))]
        words = "tokens in a batch, at most (texts, if the encoder does not count tokens)"
        yield _curves("Batch limit", axis, [("s1", words, points)], "{:,.0f}".format)


def _memory(axis: Axis, sensors: Sequence[SensorLine]) -> Markup:
    """Draw the memory of the GPUs if they told it, else of the workers."""
    most, total_bytes = dict[str, dict[int, float]](), 0.0
    for line in sensors:
        gpus = [(f"GPU {gpu.device}", gpu.memory_used_bytes, gpu.memory_total_bytes) for gpu in line.gpus]
        workers_bytes = sum(worker.rss_bytes for worker in line.workers)
        for name, used_bytes, gpu_bytes in [*gpus, ("workers", workers_bytes, None)]:
            steps, step = most.setdefault(name, {}), axis.step(line.t)
            steps[step] = max(steps.get(step, 0.0), used_bytes or 0.0)
            total_bytes = max(total_bytes, gpu_bytes or 0.0)
    named = sorted(name for name in most if name != "workers" or not total_bytes)
    lines: list[Line] = [("s2 limit", "installed", [(0.0, total_bytes), (1.0, total_bytes)])] * bool(total_bytes)
    for place, name in enumerate(named):
        points = [((step + 0.5) / _STEPS, value) for step, value in sorted(most[name].items())]
        lines.append((f"s{place % 4 + 1}", name, points))
    return _curves("GPU memory" if total_bytes else "Host memory", axis, lines, human_bytes)


def _lanes(axis: Axis, spans: Sequence[Span]) -> Markup:
    """Draw the attempts, a lane for each device; those that cannot be told apart become one."""
    devices = sorted({span.device for span in spans}, key=lambda name: (len(name), name))[:64]
    found: dict[tuple[int, int], list[tuple[int, int, str]]] = {}
    colors = list(_COLORS)
    for span in (span for span in spans if span.device in devices):
        color = next((each for each in colors if span.outcome in _COLORS[each][1]), "fault")
        left, right = round(axis.at(span.start_s) * _WIDTH), round(axis.at(span.stop_s) * _WIDTH)
        drawn = found.setdefault((colors.index(color), devices.index(span.device)), [])
        if drawn and left <= drawn[-1][1] and right - drawn[-1][0] < 4:
            drawn[-1] = drawn[-1][0], max(right, drawn[-1][1]), "several attempts"
        else:
            drawn.append((left, right, span.words))
    high, shapes = _HEIGHT / len(devices), list[Markup]()
    for (color_number, lane), drawn in sorted(found.items()):  # faults last, above the others
        css, y, height = f"k-{colors[color_number]}", round(high * (lane + 0.1)), round(high * 0.8)
        for x, right, words in drawn:
            title, width = tag("title", words), max(2, right - x)
            shapes.append(tag("rect", title, class_=css, x=x, y=y, width=width, height=height))
    legend = [(f"k-{colors[number]}", _COLORS[colors[number]][0]) for number in sorted({color for color, _ in found})]
    marks = [(1 - (lane + 0.5) / len(devices), f"device {name}") for lane, name in enumerate(devices)]
    return _figure("Attempts", axis, marks, shapes, legend, 22 * len(devices))


def _curves(title: str, axis: Axis, lines: Sequence[Line], label: Callable[[float], str]) -> Markup:
    """Draw lines over an upright axis that begins at 0 and ends a little above the highest value."""
    most = max((value for *_, points in lines for _, value in points), default=0.0) or 1.0
    power = 10.0 ** math.floor(math.log10(most))
    top = most if label is human_bytes else next(power * n for n in (1, 2, 4, 6, 8, 10) if power * n >= most)
    shapes = list[Markup]()
    for css, _, points in lines:
        path = "L".join(f"{at * _WIDTH:.1f} {_HEIGHT * (1 - value / top):.1f}" for at, value in points)
        shapes.append(tag("path", class_=f"line {css}", d=f"M{path}"))
    marks = [(share, label(top * share)) for share in (0.0, 0.5, 1.0)]
    return _figure(title, axis, marks, shapes, [(css, words) for css, words, _ in lines])


def _figure(title: str, axis: Axis, marks: Marks, shapes: list[Markup], legend: Legend, height_px: int = 110) -> Markup:
    """Put a drawing, its axes and its legend together; the words are HTML, so that they are not stretched."""
    pauses = "".join(f"M{before_s / axis.running_s * _WIDTH:.0f} 0v{_HEIGHT}" for before_s in axis.before_s[1:-1])
    shapes = [tag("path", class_="pause", d=pauses or "M0 0"), *shapes]
    drawing = tag("svg", *shapes, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", preserveAspectRatio="none", role="img")
    end = f"{human_time(axis.running_s)} of running time"
    times = (("first", 0, "0"), ("middle", 50, human_time(axis.running_s / 2)), ("last", 100, end))
    ticks = [tag("span", words, class_=f"tick {css}", style=f"left:{at}%") for css, at, words in times]
    values = [tag("span", words, class_="mark", style=f"bottom:{100 * at:.1f}%") for at, words in marks]
    named = [tag("span", tag("i", class_=css), words) for css, words in legend]
    chart = tag("div", *values, drawing, *ticks, class_="chart", style=f"height:{height_px}px")
    return tag("figure", tag("figcaption", title), tag("p", *named, class_="legend soft"), chart)


def _failures(status: Status, story: Story, layout: Layout) -> Iterator[Markup]:
    """Show failures by kind, the most frequent first, each with what to do and the end of a log."""
    for count, at_s, last in sorted(story.failures.values(), key=lambda each: -each[0])[:_MOST_KINDS]:
        rule = _RULES.get(last.rule)
        explain = tag("code", f"chunkvisor explain {rule.name if rule else last.outcome}")
        yield tag("h3", last.outcome, " ", tag("small", f"{counted(count, 'attempt')}, ", explain))
        # A rule's remedy says what the run does next; of a run that has halted there is no next.
        told = rule is not None and (rule.exit_code is not None or status.state is not State.HALTED)
        remedy = rule.remedy if rule and told else advice_on_row(last.outcome, last.rule)
        where = f"{last.output} chunk {last.chunk}, attempt {last.attempt}, {human_moment(at_s)}"
        yield tag("p", *([rule.cause, " "] if rule else []), tag("b", "What to do: "), remedy or "Read the log.")
        message = clean(f"{without_cause(last.reason, last.rule)}{last.at}")
        yield tag("p", f"Last: {where}{': ' * bool(message)}{message}", class_="soft")
        files = layout.output(last.output).attempt(last.chunk, last.attempt)
        if last.output in status.outputs and files.folder.is_dir():  # a journal cannot name files from elsewhere
            yield tag("pre", Markup(html.escape("\n".join([*_excerpt(files), str(files.log)]))))


def _excerpt(files: AttemptFiles) -> list[str]:
    """Return the end of the log; of the traceback, if the log is empty."""
    fault = read_message(Fault, files.fault)
    lines = (read_tail(files.log) or (fault.traceback if fault else "")).splitlines()[-4 * _LOG_LINES :]
    return [clean(line.rstrip(), 180) for line in lines if line.strip()][-_LOG_LINES:]


def _bad_rows(status: Status, story: Story, layout: Layout) -> Iterator[tuple[object, ...]]:
    """Yield rows without a vector: from the record of a finished output, else from the journal."""
    for name in (name for name, output in status.outputs.items() if output.quarantined):
        rows: list[dict[str, Any]] = [event.details() for key, event in story.quarantined.items() if key[0] == name]
        with contextlib.suppress(DamagedError, OSError):
            rows = (read_done_manifest(layout.output(name)) or {"quarantined": rows})["quarantined"]
        for row in rows:
            text = peek(layout.output(name).table, row["row"], 400)
            yield name, row["row"], row["place"], row["outcome"], row["reason"], clean(text or "-", 120)


def _files(layout: Layout, status: Status, invocations: Sequence[InvocationFiles]) -> Iterator[Markup]:
    """Say where things are, and with which versions they were made."""
    names = [*status.outputs, *(path.name for path in sorted(layout.all_combined.glob("*/")))]
    rows = [("workdir", layout.workdir), *((name, layout.output(name).manifest) for name in names)]
    rows.append(("journal", layout.events))
    versions: dict[str, object] = {}
    for newest in invocations[-1:]:
        rows += [("log of the last run", newest.log), ("config", newest.config), ("environment", newest.environment)]
        with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):
            found = json.loads(read_bounded(newest.environment) or b"{}")
            versions = {"python": found["python"], **found["packages"], **found["worker_versions"]}
    yield table(("what", "where"), [(what, path) for what, path in rows if path.exists()])
    yield tag("p", ", ".join(f"{name} {version}" for name, version in versions.items()), class_="soft")


def render(workdir: Path, now_s: float) -> str:
    """Return the page as written at that time. Raises Halt (78) if the folder is not a workdir."""
    layout = Layout(require_workdir(workdir).workdir.absolute())  # a refusal names the folder as it was given
    status, lines = screen_of(layout.workdir)
    story = Story()
    for entry in read_events(layout.events):
        story.apply(entry.run, entry.t, entry.event)
    story.cut_off()
    invocations = [InvocationFiles(path) for path in sorted(layout.runs.glob("*/")) if not path.is_symlink()]
    lacking = any(output.quarantined for output in status.outputs.values())
    mood = {State.HALTED: "bad", State.STOPPED: "care"}.get(status.state, "care" if lacking else "good")
    head = [tag("p", workdir.name, class_="soft"), tag("h1", lines[0]), *(tag("p", line) for line in lines[1:])]
    body = [tag("header", *head, class_=mood)]
    if story.failures:
        body += [tag("h2", "What failed"), *_failures(status, story, layout)]
    if rows := list(islice(_bad_rows(status, story, layout), _MOST_ROWS + 1)):
        heads = ("output", "row", "file and line", "outcome", "reason", "text")
        body += [tag("h2", "Rows without a vector"), table(heads, rows[:_MOST_ROWS])]
        body += [tag("p", f"These are the first {_MOST_ROWS}; the manifests list all.")] * (len(rows) > _MOST_ROWS)
    charts = list(charts_of(story, [line for files in invocations[-_SENSED:] for line in _sensor_lines(files)]))
    body += [tag("h2", "Over time"), *(charts or [tag("p", "Nothing has been encoded yet.")])]
    told = (tag("li", tag("small", human_moment(at_s)), f" {words}") for at_s, words in sorted(story.lines))
    body += [tag("h2", "What happened"), tag("ul", *told), tag("h2", "Files"), *_files(layout, status, invocations)]
    body.append(tag("footer", f"Written {human_moment(now_s)} by chunkvisor {__version__}; times are of its machine."))
    page = string.Template((pkgutil.get_data(__package__, "report.html") or b"").decode())
    return page.substitute(title=html.escape(clean(f"{lines[0]}: {workdir.name}", 200)), body="\n".join(body))


def _sensor_lines(files: InvocationFiles) -> Iterator[SensorLine]:
    with contextlib.suppress(OSError), open(files.sensors, "rb") as file:
        yield from (line for line in map(read_line, file) if line is not None and 0 < line.t < 1e11)


def write_report(workdir: Path, path: Path) -> None:
    """Make the page and put it there by one rename.

    Raises Halt (78) if the folder is not a workdir, or if anything but a page of ours is at that place; OSError.
    """
    check_target(path, "the report", lambda head: b'<meta name="generator" content="chunkvisor">' in head)
    write_atomic(path, render(workdir, time.time()).encode(errors="replace"), durable=False)
