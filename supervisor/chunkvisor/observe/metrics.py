"""Keeps a file of figures for Prometheus up to date, in the text format that node_exporter's textfile collector reads.

It never opens a port, and a file that cannot be written costs the figures, nothing else.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from chunkvisor.events.attempt import ChunkCommitted
from chunkvisor.events.event import Event
from chunkvisor.events.progress import OutputProgress
from chunkvisor.events.state import RunState
from chunkvisor.observe.observer import Observer
from chunkvisor.version import __version__

if TYPE_CHECKING:
    from prometheus_client import Metric

INTERVAL_S = 15.0


class Metrics(Observer):
    """Writes down what the state of a run comes to, as figures."""

    def __init__(self, path: Path) -> None:
        """Needs prometheus_client; raises ImportError."""
        from prometheus_client import CollectorRegistry

        self._path = path
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        self._state = RunState()
        self._next_s = 0.0
        self._began_s, self._last_chunk_s = time.time(), 0.0
        self._running = True

    def event(self, event: Event, state: RunState) -> None:
        """Note the time of a commit; all else is in the state."""
        self._state = state
        if isinstance(event, ChunkCommitted):
            self._last_chunk_s = time.time()

    def tick(self) -> None:
        """Write the file now and then."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + INTERVAL_S
            self._write()

    def close(self) -> None:
        """Write it once more: the run is over."""
        self._running = False
        self._write()

    def collect(self) -> Iterator["Metric"]:
        """All figures, as prometheus_client's registry asks for them."""
        state = self._state
        yield _gauge("build_info", "Version of chunkvisor, as a label; always 1.", {__version__: 1}, "version")
        yield _gauge("running", "1 while the run lives, 0 once it has ended; a killed run leaves 1.", self._running)
        yield _gauge("run_start_timestamp_seconds", "When the run began, in seconds since the epoch.", self._began_s)
        yield _gauge(
            "written_timestamp_seconds", "When this file was written, in seconds since the epoch.", time.time()
        )
        code = -1 if state.ending is None else state.ending.code
        yield _gauge("exit_code", "Exit code of the last run that ended here; -1 while one is running.", code)
        yield from self._of_outputs(state.outputs)
        what = "Attempts of this run that have ended, by outcome."
        yield self._counter("attempts", what, dict(state.attempts), "outcome")
        devices = state.device_times if state.started else {}
        busy = {number: times.busy_s for number, times in devices.items()}
        idle = {number: times.idle_s for number, times in devices.items()}
        startup_s = sum(times.startup_s for times in devices.values())
        yield self._counter("device_busy_seconds", "Time that the device has computed.", busy, "device")
        yield self._counter(
            "device_idle_seconds", "Time between one worker's end and the next one's go.", idle, "device"
        )
        yield self._counter("worker_startup_seconds", "Time that workers have taken until they were ready.", startup_s)
        rate = state.texts_per_s if state.chunks_here else None
        yield _gauge("texts_per_second", "Distinct texts a second, of late.", rate or 0.0)
        what = "Time until all outputs are complete, at the rate of late."
        yield _gauge("eta_seconds", what, state.eta_s or 0.0)
        yield _gauge("last_chunk_timestamp_seconds", "When a chunk was committed last.", self._last_chunk_s)
        yield _gauge("batch_texts_limit", "Texts in a batch, at most, as of now.", state.batch_rows)

    def _of_outputs(self, outputs: Mapping[str, OutputProgress]) -> Iterator["Metric"]:
        ours = {name: output for name, output in outputs.items() if output.distinct}  # not complete before
        rows_done = {name: _rows_done(output) for name, output in outputs.items()}
        yield _gauge("rows", "Rows of the output.", {name: output.rows for name, output in outputs.items()}, "output")
        what = "Rows whose text is encoded; estimated from distinct texts until the output is complete."
        yield _gauge("rows_done", what, rows_done, "output")
        yield _gauge("chunks", "Chunks of the output.", {name: ours[name].chunks for name in ours}, "output")
        what = "Chunks of the output that are committed."
        yield _gauge("chunks_done", what, {name: ours[name].chunks_done for name in ours}, "output")
        what = "Texts that this run has put into quarantine."
        yield _gauge("quarantined_rows", what, {name: ours[name].quarantined for name in ours}, "output")
        what = "Distinct texts that this run has committed."
        yield self._counter("texts", what, {name: ours[name].texts_here for name in ours}, "output")
        what = "Tokens of the texts that this run has committed, without padding."
        yield self._counter("tokens", what, {name: ours[name].tokens_here for name in ours}, "output")

    def _counter(self, name: str, what: str, values: float | Mapping[str, float], label: str = "") -> "Metric":
        from prometheus_client.core import CounterMetricFamily

        family = CounterMetricFamily(f"chunkvisor_{name}", what, labels=[label] if label else [])
        for key, value in _by_label(values):
            family.add_metric(key, value, created=self._began_s)
        return family

    def _write(self) -> None:
        from prometheus_client import write_to_textfile

        # Readable by others, unlike the workdir: node_exporter is another user.
        with contextlib.suppress(OSError):
            write_to_textfile(str(self._path), self.registry)


def _gauge(name: str, what: str, values: float | Mapping[str, float], label: str = "") -> "Metric":
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(f"chunkvisor_{name}", what, labels=[label] if label else [])
    for key, value in _by_label(values):
        family.add_metric(key, value)
    return family


def _by_label(values: float | Mapping[str, float]) -> list[tuple[list[str], float]]:
    if isinstance(values, Mapping):
        return [([key], value) for key, value in values.items()]
    return [([], values)]


def _rows_done(output: OutputProgress) -> int:
    if output.complete:
        return output.rows
    return output.rows * min(output.distinct, output.texts_done) // max(1, output.distinct)
