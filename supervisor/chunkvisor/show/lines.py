"""A run as lines: progress for people, one JSON object for each event, the log, Python's logging, the last steps.

Nothing here raises: a closed terminal must not end an unattended run.
"""

import contextlib
import json
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from chunkvisor.config.choices import FinalFormat
from chunkvisor.config.load import LoadedConfig
from chunkvisor.errors import Halt
from chunkvisor.events.event import AttemptStarted, Event, Halted, Invoked, Note, RunEnded, Severity, plain
from chunkvisor.events.state import RunState
from chunkvisor.printing import columns_of, write
from chunkvisor.show.observer import Observer, Observers
from chunkvisor.show.snapshot import Snapshot, look_at, snapshot_of
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor.units import counted, human_elapsed, human_moment, human_time, printable, wrapped

if TYPE_CHECKING:
    from chunkvisor.assemble.forms import Form

LOGGER = logging.getLogger("chunkvisor")
_LEVELS = {Severity.NEWS: logging.INFO, Severity.CARE: logging.WARNING, Severity.LOSS: logging.ERROR}
_FIRST_S, _LAST_S, _SHARE = 20.0, 600.0, 0.1
_WAITING_S = 60.0
"""Between heartbeats of a run that waits: once a minute its wait is reported anyway."""


def heartbeat_s(elapsed_s: float) -> float:
    """Return the seconds until the next heartbeat: three a minute at first, one in ten minutes in the end."""
    return min(_LAST_S, max(_FIRST_S, _SHARE * elapsed_s))


def progress_line(now: Snapshot) -> str:
    """Say how far the run is."""
    parts = [f"{stage(now)}, {human_elapsed(now.elapsed_s)} so far"]
    if now.total("chunks"):
        parts += [percent(now.share), *how_far(now)]
    parts += rates(now)
    waits_for = now.state.waits_for if now.state.ending is None else ""
    # The event of the wait has said the rest of the reason.
    return ", ".join(parts) + f"; waiting: {waits_for.partition('. ')[0]}" * bool(waits_for)


def closing_line(now: Snapshot) -> str | None:
    """Say what a run has done, and how far all is if work is left; None if there was nothing to do."""
    here, parts = now.state.chunks_here, list[str]()
    if here:
        parts.append(f"{counted(here, 'chunk')} encoded in {human_elapsed(now.elapsed_s)}, start-up included")
    if found := rates(now):
        parts.append(", ".join(found) + (" without it" if here else " (start-up not counted)"))
    if now.total("chunks") and now.share < 1:
        rows, chunks = how_far(now)
        parts.append(f"done and kept: {rows} ({percent(now.share)}), {chunks}")
    return "; ".join([*parts, now.health]) if parts else None


def stage(now: Snapshot) -> str:
    """Say what the run is at, and for how long, if that is less than all the time so far."""
    if now.doing_s < 1 or now.elapsed_s - now.doing_s < 1:
        return now.doing
    return f"{now.doing} ({human_time(now.doing_s)})"


def how_far(now: Snapshot) -> list[str]:
    """Rows and chunks that are done, of all."""
    rows = rows_in_words(now.total("rows_done"), now.total("rows"), about=now.estimated)
    return [rows, f"{now.total('chunks_done'):,} of {counted(now.total('chunks'), 'chunk')}"]


def rows_in_words(done: int, rows: int, *, about: bool) -> str:
    """`about 2,997 of 3,010 rows`; without `about` if it is known to the row."""
    return f"{'about ' * about}{done:,} of {counted(rows, 'row')}"


def rates(now: Snapshot) -> list[str]:
    """Rows and tokens a second (see `Snapshot.rows_per_s`), and the time left, if they are known."""
    found = (now.rows_per_s, "rows/s"), (now.tokens_per_s, "tokens/s")
    left = [f"about {human_time(now.eta_s)} left"] if now.eta_s is not None else []
    return [*(f"{figure(value)} {unit}" for value, unit in found if value), *left]


