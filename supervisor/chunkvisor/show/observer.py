"""Observers: whoever wants to know what a run does while it does it, and those that every run has.

They decide nothing, and one that is guarded cannot end a run.
"""

import contextlib
from collections.abc import Callable, Iterable

from chunkvisor.config.model import Config
from chunkvisor.errors import Halt
from chunkvisor.events.event import Event
from chunkvisor.events.state import RunState
from chunkvisor.printing import say
from chunkvisor.store.layout import InvocationFiles, Layout

_MOST_BYTES = 48 << 20
"""Of the journal; about five seconds of reading on a slow core."""


class Observer:
    """Hears the events of a run, in order, from the thread of its loop; this one takes no notice of them."""

    def event(self, event: Event, state: RunState) -> None:
        """Something happened; the state has it already, is the same object throughout, and is only to be looked at."""

    def tick(self) -> None:
        """Called a few times a second while the run lives, and while it waits for its sources."""

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


class Reporter(Observer):
    """Writes `report.html` when a run ends; after a very long one that is left to `chunkvisor report`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._news = False

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - of every observer
        """A run that found everything complete leaves the report as it is."""
        self._news = state.worked

    def close(self) -> None:
        """Write it; a disk that is full costs the report, nothing else."""
        from chunkvisor.show.report import write_report

        with contextlib.suppress(OSError, Halt):  # another page of that name stays
            if self._news and self._layout.events.stat().st_size <= _MOST_BYTES:
                write_report(self._layout.workdir, self._layout.report)


def observers_of_run(config: Config, layout: Layout, files: InvocationFiles | None, run_id: str) -> list[Observer]:
    """Return the observers of every run, to be guarded; `files` is None if the disk did not allow such a folder."""
    from chunkvisor.show.metrics import Metrics  # late: they are observers themselves
    from chunkvisor.show.notices import Notices
    from chunkvisor.show.record import Record
    from chunkvisor.show.sensors import Sensors

    made: list[Observer] = []
    if files is not None:
        with contextlib.suppress(OSError):  # not even the log could be opened
            made.append(Record(config, layout, files, run_id))
        made.append(Sensors(files))
    if config.metrics.textfile is not None:
        made.append(Metrics(config.metrics.textfile))
    made.append(Reporter(layout))  # after those whose files it reads
    if config.notify:  # after the report, which the notice may lead a person to
        urls = [url.get_secret_value() for url in config.notify]
        made.append(Notices(urls, layout, files))
    return made
