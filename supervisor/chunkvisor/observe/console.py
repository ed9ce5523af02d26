"""What a run tells the person on standard error: one line per change of state, and a heartbeat of progress.

It never raises: a closed terminal must not end an unattended run.
"""

import contextlib
import sys
import time
from typing import Any, TextIO

from chunkvisor.observe.observer import Deaf
from chunkvisor.observe.words import plain, words_of
from chunkvisor.units import human_time

_PROGRESS_S = 20.0
"""Progress is shown at most so often; faults are shown at once."""


class Console(Deaf):
    """Turns events into lines."""

    def __init__(self, stream: TextIO | None = None, *, last_words: bool = False) -> None:
        """`last_words`: say how a run halted, which on standard error the command itself does."""
        self._stream = stream or sys.stderr
        self._last_words = last_words
        self._progress_s = 0.0

    def event(self, event: str, details: dict[str, Any]) -> None:
        """Show the event, if a person needs to know it."""
        if event == "chunk_committed":
            self._progress(details)
        elif event == "halted" and self._last_words:
            for label, key in (("", "what"), ("why: ", "why"), ("do:  ", "remedy"), ("log: ", "log")):
                if details.get(key):
                    self.say(label + plain(details[key]))
        elif line := words_of(event, details):
            self.say(line)

    def say(self, text: str) -> None:
        """One line with the time of day."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
            self._stream.flush()

    def _progress(self, details: dict[str, Any]) -> None:
        now, last = time.monotonic(), details["chunks_done"] == details["chunks"]
        if not last and now - self._progress_s < _PROGRESS_S:
            return
        self._progress_s = now
        rate, eta = details["texts_per_s"], details["eta_s"]
        self.say(
            f"{details['output']}: {details['chunks_done']:,} of {details['chunks']:,} chunks"
            # No rate before the first `go`: a result that was found at a resume is committed without one.
            + (f", {rate:,.0f} texts/s" if rate else "")
            + (f", about {human_time(eta)} left" if eta else "")
        )
