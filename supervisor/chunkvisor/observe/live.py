"""The live view of a run in a terminal: news scroll by, and below them stands how far it is.

It never draws more than twice a second, and never anything that the run's own events and folder do not tell.
"""

import time
from collections import deque
from typing import Any, TextIO

from chunkvisor.events.fold import Fold
from chunkvisor.events.readings import Readings, take_readings
from chunkvisor.events.words import Weight, weight_of, words_of
from chunkvisor.observe.observer import NullObserver
from chunkvisor.observe.progress import closing_line
from chunkvisor.observe.screen import News, Screen

REFRESH_S = 0.5

_BEFORE_SILENCE = frozenset({"resolving", "checking_model"})
"""What may take long before the next tick is drawn at once."""

_MOST_NEWS = 200
"""While nothing can be shown, so many wait; all of them are in the invocation's log."""


class Live(NullObserver):
    """Hears a run and draws it."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._screen = Screen(stream)
        self._fold = Fold()
        self._news: deque[News] = deque(maxlen=_MOST_NEWS)
        self._drawn_s = 0.0
        self._over = False

    def event(self, event: str, details: dict[str, Any]) -> None:
        """Take it in; most of them are seen with the next tick."""
        self._fold.feed(event, details, time.time())
        if line := words_of(event, details):
            self._news.append((weight_of(event), time.time(), line))
        if event in _BEFORE_SILENCE:
            self._drawn_s = 0.0
            self.tick()

    def tick(self) -> None:
        """Draw, if it is time."""
        if time.monotonic() - self._drawn_s >= REFRESH_S and (layout := self._fold.layout) is not None:
            readings = take_readings(layout, self._fold.invocation, self._fold.workers)
            if self._screen.draw(self._fold.snapshot(time.time(), readings), self._news):
                self._news.clear()
            self._drawn_s = time.monotonic()

    def close(self) -> None:
        """Take the view away; what the run has come to stays."""
        if line := closing_line(self._fold.snapshot(time.time(), Readings())):
            self._news.append((Weight.NEWS, time.time(), line))
        self._screen.leave(self._news)
        self._news.clear()
        self._over = True

    def say(self, text: str) -> None:
        """One more line of news."""
        self._news.append((Weight.NEWS, time.time(), text))
        if self._over or self._fold.workdir is None:
            self._screen.leave(self._news)
            self._news.clear()
