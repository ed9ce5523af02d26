"""Keeps a file of figures for Prometheus up to date, for the textfile collector of node_exporter."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from chunkvisor.events.event import Event
from chunkvisor.events.state import OutputProgress, RunState
from chunkvisor.show.observer import Observer
from chunkvisor.version import __version__
from chunkvisor_worker.contract.files import write_atomic

INTERVAL_S = 15.0
GAUGE, COUNTER = "gauge", "counter"


class Metrics(Observer):
    """Writes down what the state of a run comes to, as figures."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = RunState()
        self._next_s = 0.0
        self._began_s = time.time()
        self._running = True

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - all is in the state
        """Keep the state."""
        self._state = state

    def tick(self) -> None:
        """Write the file now and then."""
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + INTERVAL_S
            self._write()

    def close(self) -> None:
        """Write it once more: the run is over."""
        self._running = False
        self._write()

    def figures(self, state: RunState) -> Iterator[tuple[str, str, str, str, Mapping[str, float]]]:
        """Yield (name, type, label, meaning, value by label) of each figure; without a label there is one value."""
        outputs, code = state.outputs, -1 if state.ending is None else state.ending.code
        ours = {name: each for name, each in outputs.items() if each.distinct}  # that no earlier run had completed
        devices = state.device_times if state.started else {}
        rate, committed_s = state.texts_per_s or 0.0, state.points[-1].t if state.points else 0.0
        if not state.chunks_here:
            rate = committed_s = 0.0
        yield "build_info", GAUGE, "version", "Version of chunkvisor, as a label; always 1.", {__version__: 1}
        what = "1 while the run lives, 0 once it has ended; a killed run leaves 1."
        yield "running", GAUGE, "", what, {"": self._running}
        what = "When the run began, in seconds since the epoch."
        yield "run_start_timestamp_seconds", GAUGE, "", what, {"": self._began_s}
        what = "When this file was written, in seconds since the epoch."
        yield "written_timestamp_seconds", GAUGE, "", what, {"": time.time()}
        yield "exit_code", GAUGE, "", "Exit code of the last run that ended here; -1 while one is running.", {"": code}
        yield "rows", GAUGE, "output", "Rows of the output.", {name: each.rows for name, each in outputs.items()}
        what = "Rows whose text is encoded; estimated from distinct texts until the output is complete."
        yield "rows_done", GAUGE, "output", what, {name: _rows_done(each) for name, each in outputs.items()}
        yield "chunks", GAUGE, "output", "Chunks of the output.", {name: each.chunks for name, each in ours.items()}
        what = "Chunks of the output that are committed."
        yield "chunks_done", GAUGE, "output", what, {name: each.chunks_done for name, each in ours.items()}
        what = "Texts that this run has put into quarantine."
        yield "quarantined_rows", GAUGE, "output", what, {name: each.quarantined for name, each in ours.items()}
        what = "Distinct texts a second since this run began to compute, as of its last chunk."
        yield "texts_per_second", GAUGE, "", what, {"": rate}
        yield "eta_seconds", GAUGE, "", "Time until all outputs are complete, at that rate.", {"": state.eta_s or 0.0}
        yield "last_chunk_timestamp_seconds", GAUGE, "", "When a chunk was committed last.", {"": committed_s}
        yield "batch_texts_limit", GAUGE, "", "Texts in a batch, at most, as of now.", {"": state.batch_rows}
        what = "Distinct texts that this run has committed."
        yield "texts", COUNTER, "output", what, {name: each.texts_here for name, each in ours.items()}
        what = "Tokens of the texts that this run has committed, without padding."
        yield "tokens", COUNTER, "output", what, {name: each.tokens_here for name, each in ours.items()}
        yield "attempts", COUNTER, "outcome", "Attempts of this run that have ended, by outcome.", state.attempts
        what = "Time that the device has computed."
        yield "device_busy_seconds", COUNTER, "device", what, {name: each.busy_s for name, each in devices.items()}
        what = "Time, from its first worker to its last, in which the device has not computed."
        yield "device_idle_seconds", COUNTER, "device", what, {name: each.idle_s for name, each in devices.items()}
        what = "Time that workers have taken until they were ready."
        yield "worker_startup_seconds", COUNTER, "", what, {"": sum(each.startup_s for each in devices.values())}

    def text(self) -> str:
        """Return the file's content, in the text format of Prometheus."""
        lines = []
        for name, kind, label, what, values in self.figures(self._state):
            full = f"chunkvisor_{name}{'_total' * (kind == COUNTER)}"
            lines += [f"# HELP {full} {what}", f"# TYPE {full} {kind}"]
            for key, value in values.items():
                escaped = key.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
                labels = f'{{{label}="{escaped}"}}' if label else ""
                lines.append(f"{full}{labels} {float(value)}")
        return "".join(f"{line}\n" for line in lines)

    def _write(self) -> None:
        # Readable by others, unlike the state: node_exporter is another user.
        with contextlib.suppress(OSError):
            write_atomic(self._path, self.text().encode(), durable=False)


def is_textfile(head: bytes) -> bool:
    """Whether a file that begins like this was written here."""
    return head.startswith(b"# HELP chunkvisor_")


def _rows_done(output: OutputProgress) -> int:
    if output.complete:
        return output.rows
    return output.rows * min(output.distinct, output.texts_done) // max(1, output.distinct)
