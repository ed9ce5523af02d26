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
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from chunkvisor.assemble.manifest import read_done_manifest
from chunkvisor.events import event as of
from chunkvisor.events.event import Event, read_json
from chunkvisor.events.journal import read_events
from chunkvisor.judge import without_cause
from chunkvisor.show.snapshot import SensorLine
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
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles, read_bounded, write_atomic
from chunkvisor_worker.contract.messages import Fault
from chunkvisor_worker.contract.rules import RULES
from chunkvisor_worker.contract.wire import masked, read_message

_MOST_ROWS, _MOST_KINDS, _MOST_LINES, _LOG_LINES, _SENSED = 100, 40, 200, 14, 20
_STEPS, _HEIGHT = 200, 100
"""Of time in a drawing, since more cannot be told apart; and its height, which the page stretches."""
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
    body = [
        tag("tr", *(tag("td", tag("div", cell), data_label=head) for head, cell in zip(heads, row, strict=True)))
        for row in rows
    ]
    return tag("table", tag("thead", tag("tr", *(tag("th", head) for head in heads))), tag("tbody", *body))


@dataclass(slots=True)
class Span:
    """An attempt, from the worker's `go` to its end."""

    device: str
    start_s: float = 0.0
    stop_s: float = 0.0
    outcome: str = Outcome.INTERRUPTED


class Story:
    """What the journal says, in the order in which it happened."""

    def __init__(self, journal: Path) -> None:
        self.runs: list[tuple[float, float]] = []
        """(begin, last event) of each."""
        self.spans: list[Span] = []
        self.texts: list[tuple[float, float, int]] = []
        """(from, to, how many) distinct texts were encoded."""
        self.limits: list[tuple[float, float]] = []
        """(from when on, tokens in a batch, or texts if tokens are not counted)."""
        self.failures: dict[tuple[str, str], tuple[int, float, of.FailureEvent]] = {}
        """By outcome and rule: (how many, time of the last, the last)."""
        self.quarantined: dict[tuple[str, int], of.Quarantined] = {}
        self.lines = deque[tuple[float, str]](maxlen=_MOST_LINES)
        self._spans: dict[tuple[str, int, int], Span] = {}
        self._began_s: dict[tuple[str, int], float] = {}
        self._saved: dict[tuple[str, int], int] = {}
        run_id = ""
        for at_s, run, event in read_events(journal):
            if run != run_id or not self.runs:
                self._cut_off()
                self.runs.append((at_s, at_s))
                run_id = run
            self.runs[-1] = self.runs[-1][0], max(at_s, self.runs[-1][1])
            self._apply(event, at_s)
        self._cut_off()

    def _cut_off(self) -> None:
        """Note that a run is over: what is still open was stopped with it."""
        for span in self._spans.values() if self.runs else ():
            span.stop_s = span.stop_s or self.runs[-1][1]
        self._spans.clear()

    def _apply(self, event: Event, at_s: float) -> None:
        if event.line:
            self.lines.append((at_s, event.line))
        match event:
            case of.RunEnded() | of.Halted():
                self.lines.append((at_s, f"the run ended with code {event.code} {getattr(event, 'what', '')}"))
            case of.Quarantined() if len(self.quarantined) < _MOST_ROWS:
                self.quarantined[event.output, event.row] = event
            case of.AttemptEvent():
                self._attempt(event, at_s)
            case of.PartCommitted() | of.BatchesKept():
                place = event.output, event.chunk
                self._saved[place] = self._saved.get(place, 0) + event.texts
                self.texts.append((self._began_s.get(place, at_s), at_s, event.texts))
            case of.ChunkCommitted():
                place = event.output, event.chunk
                before = max(self._saved.pop(place, 0), event.texts_before)
                self.texts.append((self._began_s.pop(place, at_s), at_s, max(0, event.texts - before)))

    def _attempt(self, event: of.AttemptEvent, at_s: float) -> None:
        key = event.output, event.chunk, event.attempt
        span = self._spans.get(key, Span(""))
        match event:
            case of.AttemptStarted():
                self._spans[key] = Span(str(event.device))
                self.spans.append(self._spans[key])
            case of.Go():
                span.start_s = self._began_s[key[:2]] = at_s
                limit = event.tokens or event.rows
                if not self.limits or self.limits[-1][1] != limit:
                    self.limits.append((at_s, limit))
            case of.WorkerEnded():
                span.stop_s = at_s
                span.outcome = Outcome.INTERRUPTED if event.returncode else Outcome.COMMITTED
            case of.FailureEvent():
                span.outcome = event.outcome
                if not isinstance(event, of.AttemptInterrupted):
                    kind = event.outcome, event.rule
                    self.failures[kind] = self.failures.get(kind, (0,))[0] + 1, at_s, event


