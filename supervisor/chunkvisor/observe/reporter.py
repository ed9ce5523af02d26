"""Has the report written when a run ends.

It never holds up the end of a run for long: with a very long story the report is left to `chunkvisor report`.
"""

import contextlib

from chunkvisor.events.event import Event
from chunkvisor.events.output import OutputComplete
from chunkvisor.events.state import RunState
from chunkvisor.observe.observer import Observer
from chunkvisor.store.layout import Layout

_MOST_BYTES = 48 << 20
"""Of journal and sensors; about five seconds of reading on a slow core."""


class Reporter(Observer):
    """Writes `report.html` into the workdir."""

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
        from chunkvisor.observe.report.page import history_bytes, write_report

        with contextlib.suppress(OSError):
            if self._news and history_bytes(self._layout.workdir) <= _MOST_BYTES:
                write_report(self._layout.workdir, self._layout.report)
