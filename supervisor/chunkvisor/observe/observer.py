"""Observers: whoever wants to know what a run does while it does it.

They decide nothing, and one that is guarded cannot end a run.
"""

import contextlib
import sys
from collections.abc import Callable, Sequence

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
        self._try(lambda observer: observer.event(event, state))

    def tick(self) -> None:
        """As `Observer.tick`."""
        self._try(lambda observer: observer.tick())

    def say(self, text: str) -> None:
        """As `Observer.say`."""
        self._try(lambda observer: observer.say(text))

    def close(self) -> None:
        """As `Observer.close`."""
        self._try(lambda observer: observer.close())

    def _try(self, call: Callable[[Observer], None]) -> None:
        try:
            call(self._observer)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run is worth more
            name, self._observer = type(self._observer).__name__, Observer()
            line = f"chunkvisor: {name} is left out from now on, the run goes on: {type(error).__name__}: {error}\n"
            with contextlib.suppress(OSError, ValueError):  # a closed terminal
                sys.stderr.write(line)


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