class Axis:
    """Running time in steps: the pauses between runs are cut out."""

    def __init__(self, runs: Sequence[tuple[float, float]]) -> None:
        self.starts, self.stops, self.before_s = list[float](), list[float](), [0.0]
        for start_s, stop_s in runs:  # after the clock was set back they overlap, and are cut to fit
            self.starts.append(max([start_s, *self.stops[-1:]]))
            self.stops.append(max(self.starts[-1], stop_s))
            self.before_s.append(self.before_s[-1] + self.stops[-1] - self.starts[-1])
        self.running_s = self.before_s[-1]

    def step(self, time_s: float) -> int:
        """Return the step in which a time lies; one in a pause or outside is in the nearest."""
        number = max(0, bisect_right(self.starts, time_s) - 1)
        passed_s = min(max(time_s, self.starts[number]), self.stops[number]) - self.starts[number]
        return min(_STEPS - 1, int((self.before_s[number] + passed_s) / self.running_s * _STEPS))


def charts_of(story: Story, sensors: Sequence[SensorLine]) -> Iterator[Markup]:
    """Draw the four charts; one of which nothing is known is left out."""
    axis = Axis(story.runs)
    if not axis.running_s:
        return
    rates = dict.fromkeys(range(_STEPS), 0.0)
    for start_s, stop_s, texts in story.texts:
        steps = range(axis.step(start_s), axis.step(stop_s) + 1)
        for step in steps:
            rates[step] += texts / len(steps) / (axis.running_s / _STEPS)
    if mean := sum(rates.values()) / _STEPS:
        words = f"distinct texts a second; mean {mean:,.1f}"
        yield _curves("Throughput", axis, {words: rates}, "{:,.4g}".format)
    if spans := [span for span in story.spans if span.start_s]:
        yield _lanes(axis, spans)
    if len(sensors) > 2:  # two readings make a straight line, which says nothing
        yield _memory(axis, sensors)
    if len(story.limits) > 1:
        stairs = dict[int, float]()
        for (at_s, limit), (until_s, _) in pairwise([*story.limits, (story.runs[-1][1], 0.0)]):
            stairs |= dict.fromkeys(range(axis.step(at_s), axis.step(until_s) + 1), limit)
        words = "tokens in a batch, at most (texts, if the encoder does not count tokens)"
        yield _curves("Batch limit", axis, {words: stairs}, "{:,.0f}".format)


def _memory(axis: Axis, sensors: Sequence[SensorLine]) -> Markup:
    """Draw the memory of the GPUs if they are known, else of the workers."""
    gpus, workers = dict[str, dict[int, float]](), dict[int, float]()
    for line in sensors:
        step, held = axis.step(line.t), sum(each.get("rss_bytes", 0.0) for each in line.workers)
        workers[step] = max(workers.get(step, 0.0), held)
        for gpu in line.gpus:
            used, steps = gpu.get("memory_used_bytes", 0.0), gpus.setdefault(f"GPU {gpu.get('device', 0):.0f}", {})
            steps[step] = max(steps.get(step, 0.0), used)
    installed = max((gpu.get("memory_total_bytes", 0.0) for line in sensors for gpu in line.gpus), default=0.0)
    words = f"; {human_bytes(installed)} installed" * bool(installed)
    title = "GPU memory" + words if gpus else "Host memory"
    return _curves(title, axis, dict(sorted(gpus.items())) or {"workers": workers}, human_bytes)


