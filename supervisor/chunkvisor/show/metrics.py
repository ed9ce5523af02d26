"""Metrics of a run, in a file that Prometheus' node_exporter reads."""

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path

from chunkvisor.show.lines import Observer
from chunkvisor.show.snapshot import Snapshot, snapshot_of
from chunkvisor_worker.contract.files import write_atomic

INTERVAL_S = 15.0
"""Between two versions of the file."""
Value = float | dict[str, float]
"""One value, or one for each value of the metric's label."""


def _by_output(name: str) -> Callable[[Snapshot], Value]:
    return lambda now: {output: getattr(each, name) for output, each in now.outputs.items()}


def _by_device(name: str) -> Callable[[Snapshot], Value]:
    return lambda now: {
        number: getattr(each, name) for number, each in now.state.device_times.items()
    }


METRICS: dict[str, tuple[str, Callable[[Snapshot], Value]]] = {
    "exit_code": (
        "Exit code of the last run; -1 while running.",
        lambda now: now.state.ending.code if now.state.ending else -1,
    ),
    "written_timestamp_seconds": (
        "When this file was written.",
        lambda _: time.time(),
    ),
    "rows{output}": ("Its rows.", _by_output("rows")),
    "rows_done{output}": (
        "Rows whose text is encoded; estimated until all are.",
        _by_output("rows_done"),
    ),
    "chunks{output}": ("Its chunks.", _by_output("chunks")),
    "chunks_done{output}": ("Committed chunks.", _by_output("chunks_done")),
    "quarantined_rows{output}": ("Rows without a vector.", _by_output("without")),
    "rows_per_second": ("Rows a second, over the last chunks.", lambda now: now.rows_per_s or 0.0),
    "eta_seconds": (
        "Time until all outputs are complete; 0 if it is not known.",
        lambda now: now.eta_s or 0.0,
    ),
    "texts_total{output}": (
        "Distinct texts that this run has committed.",
        _by_output("texts_here"),
    ),
    "tokens_total{output}": ("Their tokens, without padding.", _by_output("tokens_here")),
    "attempts_total{outcome}": (
        "Attempts of this run that have ended.",
        lambda now: dict(now.state.attempts),
    ),
    "device_busy_seconds_total{device}": (
        "Time that the device has computed.",
        _by_device("busy_s"),
    ),
    "device_idle_seconds_total{device}": (
        "Time between one worker and the next.",
        _by_device("idle_s"),
    ),
}
"""What each metric means, and how its value is taken from a snapshot.

The key is the metric's name without `chunkvisor_`, and in braces its label, if the value is a
dictionary by that label; all have the label `workdir` as well. A name that ends in `_total` is a
counter, any other a gauge.
"""


class Metrics(Observer):
    """Keeps a file of metrics up to date, for the textfile collector of node_exporter.

    All have the workdir as a label, so that files of several jobs in one folder do not collide.
    """

    def __init__(self, path: Path, workdir: Path) -> None:
        self._path = path
        self._workdir = workdir
        self._next_s = 0.0

    def tick(self) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + INTERVAL_S
            self.close()

    def close(self) -> None:
        now = snapshot_of(self.state, time.time())
        lines = list[str]()
        for head, (meaning, value_of) in METRICS.items():
            name, _, label = head.rstrip("}").partition("{")
            full = f"chunkvisor_{name}"
            lines += [
                f"# HELP {full} {meaning}",
                f"# TYPE {full} {'counter' if name.endswith('_total') else 'gauge'}",
            ]
            value = value_of(now)
            for key, number in (value if isinstance(value, dict) else {"": value}).items():
                # JSON escapes what these labels may hold as Prometheus does.
                labels = f"workdir={json.dumps(str(self._workdir), ensure_ascii=False)}"
                if label:
                    labels += f",{label}={json.dumps(key)}"
                lines.append(f"{full}{{{labels}}} {float(number)}")
        data = "\n".join([*lines, ""]).encode(errors="replace")
        # Others may read the file, unlike the workdir: node_exporter is another user.
        with contextlib.suppress(OSError):
            write_atomic(self._path, [data], durable=False)
