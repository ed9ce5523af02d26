"""What a run tells on standard error without a terminal: lines for people, or one JSON object for each event.

Nothing here raises: a closed terminal must not end an unattended run.
"""

import contextlib
import copy
import json
import sys
import time
from collections.abc import Callable
from typing import Self, TextIO

from chunkvisor.errors import Halt
from chunkvisor.events.event import Event, Severity, plain
from chunkvisor.events.run import Halted, Note, RunEnded
from chunkvisor.events.state import RunState
from chunkvisor.printing import columns_of, write
from chunkvisor.show.observer import Observer
from chunkvisor.show.progress import closing_line, heartbeat_s, progress_line
from chunkvisor.show.readings import Readings, layout_of, take_readings
from chunkvisor.show.runview import snapshot_of
from chunkvisor.units import human_moment, printable, wrapped

_WAITING_S = 60.0
"""Between heartbeats of a run that waits: what it waits for is told once a minute besides."""


class Console(Observer):
    """A line for each change of state, without control characters, and a heartbeat of progress."""

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
        """The same console for one run, each of whose lines is put into the words of its caller."""
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
            if (layout := layout_of(self._state)) is not None and self._state.ending is None:
                readings = take_readings(layout, self._state, sensors=False)
                self._write(progress_line(snapshot_of(self._state, time.time(), readings)))

    def say(self, text: str) -> None:
        """One line with the time, where news are wanted."""
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
        """One line."""
        self._tell(event)

    def say(self, text: str) -> None:
        """A note."""
        self._tell(Note(text))

    def last_words(self, halt: Halt) -> None:
        """The end, as an object; once, since a run that has begun tells it itself."""
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
