"""A run as lines: progress for people, one JSON object for each event, the log, Python's logging, the last steps.

Nothing here raises: a closed terminal must not end an unattended run.
"""

import contextlib
import copy
import json
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self, TextIO

from chunkvisor.config.choices import FinalFormat
from chunkvisor.config.load import LoadedConfig
from chunkvisor.errors import Halt
from chunkvisor.events.event import AttemptStarted, Event, Halted, Invoked, Note, RunEnded, Severity, plain
from chunkvisor.events.state import RunState
from chunkvisor.printing import columns_of, write
from chunkvisor.show.observer import Observer, Observers
from chunkvisor.show.snapshot import Readings, Snapshot, look_at, snapshot_of
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor.units import counted, human_elapsed, human_moment, human_time, printable, wrapped

if TYPE_CHECKING:
    from chunkvisor.assemble.form import Form
    from chunkvisor.show.status import OutputStatus

LOGGER = logging.getLogger("chunkvisor")
_LEVELS = {Severity.NEWS: logging.INFO, Severity.CARE: logging.WARNING, Severity.LOSS: logging.ERROR}
_FIRST_S, _LAST_S, _SHARE = 20.0, 600.0, 0.1
_WAITING_S = 60.0
"""Between heartbeats of a run that waits: what it waits for is told once a minute besides."""


def heartbeat_s(elapsed_s: float) -> float:
    """Return the seconds until the next heartbeat: three a minute at first, one in ten minutes in the end."""
    return min(_LAST_S, max(_FIRST_S, _SHARE * elapsed_s))


def progress_line(snapshot: Snapshot) -> str:
    """Say how far the run is."""
    parts = [f"{stage(snapshot)}, {human_elapsed(snapshot.elapsed_s)} so far"]
    if snapshot.chunks:
        parts += [percent(snapshot.share), rows_in_words(snapshot), chunks_in_words(snapshot)]
    parts += rates(snapshot)
    if snapshot.eta_s is not None:
        parts.append(time_left(snapshot))
    # The event of the wait has told the rest of the reason.
    waiting = f"; waiting: {snapshot.waits_for.partition('. ')[0]}" if snapshot.waits_for else ""
    return ", ".join(parts) + waiting


def closing_line(snapshot: Snapshot) -> str | None:
    """Say what a run has done, and how far all is if work is left; None if there was nothing to do."""
    here, parts = snapshot.chunks_here, list[str]()
    if here:
        parts.append(f"{counted(here, 'chunk')} encoded in {human_elapsed(snapshot.elapsed_s)}, start-up included")
    if found := rates(snapshot):
        parts.append(f"{', '.join(found)} without it" if here else f"{', '.join(found)} (start-up not counted)")
    if snapshot.chunks and snapshot.share < 1:
        done = f"{rows_in_words(snapshot)} ({percent(snapshot.share)}), {chunks_in_words(snapshot)}"
        parts.append(f"done and kept: {done}")
    return "; ".join([*parts, snapshot.health.words]) if parts else None


def stage(snapshot: Snapshot) -> str:
    """Say what the run is at, and for how long, if that is less than all the time so far."""
    if snapshot.doing_s < 1 or snapshot.elapsed_s - snapshot.doing_s < 1:
        return snapshot.doing
    return f"{snapshot.doing} ({human_time(snapshot.doing_s)})"


def time_left(snapshot: Snapshot) -> str:
    """`about 71 s left`; and by what it is reckoned, if the rate of rows next to it would give another time."""
    return f"about {human_time(snapshot.eta_s or 0.0)} left{' by tokens' * snapshot.by_tokens}"


def rows_in_words(what: "Snapshot | OutputStatus") -> str:
    """`about 2,997 of 3,010 rows`; without `about` if it is known to the row."""
    return f"{'about ' * what.estimated}{what.rows_done:,} of {counted(what.rows, 'row')}"


def chunks_in_words(what: "Snapshot | OutputStatus") -> str:
    """`9 of 18 chunks`."""
    return f"{what.chunks_done:,} of {counted(what.chunks, 'chunk')}"


