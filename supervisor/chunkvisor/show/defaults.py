"""The observers that every run has, whoever started it; none of them shows anything at the terminal."""

import contextlib

from chunkvisor.config.model import Config
from chunkvisor.errors import Halt
from chunkvisor.events.event import Event
from chunkvisor.events.output import OutputComplete
from chunkvisor.events.state import RunState
from chunkvisor.observe.observer import Observer
from chunkvisor.store.layout import InvocationFiles, Layout

_MOST_BYTES = 48 << 20
"""Of journal and sensors; about five seconds of reading on a slow core."""


class Reporter(Observer):
    """Writes `report.html` when a run ends; after a very long one that is left to `chunkvisor report`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._news = False

    def event(self, event: Event, state: RunState) -> None:
        """A run that found everything complete leaves the report as it is; so does a slice that joins nothing."""
        if self._layout.slice is None:
            self._news = state.worked
        else:  # only one slice joins, and no two may write the same file
            self._news = self._news or isinstance(event, OutputComplete)

    def close(self) -> None:
        """Write it; a disk that is full costs the report, nothing else."""
        from chunkvisor.show.report import history_bytes, write_report

        with contextlib.suppress(OSError, Halt):  # somebody's page of that name stays
            if self._news and history_bytes(self._layout.workdir) <= _MOST_BYTES:
                write_report(self._layout.workdir, self._layout.report)


def observers_of_run(config: Config, layout: Layout, files: InvocationFiles | None, run_id: str) -> list[Observer]:
    """In order, to be guarded; `files` is None where the disk did not let the invocation have a folder."""
    made: list[Observer] = []
    if files is not None:
        from chunkvisor.observe.record import Record
        from chunkvisor.observe.sensors import Sensors

        with contextlib.suppress(OSError):  # not even the log could be opened
            made.append(Record(config, layout, files, run_id))
        made.append(Sensors(files))
    if config.metrics.textfile is not None:
        from chunkvisor.observe.metrics import Metrics

        made.append(Metrics(config.metrics.textfile))
    # After those whose files it reads.
    made.append(Reporter(layout))
    if config.notify:
        from chunkvisor.observe.notices import Notices

        # After the report, which the notice may lead a person to.
        urls = [url.get_secret_value() for url in config.notify]
        made.append(Notices(urls, layout, files))
    return made
