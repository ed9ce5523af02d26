"""A run as lines.

Progress for people, one JSON object for each event, Python's logging, the last steps.

An observer hears of a run and decides nothing; one that is guarded cannot end it, and a closed
terminal ends nothing.
"""

import contextlib
import json
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TextIO

from chunkvisor.config.choices import FinalFormat
from chunkvisor.config.load import LoadedConfig
from chunkvisor.events.event import Event, Halted, Note, RunEnded, Weight, plain
from chunkvisor.events.state import RunState
from chunkvisor.printing import is_terminal, say, write
from chunkvisor.show.snapshot import snapshot_of, take_snapshot
from chunkvisor.store.layout import Layout
from chunkvisor.units import human_moment, printable

LOGGER = logging.getLogger("chunkvisor")
_LEVELS = {Weight.NEWS: logging.INFO, Weight.CARE: logging.WARNING, Weight.LOSS: logging.ERROR}


class Observer:
    """Hears the events of a run, in order, from the thread of its loop.

    This one only keeps the state.
    """

    state = RunState()
    """It has all events, is the same object throughout a run, and is only to be looked at."""

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - it is for others
        """Something happened; the state has it already."""
        self.state = state

    def tick(self) -> None:
        """Called a few times a second while the run lives, and while it waits for its sources."""

    def say(self, text: str) -> None:
        """A line of news from the command that shows the run."""

    def close(self) -> None:
        """The run is over; called once, after the last event."""


class Observers(Observer):
    """Several as one.

    The guarded ones hear of everything first, and are left out from their first exception on.
    """

    def __init__(self, *observers: Observer, guarded: Iterable[Observer] = ()) -> None:
        self._guarded, self._others = list(guarded), observers

    def event(self, event: Event, state: RunState) -> None:
        self.state = state
        self._call("event", event, state)

    def tick(self) -> None:
        self._call("tick")

    def say(self, text: str) -> None:
        self._call("say", text)

    def close(self) -> None:
        self._call("close")

    def _call(self, method: str, *arguments: object) -> None:
        for observer in list(self._guarded):
            try:
                getattr(observer, method)(*arguments)
            except Exception as error:  # noqa: BLE001 - whatever it is, the run is worth more
                self._guarded.remove(observer)
                name = type(observer).__name__
                why = f"{type(error).__name__}: {error}"
                say(
                    f"chunkvisor: {name} is left out; the run continues without it: {why}", err=True
                )
        for observer in self._others:
            getattr(observer, method)(*arguments)


def heartbeat_s(elapsed_s: float, *, waiting: bool = False) -> float:
    """Return the seconds until the next heartbeat.

    Three a minute at first, one in ten minutes in the end.
    """
    return min(600.0, max(60.0 if waiting else 20.0, 0.1 * elapsed_s))  # a wait is reported anyway


class Console(Observer):
    """Writes a line for each change of state, and a heartbeat of progress.

    No line has control characters.

    What matters less than `least` is passed over; with anything but NEWS there is no heartbeat.
    `last_words`: say how a run halted, which on standard error the command itself does.
    """

    def __init__(
        self, stream: TextIO | None = None, *, last_words: bool = False, least: Weight = Weight.NEWS
    ) -> None:
        self._stream = stream or sys.stderr
        self._last_words = last_words
        self._least = least
        self._began_s = self._said_s = time.monotonic()
        self.in_words: Callable[[str], str] = str
        """Puts each line into the words of the caller."""

    def event(self, event: Event, state: RunState) -> None:
        self.state = state
        if event.weight >= self._least and (line := event.line):
            self._write_with_time(line)
        if isinstance(event, Halted | RunEnded) and (
            closing := snapshot_of(state, time.time()).closing_line
        ):
            self.say(closing)
        for line in event.last_words if isinstance(event, Halted) and self._last_words else ():
            self._write_with_time(plain(line))

    def tick(self) -> None:
        """Say how far it is, now and then: the longer it lasts, the more rarely."""
        now_s = time.monotonic()
        if now_s - self._said_s >= heartbeat_s(
            now_s - self._began_s, waiting=bool(self.state.waits_for)
        ):
            self._said_s = now_s
            if self.state.ending is None and self.state.workdir:
                self.say(take_snapshot(self.state).line)

    def say(self, text: str) -> None:
        if self._least is Weight.NEWS:
            self._write_with_time(text)

    def _write_with_time(self, text: str) -> None:
        _write_line(self._stream, f"{human_moment(time.time())} {self.in_words(text)}")


