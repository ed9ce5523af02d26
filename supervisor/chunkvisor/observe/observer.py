"""Observers: whoever wants to know what a run does while it does it.

They never decide anything, and none of them can end a run unless it was made to.
"""

import sys
from collections.abc import Sequence

from chunkvisor.events.event import Event
from chunkvisor.events.state import RunState


class Observer:
    """Hears the events of a run, in order, from the thread of its loop; this one takes no notice of them."""

    def event(self, event: Event, state: RunState) -> None:
        """Something happened; the state has it already, is the same object throughout, and is only to be looked at."""

    def tick(self) -> None:
        """Called a few times a second while the run lives, and while it waits for its ingest."""

    def say(self, text: str) -> None:
        """A line of news from the command that shows the run."""

    def close(self) -> None:
        """The run is over; called once, after the last event."""


class Guarded(Observer):
    """An observer that may fail: from its first exception on it is left out, and standard error says so once."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def event(self, event: Event, state: RunState) -> None:
        """As `Observer.event`."""
        try:
            self._observer.event(event, state)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run is worth more
            self._leave_out(error)

    def tick(self) -> None:
        """As `Observer.tick`."""
        try:
            self._observer.tick()
        except Exception as error:  # noqa: BLE001 - as above
            self._leave_out(error)

    def say(self, text: str) -> None:
        """As `Observer.say`."""
        try:
            self._observer.say(text)
        except Exception as error:  # noqa: BLE001 - as above
            self._leave_out(error)

    def close(self) -> None:
        """As `Observer.close`."""
        try:
            self._observer.close()
        except Exception as error:  # noqa: BLE001 - as above
            self._leave_out(error)

    def _leave_out(self, error: Exception) -> None:
        name, self._observer = type(self._observer).__name__, Observer()
        line = f"chunkvisor: {name} is left out from now on, the run goes on: {type(error).__name__}: {error}\n"
        try:
            sys.stderr.write(line)
        except (OSError, ValueError):  # a closed terminal
            return


class Observers(Observer):
    """Several observers as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def event(self, event: Event, state: RunState) -> None:
        """Tell each, in order."""
        for observer in self._observers:
            observer.event(event, state)

    def tick(self) -> None:
        """Tell each, in order."""
        for observer in self._observers:
            observer.tick()

    def close(self) -> None:
        """Tell each, in order."""
        for observer in self._observers:
            observer.close()
