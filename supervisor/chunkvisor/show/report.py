"""The report of a workdir.

One HTML page, made from the folder alone, during a run or after any end of it.

It begins with what to worry about and ends with the paths. It needs no network and no script. A
journal or a log may be damaged or hostile: what does not fit is left out, and every word is cleaned
and escaped before it is shown.
"""

import contextlib
import html
import pkgutil
import string
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from pathlib import Path

from chunkvisor.events import event as events
from chunkvisor.events.event import Event
from chunkvisor.events.journal import read_events
from chunkvisor.events.state import RunState
from chunkvisor.messages import advice_on_row
from chunkvisor.outputs.state import read
from chunkvisor.show.status import State, Status, screen_of
from chunkvisor.sources.table import text_start
from chunkvisor.store.attempt import read_tail
from chunkvisor.store.disk import check_target
from chunkvisor.store.layout import InvocationFiles, Layout, require_workdir
from chunkvisor.units import counted, human_moment, human_time, printable
from chunkvisor.version import __version__
from chunkvisor_worker.contract.files import write_atomic
from chunkvisor_worker.contract.rules import RULES
from chunkvisor_worker.contract.wire import masked

_MOST_ROWS = 100
_MOST_KINDS = 40
_MOST_LINES = 200
_LOG_LINES = 14
_STEPS = 200
_SMOOTH = 4
_HEIGHT = 100
"""Steps of time in a drawing, since more cannot be told apart; and its height."""
_RULES = {rule.name: rule for rule in RULES}


class Markup(str):
    """HTML that is ready; whatever else comes into the page is escaped."""


def clean(value: object, chars: int = 1000) -> str:
    """Words of a log or a message as a page may show them.

    No tokens, no control characters, not endless.
    """
    text = printable(masked(str(value)[: 16 * chars]))
    return text if len(text) <= chars else f"{text[:chars]} …"


