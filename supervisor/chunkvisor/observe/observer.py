"""Observers: whoever wants to know what a run does while it does it.

They decide nothing, and one that is guarded cannot end a run.
"""

from collections.abc import Callable, Iterable

from chunkvisor.events.event import Event
from chunkvisor.events.state import RunState
from chunkvisor.printing import say


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


class Observers(Observer):
    """Several as one; the guarded ones are told first.

    From its first exception on, a guarded one is left out, and standard error says so once.
    """

    def __init__(self, *observers: Observer, guarded: Iterable[Observer] = ()) -> None:
        self._observers = [*((each, True) for each in guarded), *((each, False) for each in observers)]

    def event(self, event: Event, state: RunState) -> None:
        """Tell each, in order."""
        self._tell(lambda observer: observer.event(event, state))

    def tick(self) -> None:
        """Tell each, in order."""
        self._tell(lambda observer: observer.tick())

    def say(self, text: str) -> None:
        """Tell each, in order."""
        self._tell(lambda observer: observer.say(text))

    def close(self) -> None:
        """Tell each, in order."""
        self._tell(lambda observer: observer.close())

    def _tell(self, call: Callable[[Observer], None]) -> None:
        for place, (observer, guarded) in enumerate(self._observers):
            try:
                call(observer)
            except Exception as error:
                if not guarded:
                    raise
                self._observers[place] = (Observer(), True)
                name, why = type(observer).__name__, f"{type(error).__name__}: {error}"
                say(f"chunkvisor: {name} is left out; the run continues without it: {why}", err=True)