def _lanes(axis: Axis, spans: Sequence[Span]) -> Markup:
    """Draw the attempts, a lane for each device; where several share a step, the worst is shown."""
    devices, colors = sorted({span.device for span in spans}, key=lambda name: (len(name), name))[:64], list(_COLORS)
    worst: dict[tuple[int, int], int] = {}
    for span in (span for span in spans if span.device in devices):
        color = next(
            (number for number, each in enumerate(colors) if span.outcome in _COLORS[each][1]), len(colors) - 1
        )
        for step in range(axis.step(span.start_s), axis.step(span.stop_s) + 1):
            place = devices.index(span.device), step
            worst[place] = max(worst.get(place, 0), color)
    high = _HEIGHT / len(devices)
    shapes = [
        tag(
            "rect",
            class_=f"k-{colors[color]}",
            x=step,
            y=f"{high * (lane + 0.1):.1f}",
            width=1,
            height=f"{high * 0.8:.1f}",
        )
        for (lane, step), color in sorted(worst.items())
    ]
    legend = {f"k-{colors[number]}": _COLORS[colors[number]][0] for number in sorted(set(worst.values()))}
    marks = [(1 - (lane + 0.5) / len(devices), f"device {name}") for lane, name in enumerate(devices)]
    return _figure("Attempts", axis, marks, shapes, legend, 22 * len(devices))


def _curves(title: str, axis: Axis, lines: dict[str, dict[int, float]], label: Callable[[float], str]) -> Markup:
    """Draw lines, by their words, over an upright axis that begins at 0 and ends a little above the highest value."""
    most = max((value for points in lines.values() for value in points.values()), default=0.0) or 1.0
    power = 10.0 ** math.floor(math.log10(most))
    top = most if label is human_bytes else next(power * n for n in (1, 2, 4, 6, 8, 10) if power * n >= most)
    shapes, legend = list[Markup](), dict[str, str]()
    for number, (words, points) in enumerate(lines.items()):
        css = f"s{number % 4 + 1}"
        legend[css] = f"{legend[css]}, {words}" if css in legend else words
        path = "L".join(f"{step + 0.5} {_HEIGHT * (1 - value / top):.1f}" for step, value in sorted(points.items()))
        shapes.append(tag("path", class_=f"line {css}", d=f"M{path}"))
    return _figure(title, axis, [(share, label(top * share)) for share in (0.0, 0.5, 1.0)], shapes, legend)


def _figure(
    title: str,
    axis: Axis,
    marks: Sequence[tuple[float, str]],
    shapes: Sequence[Markup],
    legend: dict[str, str],
    height_px: int = 110,
) -> Markup:
    """Put a drawing, its axes and its legend together; the words are HTML, so that they are not stretched.

    `marks` are (height from 0 to 1, words) of the upright axis, `legend` has words by CSS class.
    """
    pauses = "".join(f"M{before_s / axis.running_s * _STEPS:.1f} 0v{_HEIGHT}" for before_s in axis.before_s[1:-1])
    drawing = tag(
        "svg",
        tag("path", class_="pause", d=pauses or "M0 0"),
        *shapes,
        viewBox=f"0 0 {_STEPS} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
    )
    end = f"{human_time(axis.running_s)} of running time"
    times = (("first", 0, "0"), ("middle", 50, human_time(axis.running_s / 2)), ("last", 100, end))
    ticks = [tag("span", words, class_=f"tick {css}", style=f"left:{at}%") for css, at, words in times]
    values = [tag("span", words, class_="mark", style=f"bottom:{100 * at:.1f}%") for at, words in marks]
    named = [tag("span", tag("i", class_=css), words) for css, words in legend.items()]
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
    story = Story(layout.events)
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
        yield from (line for each in file if (line := read_json(SensorLine, each)) is not None and 0 < line.t < 1e11)


def write_report(workdir: Path, path: Path) -> None:
    """Make the page and put it there by one rename.

    Raises Halt (78) if the folder is not a workdir, or if anything but a page of ours is at that place; OSError.
    """
    check_target(path, "the report", lambda head: b'<meta name="generator" content="chunkvisor">' in head)
    write_atomic(path, render(workdir, time.time()).encode(errors="replace"), durable=False)
