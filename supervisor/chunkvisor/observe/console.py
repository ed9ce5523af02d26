"""What a run tells the person on standard error: one line per change of state, and a heartbeat of progress.

It never raises: a closed terminal must not end an unattended run.
"""

import contextlib
import sys
import time
from typing import Any, TextIO

from chunkvisor.observe.observer import Deaf
from chunkvisor.units import human_time

_PROGRESS_S = 20.0
"""Progress is shown at most so often; faults are shown at once."""


class Console(Deaf):
    """Turns events into lines."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._progress_s = 0.0

    def event(self, event: str, details: dict[str, Any]) -> None:
        """Show the event, if a person needs to know it."""
        if event == "chunk_committed":
            self._progress(details)
        elif line := _LINES.get(event):
            self.say(line.format_map(details))

    def say(self, text: str) -> None:
        """One line with the time of day."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(f"{time.strftime('%H:%M:%S')} {text}\n")
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


_LINES = {
    "run_started": "run {run} in {workdir}, device {device}",
    "staging": "{output}: reading its source",
    "staged": "{output}: {rows:,} rows, {distinct:,} distinct texts",
    "resolving": "asking the hub for {model}",
    "output_opened": "{output}: {chunks:,} chunks of {chunk_size:,} texts, {chunks_done:,} done before",
    "note": "{text}",
    "warm_given_up": "from now on every worker is a new interpreter; the template process failed: {reason}",
    "attempt_failed": "{output} chunk {chunk}, attempt {attempt}: {outcome}: {reason}",
    "limits_lowered": "batches{of_length}: from now on at most {rows:,} rows",
    "limits_widened": "batches{of_length}: {rows:,} rows are tried again, after a streak without a fault",
    "late_crash": "{output} chunk {chunk}: the worker crashed after its work was done, which counts",
    "waiting": "nothing is started for {delay_s:.0f} s: {reason}",
    "waiting_to_join": "{output}: waiting for disk space: {reason}",
    "device_dropped": "{device} is left out from now on, {left} go on: {why}",
    "gpu_busy": "{device}: waiting, {why}",
    "gpu_blind": "{device}: {why}; going on without, CUDA may work all the same",
    "chunk_split": "{output} chunk {chunk}: {texts:,} texts are taken apart, {parts} tries follow",
    "quarantined": "{output} row {row} ({place}) cannot be encoded and gets no vector: {outcome}: {reason}",
    "chunk_set_aside": "{output} chunk {chunk} is given up for this run: {reason}",
    "chunk_damaged": "{output} chunk {chunk} is damaged and will be computed again: {why}",
    "orphans_ended": "ended {count} processes that an earlier run had left behind",
    "assembling": "{output}: joining {chunks:,} chunks",
    "output_complete": "{output}: complete, {rows:,} rows x {dimension}, {path}",
    "output_already_complete": "{output}: complete already, {rows:,} rows x {dimension}, {path}",
    "draining": "{signal}: finishing the chunks under way; once more stops at once",
    "stopping": "{signal}: stopping at once",
}