def tag(name: str, *inside: object, **attributes: object) -> Markup:
    """Make an element; what is not markup is cleaned and escaped.

    Attributes are named like `class_`, `data_label`.
    """
    named = (
        (key.rstrip("_").replace("_", "-"), html.escape(str(value)))
        for key, value in attributes.items()
    )
    words = (each if isinstance(each, Markup) else html.escape(clean(each)) for each in inside)
    return Markup(
        "".join(
            ["<", name, *(f' {key}="{value}"' for key, value in named), ">", *words, f"</{name}>"]
        )
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    """Make a table; on a narrow screen each row becomes a list with labels."""
    body = [
        tag(
            "tr",
            *(
                tag("td", tag("div", cell), data_label=head)
                for head, cell in zip(heads, row, strict=True)
            ),
        )
        for row in rows
    ]
    return tag(
        "table", tag("thead", tag("tr", *(tag("th", head) for head in heads))), tag("tbody", *body)
    )


class Timeline:
    """What the journal says, in the order in which it happened.

    Time is running time, without the pauses of a run.
    """

    def __init__(self, journal: Path) -> None:
        self.running_s = 0.0
        """How long runs have been running by the last event."""
        self.texts: list[tuple[float, int]] = []
        """(when, how many) distinct texts were encoded."""
        self.ended: dict[str, list[float]] = {}
        """When attempts ended, by what became of them."""
        self.busy: dict[str, list[tuple[float, float]]] = {}
        """By name of the device: (when a worker ended, for how many seconds it had computed)."""
        self.limits: list[tuple[float, float]] = []
        """(from when on, tokens in a batch, or texts if tokens are not counted)."""
        self.failures: dict[tuple[str, str], tuple[int, float, events.FailureEvent]] = {}
        """By outcome and rule: (how many, time of the last, the last)."""
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
            if (new := state.total("texts_here") - texts) > 0:
                self.texts.append((self.running_s, new))
            self._apply(event, at_s, state)

    def _apply(self, event: Event, at_s: float, state: RunState) -> None:
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
                self.busy.setdefault(name, []).append((self.running_s, event.busy_s))
            case events.AttemptInterrupted():
                self.ended.setdefault("interrupted", []).append(self.running_s)
            case events.FailureEvent():
                self.ended.setdefault("failed", []).append(self.running_s)
                kind = event.outcome, event.rule
                self.failures[kind] = self.failures.get(kind, (0,))[0] + 1, at_s, event
            case events.ChunkCommitted():
                self.ended.setdefault("committed", []).append(self.running_s)


Line = tuple[str, Iterable[tuple[int, float]]]
"""The words for a line of a chart, and its values by step."""


def charts_of(timeline: Timeline) -> Iterator[Markup]:
    """Draw the four charts over the running time; one about which nothing is known is left out."""
    running_s = timeline.running_s
    if not running_s:
        return

    def step(now_s: float) -> int:
        return min(_STEPS - 1, int(now_s / running_s * _STEPS))

    encoded = Counter[int]()
    steps = range(_STEPS)
    for now_s, texts in timeline.texts:
        encoded[step(now_s) // _SMOOTH] += texts  # chunks are committed in bursts
    if total := sum(encoded.values()):
        rates = (
            (number, encoded[number // _SMOOTH] / _SMOOTH * _STEPS / running_s) for number in steps
        )
        words = f"distinct texts a second; mean {total / running_s:,.1f}"
        yield _chart("Throughput", running_s, [(words, rates)], "{:,.4g}".format)
    if timeline.ended:
        counts = {
            words: Counter(map(step, times)) for words, times in sorted(timeline.ended.items())
        }
        sums = [
            (words, enumerate(accumulate(float(count[each]) for each in steps)))
            for words, count in counts.items()
        ]
        yield _chart("Attempts", running_s, sums, "{:,.0f}".format)
    if timeline.busy:
        shares = []
        for name, ends in sorted(timeline.busy.items()):
            busy_s = dict.fromkeys(steps, 0.0)
            for now_s, computed_s in ends:
                busy_s[step(now_s)] += computed_s
            sums_s = enumerate(accumulate(busy_s.values()), 1)
            shares.append(
                (
                    name,
                    [(at - 1, min(1.0, sum_s * _STEPS / running_s / at)) for at, sum_s in sums_s],
                )
            )
        yield _chart("Computing, share of the time so far", running_s, shares, "{:.0%}".format)
    if len({limit for _, limit in timeline.limits}) > 1:
        words = "tokens in a batch, at most (texts if the encoder does not count tokens)"
        limits = [(step(now_s), limit) for now_s, limit in timeline.limits]
        yield _chart("Batch limit", running_s, [(words, limits)], "{:,.0f}".format)


def _chart(
    title: str, running_s: float, lines: Sequence[Line], label: Callable[[float], str]
) -> Markup:
    """Draw lines over an upright axis from 0 to the highest value.

    The words are HTML, so they are not stretched.
    """
    drawn = [(words, list(points)) for words, points in lines]
    top = max((value for _, points in drawn for _, value in points), default=0.0) or 1.0
    shapes = list[Markup]()
    named = list[Markup]()
    for number, (words, points) in enumerate(drawn):
        css = f"s{number % 4 + 1}"
        path = "L".join(f"{at + 0.5} {_HEIGHT * (1 - value / top):.1f}" for at, value in points)
        shapes.append(tag("path", class_=f"line {css}", d=f"M{path}"))
        named.append(tag("span", tag("i", class_=css), words))
    drawing = tag(
        "svg", *shapes, viewBox=f"0 0 {_STEPS} {_HEIGHT}", preserveAspectRatio="none", role="img"
    )
    ticks = [tag("span", "0", class_="tick first")]
    ticks.append(tag("span", f"{human_time(running_s)} of running time", class_="tick last"))
    marks = [
        tag("span", label(top * at), class_="mark", style=f"bottom:{100 * at:.0f}%")
        for at in (0.0, 0.5, 1.0)
    ]
    chart = tag("div", *marks, drawing, *ticks, class_="chart")
    return tag("figure", tag("figcaption", title), tag("p", *named, class_="legend soft"), chart)


def _failures(status: Status, timeline: Timeline, layout: Layout) -> Iterator[Markup]:
    """Show failures by kind, the most frequent first, each with what to do and the end of a log."""
    for count, at_s, last in sorted(timeline.failures.values(), key=lambda each: -each[0])[
        :_MOST_KINDS
    ]:
        rule = _RULES.get(last.rule)
        explain = tag("code", f"chunkvisor explain {rule.name if rule else last.outcome}")
        yield tag("h3", last.outcome, " ", tag("small", f"{counted(count, 'attempt')}, ", explain))
        # A rule's remedy says what the run does next; of a run that has halted there is no next.
        told = rule is not None and (rule.exit_code is not None or status.state is not State.HALTED)
        remedy = rule.remedy if rule and told else advice_on_row(last.outcome, last.rule)
        yield tag(
            "p",
            *([rule.cause, " "] if rule else []),
            tag("b", "What to do: "),
            remedy or "Read the log.",
        )
        where = f"{last.output} chunk {last.chunk}, attempt {last.attempt}, {human_moment(at_s)}"
        yield tag("p", f"Last: {where}: {last.reason}{last.at}", class_="soft")
        log = layout.output(last.output).attempt(last.chunk, last.attempt).log
        if (
            last.output in status.outputs and log.is_file()
        ):  # a journal cannot name files from elsewhere
            lines = [
                clean(line.rstrip(), 180) for line in read_tail(log).splitlines() if line.strip()
            ]
            yield tag("pre", Markup(html.escape("\n".join([*lines[-_LOG_LINES:], str(log)]))))


def _bad_rows(status: Status, timeline: Timeline, layout: Layout) -> Iterator[tuple[object, ...]]:
    """Yield rows without a vector: from the record of a finished output, else from the journal."""
    for name in (name for name, output in status.outputs.items() if output.quarantined):
        with contextlib.suppress(OSError):
            manifest = read(layout.output(name), look=False).manifest
            found = [
                event.details()
                for (output, _), event in timeline.quarantined.items()
                if output == name
            ]
            for row in manifest["quarantined"] if manifest is not None else found:
                text = text_start(layout.output(name).table, row["row"], 400)
                yield (
                    name,
                    row["row"],
                    row["place"],
                    row["outcome"],
                    row["reason"],
                    clean(text or "-", 120),
                )


def render(workdir: Path, now_s: float) -> str:
    """Return the page as written at that time. Raises Halt (78) if the folder is not a workdir."""
    # a refusal names the folder as it was given
    layout = Layout(require_workdir(workdir).workdir.absolute())
    status, lines = screen_of(layout.workdir)
    timeline = Timeline(layout.events)
    invocations = [
        InvocationFiles(path) for path in sorted(layout.runs.glob("*/")) if not path.is_symlink()
    ]
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
    if rows := list(islice(_bad_rows(status, timeline, layout), _MOST_ROWS + 1)):
        heads = ("output", "row", "file and line", "outcome", "reason", "text")
        body += [tag("h2", "Rows without a vector"), table(heads, rows[:_MOST_ROWS])]
        body += [
            tag("p", f"These are the first {_MOST_ROWS}; <output>.quarantined.jsonl lists all.")
        ] * (len(rows) > _MOST_ROWS)
    charts = list(charts_of(timeline)) or [tag("p", "Nothing has been encoded yet.")]
    told = (
        tag("li", tag("small", human_moment(at_s)), f" {words}")
        for at_s, words in sorted(timeline.lines)
    )
    body += [tag("h2", "Over time"), *charts, tag("h2", "What happened"), tag("ul", *told)]
    paths = [
        layout.workdir,
        *(layout.output(name).manifest for name in status.outputs),
        layout.events,
    ]
    paths += [newest.log for newest in invocations[-1:]]
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
    """Make the page and put it there by one rename.

    Raises Halt (78) if the folder is not a workdir, or if anything but a page of ours is at that
    place; OSError.
    """
    check_target(
        path, "the report", lambda head: b'<meta name="generator" content="chunkvisor">' in head
    )
    write_atomic(path, render(workdir, time.time()).encode(errors="replace"), durable=False)
