"""A run as lines: progress for people, JSON objects for programs, records for Python's logging.

`Observer` is the base of all that show a run, here and in the other modules.
"""

import json
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from chunkvisor.config.choices import FinalFormat
from chunkvisor.config.load import LoadedConfig, RowChoice
from chunkvisor.errors import ExitCode
from chunkvisor.events.event import Event, Halted, Note, RunEnded, Weight, plain
from chunkvisor.events.state import RunState
from chunkvisor.printing import is_terminal, print_lines, write
from chunkvisor.show.snapshot import snapshot_of, take_snapshot
from chunkvisor.store.layout import Layout
from chunkvisor.units import human_moment, printable

LOGGER = logging.getLogger("chunkvisor")
_LEVELS = {Weight.NEWS: logging.INFO, Weight.CARE: logging.WARNING, Weight.LOSS: logging.ERROR}


class Observer:
    """Is called with the events of a run, in order, in the thread of its loop.

    This base class only keeps the state.
    """

    state = RunState()
    """What all events add up to: the same object throughout a run, to be read only."""

    def watch(self, state: RunState) -> None:
        """Take the state of the run that begins: called once, before the first event."""
        self.state = state

    def event(self, event: Event) -> None:
        """Take an event, which the state has already."""

    def tick(self) -> None:
        """Take note of the time: called a few times a second while the run lives."""

    def say(self, text: str) -> None:
        """Show a line from the command that shows the run."""

    def close(self) -> None:
        """End: called once, after the last event."""


class Observers(Observer):
    """Calls several observers, first the guarded ones.

    If a guarded observer raises an exception, a line on standard error says so, and it is not
    called again. What another observer raises ends the run.
    """

    def __init__(self, *observers: Observer, guarded: Iterable[Observer] = ()) -> None:
        self._guarded = list(guarded)
        self._others = observers

    def watch(self, state: RunState) -> None:
        super().watch(state)
        self._call("watch", state)

    def event(self, event: Event) -> None:
        self._call("event", event)

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
            except Exception as error:  # noqa: BLE001 - no error of an observer may end a run
                self._guarded.remove(observer)
                name = type(observer).__name__
                why = f"{type(error).__name__}: {error}"
                print_lines(
                    f"chunkvisor: {name} is left out; the run continues without it: {why}", err=True
                )
        for observer in self._others:
            getattr(observer, method)(*arguments)


def heartbeat_s(elapsed_s: float, *, waiting: bool = False) -> float:
    """Return how many seconds there are between two lines of progress.

    They are 20 at first, and a tenth of the elapsed time later, up to 600. While the run waits they
    are at least 60, since an event has reported the wait.
    """
    return min(600.0, max(60.0 if waiting else 20.0, 0.1 * elapsed_s))


class Console(Observer):
    """Writes a line for each event that has words, and a line of progress now and then.

    Events below the weight `least` are skipped; lines of progress are only written if it is NEWS.
    `last_words`: also write why a run halted. On standard error that is left to the command.
    """

    def __init__(
        self, stream: TextIO | None = None, *, last_words: bool = False, least: Weight = Weight.NEWS
    ) -> None:
        self._stream = stream or sys.stderr
        self._last_words = last_words
        self._least = least
        self._began_s = time.monotonic()
        self._progress_s = self._began_s  # when there was a line of progress last
        self.in_words: Callable[[str], str] = str
        """Rewrites each line for the caller, such as `row 3` as `texts[3]`."""

    def event(self, event: Event) -> None:
        if event.weight >= self._least and event.line:
            self._write_with_time(event.line)
        if isinstance(event, Halted | RunEnded):
            closing = snapshot_of(self.state).closing_line
            if closing:
                self.say(closing)
        if isinstance(event, Halted) and self._last_words:
            for line in event.last_words:
                self._write_with_time(plain(line))

    def tick(self) -> None:
        now_s = time.monotonic()
        wait_s = heartbeat_s(now_s - self._began_s, waiting=bool(self.state.waits_for))
        if now_s - self._progress_s >= wait_s:
            self._progress_s = now_s
            if self.state.ending is None and self.state.workdir:
                self.say(take_snapshot(self.state).line)

    def say(self, text: str) -> None:
        if self._least is Weight.NEWS:
            self._write_with_time(text)

    def _write_with_time(self, text: str) -> None:
        _write_line(self._stream, f"{human_moment(time.time())} {self.in_words(text)}")


