"""Writes the beat: phase, progress, and the time each phase took.

Only the work loop calls it, no thread of its own, so that a hang is seen.
"""

import os
import time
from pathlib import Path

from chunkvisor_worker.contract.messages import Beat, Phase, write_message

_INTERVAL_S = 0.05
"""Progress within a phase is written at most so often; a new phase at once."""


class BeatWriter:
    """The `Progress` that a job hands to its encoder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seq = 0
        self._written_s = 0.0
        self._phase_since_s = time.monotonic()
        self._current = Phase.START
        self.phase_s: dict[str, float] = {}
        self.rows_done = 0
        self.rows_total = 0
        self.tokens = 0
        self.padded_tokens = 0
        self.batch_rows = 0
        self.batch_tokens = 0
        self.freed = False
        self.opening_s = 0.0
        self._go_s: float | None = None

    @property
    def current(self) -> Phase:
        """The phase under way."""
        return self._current

    def phase(self, phase: Phase) -> None:
        """A new phase begins; a phase may come again, its times add up."""
        now = time.monotonic()
        spent = self.phase_s.get(self._current, 0.0)
        self.phase_s[str(self._current)] = round(spent + now - self._phase_since_s, 4)
        if self._current is Phase.READY:
            self._go_s = now
        if phase is Phase.FORWARD and self._go_s is not None:
            self.opening_s = round(now - self._go_s, 4)
        self._current, self._phase_since_s = phase, now
        self._write(now)

    def tick(self) -> None:
        """Still at work within the phase."""
        now = time.monotonic()
        if now - self._written_s >= _INTERVAL_S:
            self._write(now)

    def batch(self, rows: int, tokens: int) -> None:
        """A batch of so many rows and padded tokens (0 = unknown) begins."""
        first = self.batch_rows == 0
        self.batch_rows, self.batch_tokens = rows, tokens
        if first:
            # The largest batch comes first: if the kernel kills the worker over it, its size has to be known.
            self._write(time.monotonic())
        else:
            self.tick()

    def advance(self, rows: int, tokens: int, padded_tokens: int) -> None:
        """A batch is done."""
        self.rows_done += rows
        self.tokens += tokens
        self.padded_tokens += padded_tokens
        self.tick()

    def ended(self) -> None:
        """The result is there, and the process about to end; for a fire drill to have it fail."""

    def _write(self, now: float) -> None:
        self._seq += 1
        self._written_s = now
        beat = Beat(
            self._seq,
            os.getpid(),
            self._current,
            self.rows_done,
            self.rows_total,
            self.tokens,
            self.batch_rows,
            self.batch_tokens,
            self.freed,
            self.opening_s,
        )
        write_message(self._path, beat, durable=False)