def figure(value: float) -> str:
    """A rate with two significant digits at least."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def percent(share: float) -> str:
    """`53 %`; 100 only when all is done."""
    return f"{min(int(100 * share), 100 if share >= 1 else 99)} %"


class Console(Observer):
    """Writes a line for each change of state, without control characters, and a heartbeat of progress.

    What matters less than `least` is passed over; with anything but NEWS there is no heartbeat. `last_words`: say how a
    run halted, which on standard error the command itself does.
    """

    def __init__(
        self, stream: TextIO | None = None, *, last_words: bool = False, least: Severity = Severity.NEWS
    ) -> None:
        self._stream = stream or sys.stderr
        self._last_words, self._least = last_words, least
        self._state = RunState()
        self._began_s = self._said_s = time.monotonic()
        self.in_words: Callable[[str], str] = str
        """Puts each line into the words of the caller."""

    def event(self, event: Event, state: RunState) -> None:
        self._state = state
        if event.severity >= self._least and (line := event.line):
            self._write(line)
        if isinstance(event, Halted | RunEnded):
            if closing := closing_line(snapshot_of(state, time.time())):
                self.say(closing)
            for line in event.last_words if isinstance(event, Halted) and self._last_words else ():
                self._write(plain(line))

    def tick(self) -> None:
        """Say how far it is, now and then: the longer it lasts, the more rarely."""
        now_s = time.monotonic()
        pause_s = max(heartbeat_s(now_s - self._began_s), _WAITING_S * bool(self._state.waits_for))
        if self._least is Severity.NEWS and now_s - self._said_s >= pause_s:
            self._said_s = now_s
            if self._state.ending is None and (snapshot := look_at(self._state, sensors=False)) is not None:
                self._write(progress_line(snapshot))

    def say(self, text: str) -> None:
        if self._least is Severity.NEWS:
            self._write(text)

    def _write(self, text: str) -> None:
        moment = f"{human_moment(time.time())} "
        text, columns = moment + self.in_words(text), columns_of(self._stream)  # of a terminal without a live view
        _write_line(self._stream, wrapped(text, columns, len(moment)) if columns else text)


class JsonLines(Observer):
    """Turns events into objects with `t` (seconds since the epoch), `event`, and the details of the journal.

    What matters less than `least` is passed over, but for the end.
    """

    def __init__(self, least: Severity) -> None:
        self._least, self.halted = least, False

    def event(self, event: Event, state: RunState | None = None) -> None:  # noqa: ARG002 - an event says it all
        self.halted |= isinstance(event, Halted)
        if event.severity >= self._least or isinstance(event, Halted | RunEnded):
            line = json.dumps({"t": round(time.time(), 3), "event": event.name, **event.details()})
            _write_line(sys.stderr, line)

    def say(self, text: str) -> None:
        self.event(Note(text))


def _write_line(stream: TextIO | None, line: str) -> None:
    with contextlib.suppress(OSError):
        write(stream, f"{printable(line)}\n")


@contextlib.contextmanager
def shown(quiet: bool, log_format: str) -> Iterator[Observer]:
    """Yield what shows a run: the live view, lines, or JSON. With JSON, a Halt becomes an object and an exit here."""
    least = Severity.LOSS if quiet else Severity.NEWS
    if log_format == "json":
        lines = JsonLines(least)
        try:
            yield lines
        except Halt as halt:
            if not lines.halted:  # a run that has begun reports its end itself
                lines.event(Halted(**halt.details()))
            sys.exit(int(halt.code))
    elif least is Severity.NEWS and can_draw(sys.stderr):
        from chunkvisor.show.terminal import Live  # rich with it, which lines do not need

        yield Observers(guarded=[Live()])
    else:
        yield Console(least=least)


def can_draw(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can move its cursor."""
    try:
        return stream.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")
    except ValueError:  # closed
        return False


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; others, such as nbclient, import ipykernel, too."""
    kernel = sys.modules.get("ipykernel.kernelapp")
    return kernel is not None and bool(kernel.IPKernelApp.initialized())


def is_watched() -> bool:
    """Whether a person looks on: at a terminal, or in a notebook."""
    return in_notebook() or (sys.stderr is not None and sys.stderr.isatty())


class Logger(Observer):
    """Hands the news of a run to Python's logger `chunkvisor`, for programs that call it.

    If a program has not set up logging, Python itself writes warnings to standard error, and nothing else; not if the
    run is shown elsewhere (`told`). `in_words` puts a line into the words of the caller.
    """

    def __init__(self, *, told: bool = False, in_words: Callable[[str], str] = str) -> None:
        self._told, self._in_words = told, in_words

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - an event says it all
        if (line := event.line) and (LOGGER.hasHandlers() or not self._told):
            LOGGER.log(_LEVELS[event.severity], "%s", self._in_words(line))


class Afterwards(Observer):
    """Says lines to a person when the run is over, and adds them to the log, which is to have all that was shown."""

    def __init__(self, shown: Observer, layout: Layout) -> None:
        self._shown, self._layout = shown, layout
        self._log: Path | None = None
        self.began, self.worked = False, False
        """Whether there is a log of the run, and whether a worker was started."""

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - an event says it all
        self.worked |= isinstance(event, AttemptStarted)
        if isinstance(event, Invoked) and event.invocation:
            self.began, self._log = True, InvocationFiles(self._layout.runs / event.invocation).log

    def tell(self, text: str) -> None:
        """Say it; to be called when the run has ended, and with it whoever wrote the log."""
        self._shown.say(text)
        if self._log is not None:
            with contextlib.suppress(OSError), open(self._log, "a", encoding="utf-8", errors="backslashreplace") as log:
                Console(log).say(text)


def next_steps(loaded: LoadedConfig, began_s: float, *, trial: bool, complete: bool, report: bool) -> Iterator[str]:
    """Say where things are and what to run next, when a run is over that began at that time (since the epoch).

    `report`: whether its report has anything to say.
    """
    layout = Layout(loaded.config.workdir)
    if complete:
        # numpy comes with them, for which nothing waits any more
        from chunkvisor.assemble.forms import form_of, place_of
        from chunkvisor.assemble.manifest import read_done_if_whole

        name, output = next(iter(loaded.config.outputs.items()))
        if (manifest := read_done_if_whole(layout.output(name))) is not None:
            rows_table = "" if output.where is None else layout.output(name).rows_table.name
            yield how_to_read(place_of(layout.output(name), form_of(manifest)), form_of(manifest), rows_table)
        yield f"to check the files: chunkvisor verify {shlex.quote(str(layout.workdir))}"
        if trial:
            yield "that was a trial; for all rows, run the same command without --max-rows"
    with contextlib.suppress(OSError):
        if report and layout.report.stat().st_mtime >= began_s:  # a run that found everything complete writes none
            yield f"how the run went: {layout.report}"


def how_to_read(path: Path, form: "Form", rows_table: str = "") -> str:
    """Say how to use a final file; `rows_table` lists its rows if some of the source are left out."""
    if form.shards is not None:
        found = f"the files in {path}, in the order of their names"
    elif form.format is FinalFormat.PARQUET:
        return f'to use it: pandas.read_parquet("{path}")'
    else:
        found = f'numpy.load("{path}", mmap_mode="r")'
    source = f"{rows_table} next to it, whose source_row is the row of the source" if rows_table else "the source"
    return f"to use it: {found}; row i is row i of {source}"
