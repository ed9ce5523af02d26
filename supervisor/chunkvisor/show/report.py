"""The report of a workdir: one HTML page, made from the folder alone, during or after a run.

It begins with what to worry about and ends with the paths. It needs no network and no script. A
journal or a log may be damaged, or written to harm: what cannot be read is left out, and every text
is cleaned and escaped.

`Timeline` reads the journal, `charts_of` draws it, and `render` puts the page together.
"""

import contextlib
import html
import pkgutil
import string
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from pathlib import Path

from chunkvisor.events import event as events
from chunkvisor.events.journal import read_events
from chunkvisor.events.state import RunState
from chunkvisor.messages import advice_on_bad_rows
from chunkvisor.outputs.state import read
from chunkvisor.show.status import State, Status, read_status
from chunkvisor.sources.table import text_of_row
from chunkvisor.store.attempt import read_tail
from chunkvisor.store.disk import check_target
from chunkvisor.store.layout import Layout, require_workdir
from chunkvisor.units import counted, human_bytes, human_moment, human_time, printable
from chunkvisor.version import __version__
from chunkvisor_worker.contract.files import write_atomic
from chunkvisor_worker.contract.messages import merge_peaks
from chunkvisor_worker.contract.rules import RULES
from chunkvisor_worker.contract.secrets import masked

_MOST_ROWS = 100
_MOST_KINDS = 40
_MOST_LINES = 200
_LOG_LINES = 14
_STEPS = 200
"""Steps of time in a chart, from its left end to its right; more could not be seen apart."""
_SMOOTH = 4
"""Steps over which the throughput is averaged, since chunks are committed in bursts."""
_HEIGHT = 100
_RULES = {rule.name: rule for rule in RULES}


class Markup(str):
    """HTML. A str that is not Markup is escaped before it comes into the page."""


def clean(value: object, chars: int = 1000) -> str:
    """Return a value as text for the page, without secrets and control characters, cut short."""
    text = printable(masked(str(value)[: 16 * chars]))
    return text if len(text) <= chars else f"{text[:chars]} …"


