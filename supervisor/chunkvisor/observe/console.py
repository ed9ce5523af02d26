"""What a run tells on standard error without a terminal: one line per change of state, and a heartbeat of progress.

It never raises: a closed terminal must not end an unattended run. It never writes a control character.
"""

import contextlib
import sys
import time
from typing import Any, TextIO

from chunkvisor.errors import lines_of_end
from chunkvisor.events.fold import Fold
from chunkvisor.events.readings import Readings, take_readings
from chunkvisor.events.words import Weight, plain, weight_of, words_of
from chunkvisor.observe.observer import NullObserver
from chunkvisor.observe.progress import closing_line, heartbeat_s, progress_line
from chunkvisor.units import human_moment


class Console(NullObserver):
    """Turns events into lines."""

    def __init__(self, stream: TextIO | None = None, *, last_words: bool = False, least: Weight = Weight.NEWS) -> None:
        """`last_words`: say how a run halted, which on standard error the command itself does.

        `least`: pass over what matters less; with anything but NEWS there is no heartbeat.
        """
        self._stream = stream or sys.stderr
        self._last_words = last_words
        self._least = least
        self._fold = Fold()
        self._began_s = self._said_s = time.monotonic()

    def event(self, event: str, details: dict[str, Any]) -> None:
        """Show the event, if a person needs to know it."""
        self._fold.feed(event, details, time.time())
        if (line := words_of(event, details)) and weight_of(event) >= self._least:
            self._write(line)
        if event in ("halted", "run_ended"):
            self._end(event, details)

    def tick(self) -> None:
        """Say how far it is, now and then: the longer it lasts, the more rarely."""
        now = time.monotonic()
        if self._least is Weight.NEWS and now - self._said_s >= heartbeat_s(now - self._began_s):
            self._said_s = now
            if (layout := self._fold.layout) is not None and self._fold.ending is None:
                readings = take_readings(layout, "", self._fold.workers)
                self._write(progress_line(self._fold.snapshot(time.time(), readings)))

    def say(self, text: str) -> None:
        """One line with the time, where news are wanted."""
        if self._least is Weight.NEWS:
            self._write(text)

    def _end(self, event: str, details: dict[str, Any]) -> None:
        if line := closing_line(self._fold.snapshot(time.time(), Readings())):
            self.say(line)
        if event == "halted" and self._last_words:
            for line in lines_of_end(details):
                self._write(plain(line))

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(f"{human_moment(time.time())} {text}\n")
            self._stream.flush()
