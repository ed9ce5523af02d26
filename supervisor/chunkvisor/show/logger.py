"""Hands the news of a run to Python's logging, for programs that call it: logger `chunkvisor`.

Where a program has not set up logging, Python itself writes warnings to standard error, and nothing else.
"""

import logging
from collections.abc import Callable

from chunkvisor.events.event import Event, Severity
from chunkvisor.events.state import RunState
from chunkvisor.show.observer import Observer

_LEVELS = {Severity.NEWS: logging.INFO, Severity.CARE: logging.WARNING, Severity.LOSS: logging.ERROR}
LOGGER = logging.getLogger("chunkvisor")


class Logger(Observer):
    """Hears a run."""

    def __init__(self, *, told: bool = False, in_words: Callable[[str], str] = str) -> None:
        """`told`: somebody else tells of the run; then only handlers that the program has set up are to hear of it.

        `in_words` puts a line into the words of the caller.
        """
        self._told = told
        self._in_words = in_words

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - an event says it all
        """Log the line of the event, if it has one."""
        if (line := event.line) and (LOGGER.hasHandlers() or not self._told):
            LOGGER.log(_LEVELS[event.severity], "%s", self._in_words(line))