def tag(name: str, *inside: object, **attributes: object) -> Markup:
    """Make an element: `tag("p", "a < b", class_="x")` is `<p class="x">a &lt; b</p>`.

    `class_` is the attribute `class`, and `data_label` is `data-label`.
    """
    parts = [f"<{name}"]
    for key, value in attributes.items():
        parts.append(f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"')
    parts.append(">")
    parts += [each if isinstance(each, Markup) else html.escape(clean(each)) for each in inside]
    return Markup("".join([*parts, f"</{name}>"]))


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    """Make a table; on a narrow screen each row becomes a list with labels."""
    body = list[Markup]()
    for row in rows:
        cells = zip(heads, row, strict=True)
        body.append(
            tag("tr", *(tag("td", tag("div", cell), data_label=head) for head, cell in cells))
        )
    header = tag("tr", *(tag("th", head) for head in heads))
    return tag("table", tag("thead", header), tag("tbody", *body))


class Timeline:
    """What the journal says, by the time for which runs have been running.

    A moment is in seconds of that time: with a run of 60 s today and one of 60 s tomorrow, 90 is in
    the middle of the second. So charts have no gaps between runs.
    """

    def __init__(self, journal: Path) -> None:
        self.running_s = 0.0
        """How long runs have been running until the last event."""
        self.texts: list[tuple[float, int]] = []
        """(moment, how many distinct texts were encoded since the moment before)."""
        self.ended = defaultdict[str, list[float]](list)
        """The moments at which attempts ended, by `committed`, `failed` and `interrupted`."""
        self.busy = defaultdict[str, list[tuple[float, float]]](list)
        """(moment at which a worker ended, seconds that it had computed), by device."""
        self.memory = defaultdict[str, list[tuple[float, int]]](list)
        """(moment at which a worker ended, its peak in bytes), by device and kind of memory."""
        self.peaks = defaultdict[str, dict[str, int]](dict)
        """Peaks of batches in bytes, by device and padded tokens."""
        self.limits: list[tuple[float, float]] = []
        """(moment, most tokens in a batch from then on; texts if tokens are not counted)."""
        self.failures: dict[tuple[str, str], tuple[int, float, events.FailureEvent]] = {}
        """(how many, time of day of the last, the last), by outcome and rule."""
        self.quarantined: dict[tuple[str, int], events.Quarantined] = {}
        self.lines = deque[tuple[float, str]](maxlen=_MOST_LINES)
        state = RunState()
        last_run = ""
        last_s = 0.0
        for at_s, run, event in read_events(journal):
            if run == last_run:
                self.running_s += max(0.0, at_s - last_s)  # the clock may have been set back
            last_run = run
            last_s = max(at_s, last_s)
            texts = state.total("texts_here")
            state.apply(event, at_s)
            new = state.total("texts_here") - texts
            if new > 0:
                self.texts.append((self.running_s, new))
            self._apply(event, at_s, state)

    def _apply(self, event: events.Event, at_s: float, state: RunState) -> None:
        if event.line:
            self.lines.append((at_s, event.line))
        match event:
            case events.RunEnded() | events.Halted():
                self.lines.append(
                    (at_s, f"the run ended with code {event.code} {getattr(event, 'what', '')}")
                )
            case events.Quarantined() if len(self.quarantined) < _MOST_ROWS:
                self.quarantined[event.output, event.row] = event
            case events.Go():
                self.limits.append((self.running_s, event.tokens or event.rows))
            case events.WorkerEnded():
                name = state.devices.get(str(event.device), f"device {event.device}")
                self.busy[name].append((self.running_s, event.busy_s))
                for held, size_bytes in event.memory.items():
                    # Of a worker on a GPU, that of torch there is of interest.
                    if held != "resident_bytes" or len(event.memory) == 1:
                        line = f"{name}, {held.removesuffix('_bytes')}"
                        self.memory[line].append((self.running_s, size_bytes))
                self.peaks[name] = merge_peaks(self.peaks[name], event.batch_peaks)
            case events.AttemptInterrupted():
                self.ended["interrupted"].append(self.running_s)
            case events.FailureEvent():
                self.ended["failed"].append(self.running_s)
                kind = event.outcome, event.rule
                self.failures[kind] = self.failures.get(kind, (0,))[0] + 1, at_s, event
            case events.ChunkCommitted():
                self.ended["committed"].append(self.running_s)


Line = tuple[str, Iterable[tuple[int, float]]]
"""A line of a chart: its name, and (step, value) of its points."""


def charts_of(timeline: Timeline) -> Iterator[Markup]:
    """Draw the charts; one of which nothing is known is left out."""
    running_s = timeline.running_s
    if not running_s:
        return

    def step(now_s: float) -> int:
        return min(_STEPS - 1, int(now_s / running_s * _STEPS))

    def summed(points: Iterable[tuple[float, float]]) -> list[float]:
        """Add up the values of (moment, value) in each step, and all steps before it."""
        sums = [0.0] * _STEPS
        for now_s, value in points:
            sums[step(now_s)] += value
        return list(accumulate(sums))

    span = ("0", f"{human_time(running_s)} of running time")
    encoded = Counter[int]()
    for now_s, texts in timeline.texts:
        encoded[step(now_s) // _SMOOTH] += texts
    total = encoded.total()
    if total:
        smooth_s = _SMOOTH * running_s / _STEPS
        rates = [(at, encoded[at // _SMOOTH] / smooth_s) for at in range(_STEPS)]
        words = f"distinct texts a second; mean {total / running_s:,.1f}"
        yield _chart("Throughput", span, [(words, rates)], "{:,.4g}".format)
    if timeline.ended:
        counts = [
            (outcome, enumerate(summed((now_s, 1) for now_s in moments)))
            for outcome, moments in sorted(timeline.ended.items())
        ]
        yield _chart("Attempts", span, counts, "{:,.0f}".format)
    if timeline.busy:
        shares = []
        for name, ends in sorted(timeline.busy.items()):
            step_s = running_s / _STEPS
            shares_so_far = [
                (at, min(1.0, sum_s / step_s / (at + 1))) for at, sum_s in enumerate(summed(ends))
            ]
            shares.append((name, shares_so_far))
        yield _chart("Computing, share of the time so far", span, shares, "{:.0%}".format)
    held = [
        (name, [(step(now_s), size_bytes) for now_s, size_bytes in points])
        for name, points in sorted(timeline.memory.items())
    ]
    if held:
        yield _chart("Memory of a worker at its peak", span, held, human_bytes)
    sizes = sorted({size for peaks in timeline.peaks.values() for size in peaks}, key=int)
    if sizes:
        last = max(1, len(sizes) - 1)
        places = {size: at * (_STEPS - 1) // last for at, size in enumerate(sizes)}
        lines = list[Line]()
        for name, peaks in sorted(timeline.peaks.items()):
            lines.append((name, sorted((places[size], peaks[size]) for size in peaks)))
        axis = (f"up to {sizes[0]} padded tokens", f"up to {sizes[-1]}")
        yield _chart("Memory allocated at the peak of a batch", axis, lines, human_bytes)
    if len({limit for _, limit in timeline.limits}) > 1:
        words = "tokens in a batch, at most (texts if the encoder does not count tokens)"
        limits = [(step(now_s), limit) for now_s, limit in timeline.limits]
        yield _chart("Batch limit", span, [(words, limits)], "{:,.0f}".format)


def _chart(
    title: str, ends: tuple[str, str], lines: Sequence[Line], label: Callable[[float], str]
) -> Markup:
    """Draw lines, from 0 up to the highest value; `ends` are those of the horizontal axis.

    All words are HTML around the drawing, which is stretched to the width of the page.
    """
    drawn = [(words, list(points)) for words, points in lines]
    top = max((value for _, points in drawn for _, value in points), default=0.0) or 1.0
    shapes = list[Markup]()
    named = list[Markup]()
    for number, (words, points) in enumerate(drawn):
        css = f"s{number % 4 + 1}"
        path = "L".join(f"{at + 0.5} {_HEIGHT * (1 - value / top):.1f}" for at, value in points)
        shapes.append(tag("path", class_=f"line {css}", d=f"M{path}h1"))
        named.append(tag("span", tag("i", class_=css), words))
    drawing = tag(
        "svg", *shapes, viewBox=f"0 0 {_STEPS} {_HEIGHT}", preserveAspectRatio="none", role="img"
    )
    ticks = [tag("span", ends[0], class_="tick first"), tag("span", ends[1], class_="tick last")]
    marks = [
        tag("span", label(top * at), class_="mark", style=f"bottom:{100 * at:.0f}%")
        for at in (0.0, 0.5, 1.0)
    ]
    chart = tag("div", *marks, drawing, *ticks, class_="chart")
    return tag("figure", tag("figcaption", title), tag("p", *named, class_="legend soft"), chart)


def _failures(status: Status, timeline: Timeline, layout: Layout) -> Iterator[Markup]:
    """Show each kind of failure with what to do and the end of a log, the most frequent first."""
    for count, at_s, last in sorted(timeline.failures.values(), key=lambda each: -each[0])[
        :_MOST_KINDS
    ]:
        rule = _RULES.get(last.rule)
        explain = tag("code", f"chunkvisor explain {rule.name if rule else last.outcome}")
        yield tag("h3", last.outcome, " ", tag("small", f"{counted(count, 'attempt')}, ", explain))
        # Most remedies of rules say what the run does next, which is wrong if it has halted.
        goes_on = status.state is not State.HALTED
        fits = rule is not None and (rule.exit_code is not None or goes_on)
        remedy = rule.remedy if rule and fits else advice_on_bad_rows(last.outcome, last.rule)
        yield tag(
            "p",
            *([rule.cause, " "] if rule else []),
            tag("b", "What to do: "),
            remedy or "Read the log.",
        )
        where = f"{last.output} chunk {last.chunk}, attempt {last.attempt}, {human_moment(at_s)}"
        yield tag("p", f"Last: {where}: {last.reason}{last.at}", class_="soft")
        log = layout.output(last.output).attempt(last.chunk, last.attempt).log
        # The output's name has to be one of ours: a journal that was written to harm could name any
        # file of the machine.
        if last.output in status.outputs and log.is_file():
            lines = [
                clean(line.rstrip(), 180) for line in read_tail(log).splitlines() if line.strip()
            ]
            yield tag("pre", Markup(html.escape("\n".join([*lines[-_LOG_LINES:], str(log)]))))


def _bad_rows(status: Status, timeline: Timeline, layout: Layout) -> Iterator[tuple[object, ...]]:
    """Yield rows without a vector, by the manifest of a finished output, else by the journal."""
    for name, output in status.outputs.items():
        if not output.quarantined:
            continue
        with contextlib.suppress(OSError):
            manifest = read(layout.output(name), check_file=False).manifest
            found = [
                event.details() for event in timeline.quarantined.values() if event.output == name
            ]
            for row in manifest["quarantined"] if manifest is not None else found:
                text = text_of_row(layout.output(name).table, row["row"])
                values = (row["row"], row["place"], row["outcome"], row["reason"])
                yield name, *values, clean(text or "-", 120)


def render(workdir: Path, now_s: float) -> str:
    """Return the page as of `now_s`. Raises Halt (78) if the folder is not a workdir."""
    # Made absolute only after the check, which names the folder as it was given if it refuses.
    layout = Layout(require_workdir(workdir).workdir.absolute())
    status, lines = read_status(layout.workdir)
    timeline = Timeline(layout.events)
    lacking = any(output.quarantined for output in status.outputs.values())
    mood = {State.HALTED: "bad", State.STOPPED: "care"}.get(
        status.state, "care" if lacking else "good"
    )
    head = [
        tag("p", workdir.name, class_="soft"),
        tag("h1", lines[0]),
        *(tag("p", line) for line in lines[1:]),
    ]
    body = [tag("header", *head, class_=mood)]
    if timeline.failures:
        body += [tag("h2", "What failed"), *_failures(status, timeline, layout)]
    rows = list(islice(_bad_rows(status, timeline, layout), _MOST_ROWS + 1))
    if rows:
        heads = ("output", "row", "file and line", "outcome", "reason", "text")
        body += [tag("h2", "Rows without a vector"), table(heads, rows[:_MOST_ROWS])]
        if len(rows) > _MOST_ROWS:
            more = f"These are the first {_MOST_ROWS}; <output>.quarantined.jsonl lists all."
            body.append(tag("p", more))
    charts = list(charts_of(timeline)) or [tag("p", "Nothing has been encoded yet.")]
    happened = (
        tag("li", tag("small", human_moment(at_s)), f" {words}")
        for at_s, words in sorted(timeline.lines)
    )
    body += [tag("h2", "Over time"), *charts, tag("h2", "What happened"), tag("ul", *happened)]
    paths = [
        layout.workdir,
        *(layout.output(name).manifest for name in status.outputs),
        layout.events,
        *sorted(layout.runs.glob("[0-9]*/output.log"))[-1:],
    ]
    body += [tag("h2", "Files"), *(tag("p", path) for path in paths if path.exists())]
    body.append(
        tag(
            "footer",
            f"Written {human_moment(now_s)} by chunkvisor {__version__}; times are of its machine.",
        )
    )
    page = string.Template((pkgutil.get_data(__package__, "report.html") or b"").decode())
    return page.substitute(
        title=html.escape(clean(f"{lines[0]}: {workdir.name}", 200)), body="\n".join(body)
    )


def write_report(workdir: Path, path: Path) -> None:
    """Make the page, and put it in its place by one rename.

    Raises Halt (78) if the folder is not a workdir, or if another file than a report is in that
    place; OSError.
    """
    check_target(
        path, "the report", lambda head: b'<meta name="generator" content="chunkvisor">' in head
    )
    write_atomic(path, [render(workdir, time.time()).encode(errors="replace")], durable=False)
