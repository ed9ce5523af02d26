"""Hands the news of a run to Python's logging, for programs that call it: logger `chunkvisor`, silent by default."""

import logging

from chunkvisor.events.event import Event, Severity
from chunkvisor.events.state import RunState
from chunkvisor.observe.observer import Observer

_LEVELS = {Severity.NEWS: logging.INFO, Severity.CARE: logging.WARNING, Severity.LOSS: logging.ERROR}
LOGGER = logging.getLogger("chunkvisor")
LOGGER.addHandler(logging.NullHandler())  # else Python would print warnings where nobody has asked for a log


class Logger(Observer):
    """Hears a run."""

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - an event says it all
        """Log the line of the event, if it has one."""
        if line := event.line:
            LOGGER.log(_LEVELS[event.severity], "%s", line)
