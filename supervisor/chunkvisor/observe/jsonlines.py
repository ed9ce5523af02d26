"""What a run tells programs: one JSON object a line for each event, in plain numbers.

It never raises, as `console`, and never says anything else, its last words included.
"""

import contextlib
import json
import sys
import time
from typing import TextIO

from chunkvisor.errors import Halt
from chunkvisor.events.event import Event, Severity
from chunkvisor.events.run import Halted, Note, RunEnded
from chunkvisor.events.state import RunState
from chunkvisor.observe.observer import Observer


class JsonLines(Observer):
    """Turns events into objects with `t` (seconds since the epoch), `event`, and the details of the journal."""

    def __init__(self, stream: TextIO | None = None, *, least: Severity = Severity.NEWS) -> None:
        """`least`: pass over what matters less, but for the end."""
        self._stream = stream or sys.stderr
        self._least = least
        self._halted = False

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - an event says it all
        """One line."""
        self._tell(event)

    def say(self, text: str) -> None:
        """A note."""
        self._tell(Note(text))

    def last_words(self, halt: Halt) -> None:
        """The end, as an object; once, since a run that has begun tells it itself."""
        if not self._halted:
            self._tell(Halted(**halt.details()))

    def _tell(self, event: Event) -> None:
        self._halted |= isinstance(event, Halted)
        if event.severity >= self._least or isinstance(event, Halted | RunEnded):
            line = json.dumps({"t": round(time.time(), 3), "event": event.name, **event.details()})
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(f"{line}\n")
                self._stream.flush()
