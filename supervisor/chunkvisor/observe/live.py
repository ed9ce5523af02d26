"""The live view of a run in a terminal: news scroll by, and below them stands how far it is.

It never draws more than twice a second, and never anything that the run's own events and folder do not tell.
"""

import time
from collections import deque
from typing import TextIO

from chunkvisor.events.event import Event, Severity
from chunkvisor.events.progress import NewsLine
from chunkvisor.events.run import CheckingModel, Resolving
from chunkvisor.events.state import RunState
from chunkvisor.observe.observer import Observer
from chunkvisor.observe.progress import closing_line
from chunkvisor.observe.readings import Readings, layout_of, take_readings
from chunkvisor.observe.runview import snapshot_of
from chunkvisor.observe.screen import Screen

REFRESH_S = 0.5

_MOST_NEWS = 200
"""While nothing can be shown, so many wait; all of them are in the invocation's log."""


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