class JsonLines(Observer):
    """Prints events as JSON objects: `t` (seconds since the epoch), `event` (its name), its fields.

    Events below the weight `least` are skipped, except for the end.
    """

    def __init__(self, least: Weight) -> None:
        self._least = least

    def event(self, event: Event) -> None:
        if event.weight >= self._least or isinstance(event, Halted | RunEnded):
            line = json.dumps({"t": round(time.time(), 3), "event": event.name, **event.details()})
            _write_line(sys.stderr, line)

    def say(self, text: str) -> None:
        self.event(Note(text))


def _write_line(stream: TextIO | None, line: str) -> None:
    with suppress(OSError):
        write(stream, f"{printable(line)}\n")


class Logger(Observer):
    """Hands the events of a run to Python's logger `chunkvisor`.

    In a program that has not set up logging, Python writes warnings to standard error. Nothing is
    logged there if the user sees the run in another way (`is_shown`). `in_words` is as in
    `Console`.
    """

    def __init__(self, *, is_shown: bool, in_words: Callable[[str], str]) -> None:
        self._is_shown = is_shown
        self._in_words = in_words

    def event(self, event: Event) -> None:
        if event.line and (LOGGER.hasHandlers() or not self._is_shown):
            LOGGER.log(_LEVELS[event.weight], "%s", self._in_words(event.line))


def can_draw(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can move its cursor."""
    return is_terminal(stream) and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def is_watched() -> bool:
    """Whether a person is likely to watch: at a terminal, or in a notebook."""
    if is_terminal(sys.stderr):
        return True
    # The module alone does not show a notebook: nbclient imports it as well.
    kernel = sys.modules.get("ipykernel.kernelapp")
    return kernel is not None and bool(kernel.IPKernelApp.initialized())


def next_steps(
    loaded: LoadedConfig, rows: RowChoice, state: RunState, code: ExitCode
) -> Iterator[str]:
    """Say where the files of a run are that ended with `code`, and which command to run next."""
    layout = Layout(loaded.config.workdir)
    if code is ExitCode.COMPLETE:
        # Late, as they import numpy: no one waits for that now.
        from chunkvisor.outputs.forms import file_of
        from chunkvisor.outputs.state import read

        name, output = next(iter(loaded.config.outputs.items()))
        found = read(layout.output(name), check_file=False)
        if found.manifest is not None:
            rows_table = "" if output.where is None else found.layout.rows_table.name
            yield how_to_read(file_of(found.layout, found.manifest), rows_table, rows.part)
        yield f"to check the files: chunkvisor verify {shlex.quote(str(layout.workdir))}"
        if rows.first:
            yield "that was a trial; for all rows, run the same command without --max-rows"
    with suppress(OSError):
        # A run that found everything complete writes no report: the file is of an earlier run.
        if (
            state.attempts or code in (ExitCode.COMPLETE, ExitCode.QUARANTINED)
        ) and layout.report.stat().st_mtime >= state.began_s:
            yield f"how the run went: {layout.report}"


def how_to_read(path: Path, rows_table: str = "", part: tuple[int, int] | None = None) -> str:
    """Say how to read a final file; `rows_table` is the file that lists its rows, if any.

    A `part`, such as (3, 8), has the rows of that part of the source.
    """
    if path.suffix == f".{FinalFormat.PARQUET}":
        return f'to use it: pandas.read_parquet("{path}")'
    source = "part {} of {} of the source".format(*part) if part else "the source"
    if rows_table:
        source = f"{rows_table} next to it, whose source_row is the row of the source"
    return f'to use it: numpy.load("{path}", mmap_mode="c"); row i is row i of {source}'
