"""Writes the beat: phase, progress, and the time each phase took.

Only the work loop calls it, no thread of its own, so that a hang is seen.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from chunkvisor_worker.batching import Indices
from chunkvisor_worker.contract.messages import Beat, Phase
from chunkvisor_worker.contract.wire import write_beat

_INTERVAL_S = 0.05
"""Between two beats within a phase, at least; a new phase is written at once."""


class BeatWriter:
    """Where a job and its encoder say what they are doing; each call is a sign of life."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begun: Callable[[Indices], None] | None = None
        self._told_to_leave: Callable[[], bool] = bool
        self._written_s = 0.0
        self._phase_since_s = time.monotonic()
        self._go_s: float | None = None
        self.beat = Beat(0, os.getpid(), Phase.START)
        """What is known by now; the file has it as it was written last."""
        self.phase_s: dict[str, float] = {}
        self.provoked = False
        """Whether a fault on purpose has struck; see `drill`."""
        self.positions: Indices = np.zeros(0, dtype=np.int64)
        """Among the attempt's texts, of those that the encoder has; none for a canary that is none of them."""

    def tell_begun(self, begun: Callable[[Indices], None]) -> None:
        """Have it called with the texts of each batch that begins, before anything else."""
        self._begun = begun

    def leave_when(self, told: Callable[[], bool]) -> None:
        """Have it asked whether no batch more is to be begun."""
        self._told_to_leave = told

    @property
    def leaving(self) -> bool:
        """Say whether no batch more is to be begun: the vectors of those that have begun are still wanted."""
        return self._told_to_leave()

    def know(self, **news: Any) -> None:
        """Take fields of the beat, to be written with the next."""
        self.beat = replace(self.beat, **news)

    def phase(self, phase: Phase) -> None:
        """A new phase begins; a phase may come again, its times add up. One that goes on is a sign of life."""
        now, before = time.monotonic(), self.beat.phase
        if phase is before:
            self.tick()
            return
        self.phase_s[str(before)] = round(self.phase_s.get(before, 0.0) + now - self._phase_since_s, 4)
        self._phase_since_s = now
        if before is Phase.READY:
            self._go_s = now
        if phase is Phase.FORWARD and self._go_s is not None:
            self.know(opening_s=round(now - self._go_s, 4))
        self.know(phase=phase)
        self._write(now)

    def tick(self) -> None:
        """Still at work within the phase."""
        now = time.monotonic()
        if now - self._written_s >= _INTERVAL_S:
            self._write(now)

    def batch(self, indices: Indices, tokens: int, rows: int = 0) -> None:
        """Begin the texts at these positions, at most `rows` (0 = all) at once; padded tokens, 0 = unknown."""
        if self._begun is not None:
            self._begun(indices)
        first = self.beat.batch_rows == 0
        self.know(batch_rows=rows or len(indices), batch_tokens=tokens)
        if first:
            # The largest batch comes first: if the kernel kills the worker over it, its size has to be known.
            self._write(time.monotonic())
        else:
            self.tick()

    def expect(self, tokens: int) -> None:
        """Note how many tokens all texts together have, without padding."""
        self.know(tokens_total=tokens)

    def advance(self, rows: int, tokens: int, padded_tokens: int) -> None:
        """End a batch: rows, tokens without padding, tokens with padding."""
        before = self.beat
        self.know(
            rows_done=before.rows_done + rows,
            tokens_done=before.tokens_done + tokens,
            padded_tokens=before.padded_tokens + padded_tokens,
        )
        self.tick()

    def ended(self) -> None:
        """The result is there, and the process about to end; for a fire drill to have it fail."""

    def _write(self, now: float) -> None:
        self._written_s = now
        self.know(seq=self.beat.seq + 1)
        write_beat(self._path, self.beat)
