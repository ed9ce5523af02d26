"""Observers: whoever wants to know what a run does while it does it, and those that every run has.

They decide nothing, and one that is guarded cannot end a run.
"""

import contextlib
from collections.abc import Iterable

from chunkvisor.config.model import Config
from chunkvisor.events.event import Event
from chunkvisor.events.state import RunState
from chunkvisor.printing import say
from chunkvisor.store.layout import InvocationFiles, Layout


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
    """Several as one; the guarded ones hear of everything first.

    From its first exception on, a guarded one is left out, and standard error says so once.
    """

    def __init__(self, *observers: Observer, guarded: Iterable[Observer] = ()) -> None:
        self._guarded, self._others = list(guarded), observers

    def event(self, event: Event, state: RunState) -> None:
        self._call("event", event, state)

    def tick(self) -> None:
        self._call("tick")

    def say(self, text: str) -> None:
        self._call("say", text)

    def close(self) -> None:
        self._call("close")

    def _call(self, method: str, *arguments: object) -> None:
        for observer in list(self._guarded):
            try:
                getattr(observer, method)(*arguments)
            except Exception as error:  # noqa: BLE001 - whatever it is, the run is worth more
                self._guarded.remove(observer)
                name, why = type(observer).__name__, f"{type(error).__name__}: {error}"
                say(f"chunkvisor: {name} is left out; the run continues without it: {why}", err=True)
        for observer in self._others:
            getattr(observer, method)(*arguments)


def observers_of_run(config: Config, layout: Layout, files: InvocationFiles | None, run_id: str) -> list[Observer]:
    """Return the observers of every run, to be guarded; `files` is None if the disk did not allow such a folder."""
    from chunkvisor.show.outside import Metrics, Notices  # late: they are observers themselves
    from chunkvisor.show.record import Record, Reporter, Sensors

    made: list[Observer] = []
    if files is not None:
        with contextlib.suppress(OSError):  # not even the log could be opened
            made.append(Record(config, layout, files, run_id))
        made.append(Sensors(files))
    if config.metrics.textfile is not None:
        made.append(Metrics(config.metrics.textfile))
    made.append(Reporter(layout))  # after those whose files it reads
    if config.notify:  # after the report, which the notice may lead a person to
        made.append(Notices([url.get_secret_value() for url in config.notify], layout, files))
    return made