def rates(snapshot: Snapshot) -> list[str]:
    """Rows and tokens a second, if they are known; see `Snapshot.rows_per_s`."""
    found = (snapshot.rows_per_s, "rows/s"), (snapshot.tokens_per_s, "tokens/s")
    return [f"{figure(value)} {unit}" for value, unit in found if value]


def figure(value: float) -> str:
    """A rate with two significant digits at least."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def percent(share: float) -> str:
    """`53 %`; 100 only when all is done."""
    return f"{min(int(100 * share), 100 if share >= 1 else 99)} %"


class Console(Observer):
    """Writes a line for each change of state, without control characters, and a heartbeat of progress."""

    def __init__(
        self, stream: TextIO | None = None, *, last_words: bool = False, least: Severity = Severity.NEWS
    ) -> None:
        """`last_words`: say how a run halted, which on standard error the command itself does.

        `least`: pass over what matters less; with anything but NEWS there is no heartbeat.
        """
        self._stream = stream or sys.stderr
        self._last_words = last_words
        self._least = least
        self._in_words: Callable[[str], str] = str
        self._state = RunState()
        self._began_s = self._said_s = time.monotonic()

    def in_words_of(self, in_words: Callable[[str], str]) -> Self:
        """Return the same console for one run, each of whose lines is put into the words of its caller."""
        made = copy.copy(self)
        made._in_words = in_words
        return made

    def event(self, event: Event, state: RunState) -> None:
        """Show the event, if a person needs to know it."""
        self._state = state
        if event.severity >= self._least and (line := event.line):
            self._write(line)
        if isinstance(event, Halted | RunEnded):
            if closing := closing_line(snapshot_of(state, time.time(), Readings())):
                self.say(closing)
            if isinstance(event, Halted) and self._last_words:
                for line in event.last_words:
                    self._write(plain(line))

    def tick(self) -> None:
        """Say how far it is, now and then: the longer it lasts, the more rarely."""
        now = time.monotonic()
        pause_s = heartbeat_s(now - self._began_s)
        if self._state.waits_for:
            pause_s = max(pause_s, _WAITING_S)
        if self._least is Severity.NEWS and now - self._said_s >= pause_s:
            self._said_s = now
            if self._state.ending is None and (snapshot := look_at(self._state, sensors=False)) is not None:
                self._write(progress_line(snapshot))

    def say(self, text: str) -> None:
        """Write one line with the time, if news are wanted."""
        if self._least is Severity.NEWS:
            self._write(text)

    def _write(self, text: str) -> None:
        text, moment = self._in_words(text), f"{human_moment(time.time())} "
        columns = columns_of(self._stream)  # of a terminal without a live view
        _write_line(self._stream, wrapped(moment + text, columns, len(moment)) if columns else moment + text)


class JsonLines(Observer):
    """Turns events into objects with `t` (seconds since the epoch), `event`, and the details of the journal."""

    def __init__(self, stream: TextIO | None = None, *, least: Severity = Severity.NEWS) -> None:
        """`least`: pass over what matters less, but for the end."""
        self._stream = stream or sys.stderr
        self._least = least
        self._halted = False

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - an event says it all
        """Write one line."""
        self._tell(event)

    def say(self, text: str) -> None:
        """Write a note."""
        self._tell(Note(text))

    def last_words(self, halt: Halt) -> None:
        """Write the end, as an object; once, since a run that has begun tells it itself."""
        if not self._halted:
            self._tell(Halted(**halt.details()))

    def _tell(self, event: Event) -> None:
        self._halted |= isinstance(event, Halted)
        if event.severity >= self._least or isinstance(event, Halted | RunEnded):
            line = json.dumps({"t": round(time.time(), 3), "event": event.name, **event.details()})
            _write_line(self._stream, line)


def _write_line(stream: TextIO | None, line: str) -> None:
    with contextlib.suppress(OSError):
        write(stream, f"{printable(line)}\n")


@contextlib.contextmanager
def shown(quiet: bool, log_format: str) -> Iterator[Observer]:
    """Yield what shows a run: the live view, lines, or JSON. With JSON, a Halt becomes an object and an exit here."""
    least = Severity.LOSS if quiet else Severity.NEWS
    if log_format == "json":
        lines = JsonLines(least=least)
        try:
            yield lines
        except Halt as halt:
            lines.last_words(halt)
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

    If a program has not set up logging, Python itself writes warnings to standard error, and nothing else.
    """

    def __init__(self, *, told: bool = False, in_words: Callable[[str], str] = str) -> None:
        """`told`: the run is shown elsewhere; then only handlers that the program has set up are to hear of it.

        `in_words` puts a line into the words of the caller.
        """
        self._told = told
        self._in_words = in_words

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - an event says it all
        """Log the line of the event, if it has one."""
        if (line := event.line) and (LOGGER.hasHandlers() or not self._told):
            LOGGER.log(_LEVELS[event.severity], "%s", self._in_words(line))