class JsonLines(Observer):
    """Turns events into JSON objects: `t` (seconds since the epoch), `event`, details.

    What matters less than `least` is passed over, but for the end.
    """

    def __init__(self, least: Weight) -> None:
        self._least = least

    def event(self, event: Event, state: RunState) -> None:
        self.state = state
        if event.weight >= self._least or isinstance(event, Halted | RunEnded):
            line = json.dumps({"t": round(time.time(), 3), "event": event.name, **event.details()})
            _write_line(sys.stderr, line)

    def say(self, text: str) -> None:
        self.event(Note(text), self.state)


def _write_line(stream: TextIO | None, line: str) -> None:
    with contextlib.suppress(OSError):
        write(stream, f"{printable(line)}\n")


class Logger(Observer):
    """Hands the news of a run to Python's logger `chunkvisor`, for programs that call it.

    If a program has not set up logging, Python itself writes warnings to standard error; not if the
    run is shown elsewhere (`told`). `in_words` puts a line into the words of the caller.
    """

    def __init__(self, *, told: bool = False, in_words: Callable[[str], str] = str) -> None:
        self._told = told
        self._in_words = in_words

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - an event says it all
        if (line := event.line) and (LOGGER.hasHandlers() or not self._told):
            LOGGER.log(_LEVELS[event.weight], "%s", self._in_words(line))


def can_draw(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can move its cursor."""
    return is_terminal(stream) and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def is_watched() -> bool:
    """Whether a person looks on: at a terminal, or in a notebook."""
    kernel = sys.modules.get("ipykernel.kernelapp")  # which nbclient imports, too
    return is_terminal(sys.stderr) or (
        kernel is not None and bool(kernel.IPKernelApp.initialized())
    )


def next_steps(
    loaded: LoadedConfig, began_s: float, *, trial: bool, complete: bool, report: bool
) -> Iterator[str]:
    """Say where things are and what to run next.

    The run is over; it began at that time, in seconds since the epoch.

    `report`: whether its report has anything to say.
    """
    layout = Layout(loaded.config.workdir)
    if complete:
        # numpy comes with them, for which nothing waits any more
        from chunkvisor.outputs.forms import file_of
        from chunkvisor.outputs.state import read

        name, output = next(iter(loaded.config.outputs.items()))
        found = read(layout.output(name), look=False)
        if found.manifest is not None:
            rows_table = "" if output.where is None else found.layout.rows_table.name
            yield how_to_read(file_of(found.layout, found.manifest), rows_table)
        yield f"to check the files: chunkvisor verify {shlex.quote(str(layout.workdir))}"
        if trial:
            yield "that was a trial; for all rows, run the same command without --max-rows"
    with contextlib.suppress(OSError):
        if (
            report and layout.report.stat().st_mtime >= began_s
        ):  # a run that found everything complete writes none
            yield f"how the run went: {layout.report}"


def how_to_read(path: Path, rows_table: str = "") -> str:
    """Say how to use a final file.

    `rows_table` lists its rows if some of the source are left out.
    """
    if path.suffix == f".{FinalFormat.PARQUET}":
        return f'to use it: pandas.read_parquet("{path}")'
    found = f'numpy.load("{path}", mmap_mode="c")'
    source = (
        f"{rows_table} next to it, whose source_row is the row of the source"
        if rows_table
        else "the source"
    )
    return f"to use it: {found}; row i is row i of {source}"
