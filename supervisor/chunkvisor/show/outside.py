"""What a run leaves to read and reports to other programs: log, report, metrics and notices."""

import contextlib
import json
import re
import socket
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from chunkvisor.config.model import Config
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events import event as events
from chunkvisor.events.event import Event
from chunkvisor.events.state import RunState
from chunkvisor.show.lines import Console, Observer
from chunkvisor.show.snapshot import Snapshot, snapshot_of
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor.units import counted, human_time
from chunkvisor_worker.contract.files import make_folder, remove_folder, write_atomic

INTERVAL_S = 15.0
"""Between two files of metrics."""
END_S = 5.0
"""How much longer the end of a run may take for its notices: after SIGTERM comes a SIGKILL."""
Value = float | dict[str, float]


def _by_output(name: str) -> Callable[[Snapshot], Value]:
    return lambda now: {output: getattr(each, name) for output, each in now.outputs.items()}


def _by_device(name: str) -> Callable[[Snapshot], Value]:
    return lambda now: {
        number: getattr(each, name) for number, each in now.state.device_times.items()
    }


METRICS: dict[str, tuple[str, Callable[[Snapshot], Value]]] = {
    "exit_code": (
        "Of the last run; -1 while it runs.",
        lambda now: now.state.ending.code if now.state.ending else -1,
    ),
    "written_timestamp_seconds": (
        "When this file was written, in seconds since the epoch.",
        lambda _: time.time(),
    ),
    "rows{output}": ("Rows of the output.", _by_output("rows")),
    "rows_done{output}": (
        "Rows whose text is encoded; estimated until all are.",
        _by_output("rows_done"),
    ),
    "chunks{output}": ("Chunks of the output.", _by_output("chunks")),
    "chunks_done{output}": ("Chunks of the output that are committed.", _by_output("chunks_done")),
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
"""Meaning and value by name with its label; those whose name ends in `_total` are counters, the
others gauges."""


class Metrics(Observer):
    """Keeps a file of metrics up to date, for node_exporter's textfile collector."""

    def __init__(self, path: Path) -> None:
        self._path = path
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
            value = value_of(now)
            lines += [
                f"# HELP {full} {meaning}",
                f"# TYPE {full} {'counter' if name.endswith('_total') else 'gauge'}",
            ]
            if not isinstance(value, dict):
                lines.append(f"{full} {float(value)}")
                continue
            for key, number in value.items():
                escaped = key.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
                lines.append(f'{full}{{{label}="{escaped}"}} {float(number)}')
        with contextlib.suppress(
            OSError
        ):  # readable by others, unlike the state: node_exporter is another user
            write_atomic(self._path, "".join(f"{line}\n" for line in lines).encode(), durable=False)


def is_metrics_file(head: bytes) -> bool:
    """Whether a file that begins like this was written here."""
    return head.startswith(b"# HELP chunkvisor_")


class Notices(Observer):
    """Sends a notice when a run ends, or meets the first text that cannot be encoded.

    A thread delivers them by apprise, in order; the run waits for it only at its end.
    """

    def __init__(self, urls: Sequence[str], layout: Layout, files: InvocationFiles | None) -> None:
        self._workdir = layout.workdir
        self._files = files
        self._sender, self._wrong = sender_to(urls)
        self._queue = SimpleQueue[tuple[str, str] | None]()
        self._thread: Thread | None = None

    def event(self, event: Event, state: RunState) -> None:
        match event:
            case events.Quarantined() if state.total("quarantined") == 1:
                row = f"{event.output} row {event.row} ({event.place})"
                self._enqueue(
                    "a row is quarantined", f"{row} gets no vector: {event.outcome}: {event.reason}"
                )
            case events.RunEnded() if state.worked:
                now = snapshot_of(state, time.time())
                made = ((name, each.rows) for name, each in now.outputs.items() if each.complete)
                rows = [f"{name}: {counted(count, 'row')}" for name, count in made]
                self._enqueue("complete", "\n".join([*rows, f"after {human_time(now.elapsed_s)}"]))
            case events.Halted() if event.code != ExitCode.INTERRUPTED:  # who pressed Ctrl-C knows
                self._enqueue(f"ended with exit code {event.code}", "\n".join(event.last_words))

    def close(self) -> None:
        """Give the thread a little time for what it has not delivered yet."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(END_S)

    def _enqueue(self, what: str, body: str) -> None:
        self._queue.put((what, body[:8000]))
        if self._thread is None:
            self._thread = Thread(target=self._deliver, name="notices", daemon=True)
            self._thread.start()

    def _deliver(self) -> None:
        while (notice := self._queue.get()) is not None:
            what, body = notice
            title = f"chunkvisor: {what}: {self._workdir.name} on {socket.gethostname()}"
            delivered = (
                self._sender.notify(title=title, body=body, body_format="text") and not self._wrong
            )
            line = {
                "t": time.time(),
                "notice": what,
                "end": "delivered" if delivered else "not delivered to all",
            }
            if self._files is not None:
                with contextlib.suppress(OSError), open(self._files.notices, "a") as file:
                    file.write(json.dumps(line) + "\n")


def sender_to(urls: Sequence[str]) -> tuple[Any, list[int]]:
    """Return an Apprise for these addresses, and the places of those it does not know."""
    with warnings.catch_warnings(action="ignore"):  # of its own imports
        from apprise import Apprise

        sender = Apprise()
        return sender, [number for number, url in enumerate(urls) if not sender.add(url)]


KEPT = 50
"""Folders of invocations that stay; older ones are removed, except those that you have renamed."""
MOST_BYTES = 48 << 20
"""A run makes no report of a longer journal: the command `report` takes the time."""
# a longer number is a date that the user has put in front
_NUMBER = re.compile(r"([0-9]{1,6})(?![0-9])")
_OURS = re.compile(r"([0-9]{3,6})_[0-9]{4}-[0-9]{2}-[0-9]{2}_[0-9]{6}")


def open_invocation(layout: Layout) -> InvocationFiles | None:
    """Make the folder of the next invocation, with an empty log, and let `latest` point to it.

    Remove old ones.

    The caller holds the workdir's lock, hence no number is given twice. None if the disk refuses: a
    run is worth more than what it leaves to read.
    """
    try:
        make_folder(layout.runs, durable=False)
        temporary = layout.latest.with_name(".latest.tmp")
        temporary.unlink(missing_ok=True)  # of a run that was killed
        names = [entry.name for entry in layout.runs.iterdir()]
        number = 1 + max(
            (int(match[1]) for name in names if (match := _NUMBER.match(name))), default=0
        )
        files = InvocationFiles(layout.runs / f"{number:03d}_{time.strftime('%Y-%m-%d_%H%M%S')}")
        files.folder.mkdir()
        files.log.touch()
    except OSError:
        return None
    with contextlib.suppress(
        OSError
    ):  # if links cannot be made, or something else has the name, there is no link
        temporary.symlink_to(files.name)
        temporary.replace(layout.latest)
    ours = sorted((int(match[1]), name) for name in names if (match := _OURS.fullmatch(name)))
    for _, name in ours[: max(0, len(ours) - KEPT + 1)]:
        remove_folder(layout.runs / name)
    return files


def observers_of_run(
    config: Config, layout: Layout, files: InvocationFiles | None
) -> list[Observer]:
    """Return the observers of every run, to be guarded.

    `files` is None if the disk did not allow such a folder.
    """
    made: list[Observer] = []
    if files is not None:
        with contextlib.suppress(OSError):
            made.append(_Log(files))
    if config.metrics.textfile is not None:
        made.append(Metrics(config.metrics.textfile))
    made.append(Reporter(layout))
    if config.notify:  # after the report, to which a notice may lead
        made.append(Notices([url.get_secret_value() for url in config.notify], layout, files))
    return made


class _Log(Console):
    def __init__(self, files: InvocationFiles) -> None:
        self._file = open(files.log, "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - closed by close
        super().__init__(self._file, last_words=True)

    def close(self) -> None:
        self._file.close()


class Reporter(Observer):
    """Writes `report.html` when a run ends that had something to do."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def close(self) -> None:
        """Write the report; a full disk costs nothing else, and a page of that name stays."""
        from chunkvisor.show.report import write_report

        with contextlib.suppress(OSError, Halt):
            if self.state.worked and self._layout.events.stat().st_size <= MOST_BYTES:
                write_report(self._layout.workdir, self._layout.report)
