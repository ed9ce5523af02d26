"""Keeps a file of figures for Prometheus up to date, in the format of node_exporter's textfile collector."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from chunkvisor.events.event import Event
from chunkvisor.events.progress import OutputProgress
from chunkvisor.events.state import RunState
from chunkvisor.observe.observer import Observer
from chunkvisor.version import __version__
from chunkvisor_worker.contract.files import RESULT, write_atomic

if TYPE_CHECKING:
    from prometheus_client import Metric

INTERVAL_S = 15.0

_Figure: TypeAlias = tuple[str, str, str, Mapping[str, float]]
"""Name, meaning, name of the label (empty = without), and value by label."""


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
        self._began_s = time.time()
        self._running = True

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - all is in the state
        """Keep the state."""
        self._state = state

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
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, what, label, values in self._gauges(self._state):
            gauge = GaugeMetricFamily(f"chunkvisor_{name}", what, labels=[label] if label else [])
            for key, value in values.items():
                gauge.add_metric([key] if label else [], value)
            yield gauge
        for name, what, label, values in self._counters(self._state):
            counter = CounterMetricFamily(f"chunkvisor_{name}", what, labels=[label] if label else [])
            for key, value in values.items():
                counter.add_metric([key] if label else [], value, created=self._began_s)
            yield counter

    def _gauges(self, state: RunState) -> Iterator[_Figure]:
        outputs, ours = state.outputs, _ours(state)
        yield "build_info", "Version of chunkvisor, as a label; always 1.", "version", {__version__: 1}
        what = "1 while the run lives, 0 once it has ended; a killed run leaves 1."
        yield "running", what, "", {"": self._running}
        what = "When the run began, in seconds since the epoch."
        yield "run_start_timestamp_seconds", what, "", {"": self._began_s}
        what = "When this file was written, in seconds since the epoch."
        yield "written_timestamp_seconds", what, "", {"": time.time()}
        what = "Exit code of the last run that ended here; -1 while one is running."
        yield "exit_code", what, "", {"": -1 if state.ending is None else state.ending.code}
        yield "rows", "Rows of the output.", "output", {name: each.rows for name, each in outputs.items()}
        what = "Rows whose text is encoded; estimated from distinct texts until the output is complete."
        yield "rows_done", what, "output", {name: _rows_done(each) for name, each in outputs.items()}
        yield "chunks", "Chunks of the output.", "output", {name: each.chunks for name, each in ours.items()}
        what = "Chunks of the output that are committed."
        yield "chunks_done", what, "output", {name: each.chunks_done for name, each in ours.items()}
        what = "Texts that this run has put into quarantine."
        yield "quarantined_rows", what, "output", {name: each.quarantined for name, each in ours.items()}
        rate = state.texts_per_s if state.chunks_here else None
        committed_s = state.points[-1].t if state.chunks_here and state.points else 0.0
        what = "Distinct texts a second since this run began to compute, as of its last chunk."
        yield "texts_per_second", what, "", {"": rate or 0.0}
        what = "Time until all outputs are complete, at that rate."
        yield "eta_seconds", what, "", {"": state.eta_s or 0.0}
        yield "last_chunk_timestamp_seconds", "When a chunk was committed last.", "", {"": committed_s}
        yield "batch_texts_limit", "Texts in a batch, at most, as of now.", "", {"": state.batch_rows}

    def _counters(self, state: RunState) -> Iterator[_Figure]:
        ours, devices = _ours(state), state.device_times if state.started else {}
        what = "Distinct texts that this run has committed."
        yield "texts", what, "output", {name: each.texts_here for name, each in ours.items()}
        what = "Tokens of the texts that this run has committed, without padding."
        yield "tokens", what, "output", {name: each.tokens_here for name, each in ours.items()}
        yield "attempts", "Attempts of this run that have ended, by outcome.", "outcome", state.attempts
        what = "Time that the device has computed."
        yield "device_busy_seconds", what, "device", {number: each.busy_s for number, each in devices.items()}
        what = "Time, from its first worker to its last, in which the device has not computed."
        yield "device_idle_seconds", what, "device", {number: each.idle_s for number, each in devices.items()}
        what = "Time that workers have taken until they were ready."
        yield "worker_startup_seconds", what, "", {"": sum(each.startup_s for each in devices.values())}

    def _write(self) -> None:
        from prometheus_client import generate_latest

        # Readable by others, unlike the state: node_exporter is another user.
        with contextlib.suppress(OSError):
            write_atomic(self._path, generate_latest(self.registry), durable=False, mode=RESULT)


def is_textfile(head: bytes) -> bool:
    """Whether a file that begins like this was written here."""
    return head.startswith(b"# HELP chunkvisor_")


def _ours(state: RunState) -> dict[str, OutputProgress]:
    """The outputs that an earlier run had not completed."""
    return {name: output for name, output in state.outputs.items() if output.distinct}


def _rows_done(output: OutputProgress) -> int:
    if output.complete:
        return output.rows
    return output.rows * min(output.distinct, output.texts_done) // max(1, output.distinct)
