"""What a person is told after the end of a run, at the terminal and in its log."""

import contextlib

from chunkvisor.events.attempt import AttemptStarted
from chunkvisor.events.event import Event
from chunkvisor.events.run import Invoked
from chunkvisor.events.state import RunState
from chunkvisor.show.console import Console
from chunkvisor.show.observer import Observer
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor_worker.contract.files import open_kept


class Afterwards(Observer):
    """Says lines to a person when the run is over, and adds them to the log, which is to have all that was shown."""

    def __init__(self, shown: Observer, layout: Layout) -> None:
        self._shown = shown
        self._layout = layout
        self._files: InvocationFiles | None = None
        self.worked = False
        """Whether a worker was started, so that there is more to tell than that the run was refused."""

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - an event says it all
        """Learn which invocation it is, and how far it came."""
        self.worked |= isinstance(event, AttemptStarted)
        if isinstance(event, Invoked) and event.invocation:
            self._files = InvocationFiles(self._layout.invocations / event.invocation)

    @property
    def began(self) -> bool:
        """Whether the run came to begin, so that there is a log of it."""
        return self._files is not None

    def tell(self, text: str) -> None:
        """To be called when the run has ended, and with it whoever wrote the log."""
        self._shown.say(text)
        with contextlib.suppress(OSError):
            if self._files is not None:
                with open(open_kept(self._files.log), "a", encoding="utf-8", errors="backslashreplace") as log:
                    Console(log).say(text)
