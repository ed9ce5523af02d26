"""What a run tells programs: one JSON object a line for each event, in plain numbers.

It never raises, as `console`, and never says anything else, its last words included.
"""

import contextlib
import json
import sys
import time
from typing import Any, TextIO

from chunkvisor.errors import Halt
from chunkvisor.events.words import Weight, weight_of
from chunkvisor.observe.observer import NullObserver


class JsonLines(NullObserver):
    """Turns events into objects with `t` (seconds since the epoch), `event`, and the details of the journal."""

    def __init__(self, stream: TextIO | None = None, *, least: Weight = Weight.NEWS) -> None:
        """`least`: pass over what matters less, but for the end."""
        self._stream = stream or sys.stderr
        self._least = least
        self._halted = False

    def event(self, event: str, details: dict[str, Any]) -> None:
        """One line."""
        self._halted |= event == "halted"
        if weight_of(event) >= self._least or event in ("halted", "run_ended"):
            line = json.dumps({"t": round(time.time(), 3), "event": event, **details})
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(f"{line}\n")
                self._stream.flush()

    def say(self, text: str) -> None:
        """A note."""
        self.event("note", {"text": text})

    def last_words(self, halt: Halt) -> None:
        """The end, as an object; once, since a run that has begun tells it itself."""
        if not self._halted:
            self.event("halted", halt.details())
