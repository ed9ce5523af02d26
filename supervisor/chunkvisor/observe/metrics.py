"""Keeps a file of figures for Prometheus up to date, in the text format that node_exporter's textfile collector reads.

It never opens a port, and a file that cannot be written costs the figures, nothing else.
"""

import contextlib
import time
from pathlib import Path
from typing import Any

from chunkvisor.observe.observer import NullObserver
from chunkvisor.version import __version__

INTERVAL_S = 15.0


class Metrics(NullObserver):
    """Counts what happens in one run, and writes it down."""

    def __init__(self, path: Path) -> None:
        """Needs prometheus_client; raises ImportError."""
        from prometheus_client import CollectorRegistry, Counter, Gauge

        self._path = path
        self._registry = registry = CollectorRegistry()
        self._next_s = 0.0
        self._totals: dict[str, tuple[int, int]] = {}
        self._done: dict[str, int] = {}

        def gauge(name: str, what: str, *labels: str) -> Gauge:
            return Gauge(f"chunkvisor_{name}", what, labels, registry=registry)

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"chunkvisor_{name}", what, labels, registry=registry)

        gauge("build_info", "Version of chunkvisor, as a label; always 1.", "version").labels(__version__).set(1)
        self._running = gauge("running", "1 while the run lives, 0 once it has ended; a killed run leaves 1.")
        self._started = gauge("run_start_timestamp_seconds", "When the run began, in seconds since the epoch.")
        self._written = gauge("written_timestamp_seconds", "When this file was written, in seconds since the epoch.")
        self._exit_code = gauge("exit_code", "Exit code of the last run that ended here; -1 while one is running.")
        self._rows = gauge("rows", "Rows of the output.", "output")
        self._rows_done = gauge(
            "rows_done",
            "Rows whose text is encoded; estimated from distinct texts until the output is complete.",
            "output",
        )
        self._chunks = gauge("chunks", "Chunks of the output.", "output")
        self._chunks_done = gauge("chunks_done", "Chunks of the output that are committed.", "output")
        self._quarantined = gauge("quarantined_rows", "Texts that this run has put into quarantine.", "output")
        self._texts = counter("texts", "Distinct texts that this run has committed.", "output")
        self._tokens = counter("tokens", "Tokens of the texts that this run has committed, without padding.", "output")
        self._attempts = counter("attempts", "Attempts of this run that have ended, by outcome.", "outcome")
        self._busy = counter("device_busy_seconds", "Time that workers have had the device.", "device")
        self._idle = counter("device_idle_seconds", "Time between one worker's end and the next one's go.", "device")
        self._startup = counter("worker_startup_seconds", "Time that workers have taken until they were ready.")
        self._rate = gauge("texts_per_second", "Distinct texts a second, of late.")
        self._eta = gauge("eta_seconds", "Time until all outputs are complete, at the rate of late.")
        self._last_chunk = gauge("last_chunk_timestamp_seconds", "When a chunk was committed last.")
        self._batch = gauge("batch_texts_limit", "Texts in a batch, at most, as of now.")
        self._running.set(1)
        self._exit_code.set(-1)
        self._started.set_to_current_time()

    def event(self, event: str, details: dict[str, Any]) -> None:
        """Count it."""
        match event:
            case "output_opened":
                self._open(details)
            case "output_already_complete" | "output_complete":
                name = details["output"]
                self._rows.labels(name).set(details["rows"])
                self._rows_done.labels(name).set(details["rows"])
            case "go":
                self._batch.set(details["rows"])
            case "chunk_committed":
                self._committed(details)
            case "part_committed":
                self._attempts.labels("committed").inc()
            case "attempt_failed" | "part_failed" | "attempt_interrupted":
                self._attempts.labels(str(details["outcome"])).inc()
            case "worker_ended":
                device = str(details["device"])
                self._busy.labels(device).inc(max(0.0, details["busy_s"]))
                self._idle.labels(device).inc(max(0.0, details["idle_s"]))
                self._startup.inc(max(0.0, details["startup_s"]))
            case "quarantined":
                self._quarantined.labels(details["output"]).inc()
            case "halted" | "run_ended":
                self._exit_code.set(details["code"])

    def tick(self) -> None:
        """Write the file now and then."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + INTERVAL_S
            self._write()

    def close(self) -> None:
        """Write it once more: the run is over."""
        self._running.set(0)
        self._write()

    def _open(self, details: dict[str, Any]) -> None:
        name = details["output"]
        rows, distinct = details["rows"], details["distinct"]
        self._totals[name] = (rows, distinct)
        self._done[name] = min(distinct, details["chunks_done"] * details["chunk_size"])
        self._rows.labels(name).set(rows)
        self._rows_done.labels(name).set(rows * self._done[name] // max(1, distinct))
        self._chunks.labels(name).set(details["chunks"])
        self._chunks_done.labels(name).set(details["chunks_done"])
        self._quarantined.labels(name).set(0)
        self._texts.labels(name)
        self._tokens.labels(name)

    def _committed(self, details: dict[str, Any]) -> None:
        name = details["output"]
        rows, distinct = self._totals[name]
        self._done[name] = min(distinct, self._done[name] + details["texts"])
        self._rows_done.labels(name).set(rows * self._done[name] // max(1, distinct))
        self._chunks_done.labels(name).set(details["chunks_done"])
        self._texts.labels(name).inc(details["texts"])
        self._tokens.labels(name).inc(details["tokens"])
        if details["attempt_ok"]:
            self._attempts.labels("committed").inc()
        self._rate.set(details["texts_per_s"] or 0.0)
        self._eta.set(details["eta_s"] or 0.0)
        self._last_chunk.set_to_current_time()

    def _write(self) -> None:
        from prometheus_client import write_to_textfile

        self._written.set_to_current_time()
        # Readable by others, unlike the workdir: node_exporter is another user.
        with contextlib.suppress(OSError):
            write_to_textfile(str(self._path), self._registry)
