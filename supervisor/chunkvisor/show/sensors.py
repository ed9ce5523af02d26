"""Notes every few seconds what the run takes: memory, processor time and GPUs, one JSON object a line."""

import contextlib
import functools
import json
import os
import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from chunkvisor.devices.gpu import in_background, read_load
from chunkvisor.events.event import AttemptStarted, Event, RunStarted, TemplateFailed, TemplateStarted, WorkerEnded
from chunkvisor.events.state import AttemptKey, RunState
from chunkvisor.show.observer import Observer
from chunkvisor.store.layout import InvocationFiles
from chunkvisor_worker.contract.files import write_atomic

if TYPE_CHECKING:
    from pydantic import TypeAdapter

INTERVAL_S = 5.0
LINES = 3000
"""Four hours at first; from then on half as many lines in the same time, and so on: a week is 160 s a line."""
FAILURES = 3
"""After so many in a row nvidia-smi is not asked again."""
_WITHOUT = "nvidia-smi gave no usable answer three times; the sensors go on without the GPUs"
_TAIL_BYTES = 16 << 10


class BoundedLines:
    """A file of lines that stays small however long a run lasts; it is private to the user."""

    def __init__(self, path: Path, limit: int) -> None:
        """At most `limit` lines stay in the file: when there are more, every second one goes."""
        self._path = path
        self._limit = limit
        self._lines = 0

    def append(self, line: str) -> bool:
        """Append a line; True if the file was thinned, so that lines are to come half as often from now on."""
        with contextlib.suppress(OSError), open(self._path, "ab") as file:
            file.write(line.encode() + b"\n")
        self._lines += 1
        if self._lines < self._limit:
            return False
        with contextlib.suppress(OSError):
            with open(self._path, "rb") as file:
                kept = file.read().splitlines(keepends=True)[::2]
            write_atomic(self._path, b"".join(kept), durable=False)
        self._lines //= 2
        return True


class Processes:
    """The processes of a run; `cpu` is how many cores one has kept busy since the reading before."""

    def __init__(self) -> None:
        self._parent = psutil.Process()
        self._workers: dict[int, psutil.Process] = {}
        self._measured: set[int] = set()

    def add(self, pid: int) -> None:
        """Note that a process was started."""
        with contextlib.suppress(psutil.Error):
            self._workers[pid] = psutil.Process(pid)

    def drop(self, pid: int) -> None:
        """Note that a process has ended."""
        self._workers.pop(pid, None)
        self._measured.discard(pid)

    def read(self) -> dict[str, Any]:
        """Read `workers`, `parent` and `host`, as a line of the sensors has them."""
        workers = []
        for pid in list(self._workers):
            try:
                workers.append({"pid": pid, **self._figures(self._workers[pid]), **_peak(pid)})
            except (psutil.Error, OSError):
                self.drop(pid)
        return {
            "workers": workers,
            "parent": self._figures(self._parent),
            "host": {"available_bytes": int(psutil.virtual_memory().available)},
        }

    def _figures(self, process: psutil.Process) -> dict[str, Any]:
        with process.oneshot():
            figures: dict[str, Any] = {"rss_bytes": int(process.memory_info().rss)}
            cpu = process.cpu_percent() / 100
        # The first call of psutil's cpu_percent has nothing to compare with, and gives 0.
        if process.pid in self._measured:
            figures["cpu"] = round(cpu, 3)
        self._measured.add(process.pid)
        return figures


def _peak(pid: int) -> dict[str, int]:
    """Read the most memory that the process has held: VmHWM of proc(5), which misses nothing between two readings."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return {"peak_bytes": int(line.split()[1]) << 10}
    return {}


class Sensors(Observer):
    """Writes `sensors.jsonl` of an invocation."""

    def __init__(self, files: InvocationFiles) -> None:
        self._file = BoundedLines(files.sensors, LINES)
        self._interval_s = INTERVAL_S
        self._processes = Processes()
        self._uuids: tuple[str, ...] = ()
        self._reading: Future[list[dict[str, Any]]] | None = None
        self._failures = 0
        self._gpus: list[dict[str, Any]] = []
        self._pids: dict[AttemptKey, int] = {}
        self._next_s = 0.0
        self._due_s: float | None = None
        self._told = False

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - an event says it all
        """Learn of processes and devices."""
        match event:
            case RunStarted() if any(event.gpus):
                self._uuids = event.gpus
            case AttemptStarted():
                self._pids[AttemptKey(event.output, event.chunk, event.attempt)] = event.pid
                self._processes.add(event.pid)
            case WorkerEnded():
                self._processes.drop(self._pids.pop(AttemptKey(event.output, event.chunk, event.attempt), 0))
            case TemplateStarted():
                self._processes.add(event.pid)
            case TemplateFailed():
                self._processes.drop(event.pid)

    def tick(self) -> None:
        """Begin a reading when it is time, and write it down when the GPUs have answered, or do not."""
        now_s = time.monotonic()
        if self._reading is not None and self._reading.done():
            self._gpus, self._reading = self._reading.result(), None
            self._failures = 0 if self._gpus else self._failures + 1
            self._due_s = now_s
        if self._due_s is not None and now_s >= self._due_s:
            self._due_s = None
            self._write()
        if now_s >= self._next_s:
            self._next_s = self._due_s = now_s + self._interval_s
            if not self._uuids or self._failures >= FAILURES:
                self._due_s = now_s
            elif self._reading is None:
                self._reading = in_background(read_load, self._uuids)
                self._due_s = now_s + self._interval_s / 2  # a slow nvidia-smi holds up the others no longer than this

    def close(self) -> None:
        """Take a last reading."""
        if self._reading is not None and self._reading.done():
            self._gpus = self._reading.result()
        self._write()

    def _write(self) -> None:
        line: dict[str, Any] = {"t": round(time.time(), 3)}
        if self._gpus:
            line["gpus"] = self._gpus
        line |= self._processes.read()
        if self._failures >= FAILURES and not self._told:
            line["note"], self._told = _WITHOUT, True
        self._gpus = []  # an old reading is worth less than none
        if self._file.append(json.dumps(line, separators=(",", ":"))):
            self._interval_s *= 2


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Of a GPU; what it does not tell is None."""

    device: int
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    utilization: float | None = None
    """Percent."""
    temperature_c: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """Of a worker."""

    pid: int = 0
    rss_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class SensorLine:
    """A line of `sensors.jsonl`, as far as anything is made of it."""

    t: float = 0.0
    """Seconds since the epoch."""
    gpus: tuple[GpuReading, ...] = ()
    workers: tuple[ProcessReading, ...] = ()


@functools.cache
def _kind() -> "TypeAdapter[SensorLine]":
    from pydantic import TypeAdapter

    return TypeAdapter(SensorLine)


def read_line(line: bytes) -> SensorLine | None:
    """Read a line of the sensors; None if it is damaged. By pydantic, which is ten times as fast as `from_json`."""
    try:
        return _kind().validate_json(line)
    except ValueError:
        return None


def last_line(path: Path) -> SensorLine:
    """Read the last whole line of the sensors; an empty one if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            whole, ended, _ = file.read(_TAIL_BYTES).rpartition(b"\n")
    except OSError:
        return SensorLine()
    return (read_line(whole.rpartition(b"\n")[2]) if ended else None) or SensorLine()
