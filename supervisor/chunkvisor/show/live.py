"""The live view of a run in a terminal: news scroll by, and a few lines at the lower end say how far it is.

The cursor is not hidden, the screen not cleared and the alternate one not used: whatever kills the program, the
terminal is as it should be, and what has scrolled by stays there.
"""

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import TextIO

from rich.console import Console
from rich.text import Text

from chunkvisor.events.event import Event, Severity
from chunkvisor.events.model import CheckingModel, Resolving
from chunkvisor.events.progress import NewsLine
from chunkvisor.events.state import RunState
from chunkvisor.printing import write
from chunkvisor.show.observer import Observer
from chunkvisor.show.progress import closing_line
from chunkvisor.show.readings import Readings, layout_of, take_readings
from chunkvisor.show.runview import snapshot_of
from chunkvisor.show.snapshot import Snapshot
from chunkvisor.show.view import Room, view
from chunkvisor.units import human_moment, printable, wrapped

REFRESH_S = 0.5

_MOST_NEWS = 200
"""This many wait while nothing can be shown; all of them are in the invocation's log."""

_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
"""Synchronized output: a terminal that knows it shows all in between at once; the others ignore it."""

_STYLES = {Severity.NEWS: "", Severity.CARE: "yellow", Severity.LOSS: "red"}
_MIN_COLUMNS = 20


class Screen:
    """Draws on a terminal; an error of the terminal (it may be gone) is passed over."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._console = Console(file=self._stream, highlight=False, markup=False, emoji=False)
        self._columns = self._console.size.width
        self._frame: list[tuple[str, int]] = []
        """(line as written, its width in cells) of what stands there now."""

    def draw(self, snapshot: Snapshot, news: Collection[NewsLine] = ()) -> bool:
        """Show the news above, each with the time of day, and the snapshot below; what is unchanged stays as it is.

        False where nothing was shown: a job in the background leaves the terminal to the one in front.
        """
        if self._in_background():
            self._frame = []
            return False
        lines = view(snapshot, self._room())
        frame = [(self._ansi(line), line.cell_len) for line in lines]
        if news or frame != self._frame:
            above = [line for each in news for line in self._lines(each)]
            self._write(_BEGIN + self._back() + "".join(f"{line}\x1b[K\n" for line in above) + _joined(frame) + _END)
            self._frame = frame
        return True

    def leave(self, news: Collection[NewsLine] = ()) -> None:
        """Take the drawn lines away and show the last news; what is written afterwards goes on below."""
        text = "".join(f"{line}\n" for each in news for line in self._lines(each))
        self._write(self._back() + "\x1b[J" * bool(self._frame) + text)
        self._frame = []

    def _in_background(self) -> bool:
        try:
            return os.tcgetpgrp(self._stream.fileno()) != os.getpgrp()
        except (OSError, ValueError):  # not our controlling terminal, hence nobody else's either; or closed
            return False

    def _room(self) -> Room:
        size = self._console.size
        # The last column stays free: a full line makes some terminals begin a new one.
        ascii_only = not self._console.encoding.lower().startswith("utf")
        return Room(max(_MIN_COLUMNS, size.width - 1), max(2, size.height - 2), ascii_only)

    def _back(self) -> str:
        """From below what is drawn to its start; a terminal that was made narrower since has wrapped its lines."""
        if not self._frame:
            return "\r"
        before, self._columns = self._columns, max(1, self._console.size.width)
        height = sum(max(1, -(-width // self._columns)) for _, width in self._frame)
        # Lines that were wrapped stay marked as such in tmux until they are cleared as a whole.
        return f"\r\x1b[{height}A" + "\x1b[J" * (before != self._columns)

    def _lines(self, news: NewsLine) -> list[str]:
        """Broken between words, where it is wider than the terminal."""
        return [self._ansi(line) for line in line_of(news, self._console.size.width - 1).split()]

    def _ansi(self, line: Text) -> str:
        line = line.copy()
        line.plain = printable(line.plain)  # of the same length: styles stay where they are
        with self._console.capture() as captured:
            self._console.print(line, end="", soft_wrap=True)
        return captured.get()

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            write(self._stream, text)


def _joined(frame: Sequence[tuple[str, int]]) -> str:
    """Each line replaces what stood there; the cursor ends below, where a shell goes on after a kill."""
    return "".join(f"{line}\x1b[K\n" for line, _ in frame) + "\x1b[J"


def line_of(news: NewsLine, columns: int = 1 << 20) -> Text:
    """News with the time of day, in lines of so many columns."""
    time_of_day = f"{human_moment(news.t).split()[1]} "
    words = wrapped(time_of_day + news.words, max(_MIN_COLUMNS, columns), len(time_of_day))
    return Text.assemble((time_of_day, "dim"), (words[len(time_of_day) :], _STYLES[news.severity]))


class Live(Observer):
    """Hears a run and draws it."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._screen = Screen(stream)
        self._state = RunState()
        self._news: deque[NewsLine] = deque(maxlen=_MOST_NEWS)
        self._drawn_s = 0.0
        self._over = False

    def event(self, event: Event, state: RunState) -> None:
        """Take it in; most of them are seen with the next tick."""
        self._state = state
        if line := event.line:
            self._news.append(NewsLine(event.severity, state.told_s, line))
        if isinstance(event, Resolving | CheckingModel):  # which may take long before the next tick
            self._drawn_s = 0.0
            self.tick()

    def tick(self) -> None:
        """Draw, if it is time."""
        if time.monotonic() - self._drawn_s >= REFRESH_S and (layout := layout_of(self._state)) is not None:
            snapshot = snapshot_of(self._state, time.time(), take_readings(layout, self._state))
            if self._screen.draw(snapshot, self._news):
                self._news.clear()
            self._drawn_s = time.monotonic()

    def close(self) -> None:
        """Take the view away; what the run has come to stays."""
        if line := closing_line(snapshot_of(self._state, time.time(), Readings())):
            self._news.append(NewsLine(Severity.NEWS, time.time(), line))
        self._screen.leave(self._news)
        self._news.clear()
        self._over = True

    def say(self, text: str) -> None:
        """One more line of news."""
        self._news.append(NewsLine(Severity.NEWS, time.time(), text))
        if self._over or not self._state.workdir:
            self._screen.leave(self._news)
            self._news.clear()