class Afterwards(Observer):
    """Says lines to a person when the run is over, and adds them to the log, which is to have all that was shown."""

    def __init__(self, shown: Observer, layout: Layout) -> None:
        self._shown = shown
        self._layout = layout
        self._files: InvocationFiles | None = None
        self.worked = False
        """Whether a worker was started, so that there is more to tell than that the run was refused."""

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - an event says it all
        """Learn which invocation it is, and how far it came."""
        self.worked |= isinstance(event, AttemptStarted)
        if isinstance(event, Invoked) and event.invocation:
            self._files = InvocationFiles(self._layout.runs / event.invocation)

    @property
    def began(self) -> bool:
        """Whether the run came to begin, so that there is a log of it."""
        return self._files is not None

    def tell(self, text: str) -> None:
        """Say it; to be called when the run has ended, and with it whoever wrote the log."""
        self._shown.say(text)
        if self._files is not None:
            with (
                contextlib.suppress(OSError),
                open(self._files.log, "a", encoding="utf-8", errors="backslashreplace") as log,
            ):
                Console(log).say(text)


def next_steps(loaded: LoadedConfig, began_s: float, *, trial: bool, complete: bool, report: bool) -> Iterator[str]:
    """Say where things are and what to run next, when a run is over that began at that time (since the epoch).

    `report`: whether its report has anything to tell.
    """
    layout = Layout(loaded.config.workdir)
    if complete:
        from chunkvisor.assemble.form import (
            form_of,
            place_of,  # numpy with it, for which nothing waits any more
        )
        from chunkvisor.assemble.manifest import read_done_if_whole

        name, output = next(iter(loaded.config.outputs.items()))
        if (manifest := read_done_if_whole(layout.output(name))) is not None:
            form, rows_table = form_of(manifest), None
            if output.where is not None:
                rows_table = layout.output(name).rows_table.name
            yield how_to_read(place_of(layout.output(name), form), form, rows_table)
        yield f"to check the files: chunkvisor verify {shlex.quote(str(layout.workdir))}"
        if trial:
            yield "that was a trial; for all rows, run the same command without --max-rows"
    with contextlib.suppress(OSError):
        if report and layout.report.stat().st_mtime >= began_s:  # a run that found everything complete writes none
            yield f"how the run went: {layout.report}"


def how_to_read(path: Path, form: "Form", rows_table: str | None = None) -> str:
    """Say how to use a final; `rows_table` is named if its rows have other numbers than those of the source."""
    is_table = form.format is FinalFormat.PARQUET
    if form.shards is not None:
        found, rows = f"the files in {path}, in the order of their names", "; row i of the source is row i of them all"
    elif is_table:
        found, rows = f'pandas.read_parquet("{path}")', ""
    else:
        found, rows = f'numpy.load("{path}", mmap_mode="r")', "; row i is row i of the source"
    if rows_table is not None:
        whose = "" if is_table else f"row i is row i of {rows_table} next to it, and "
        rows = f"; {whose}source_row there is the row of the source"
    return f"to use it: {found}{rows}"
