"""Notes every few seconds what the run takes: memory, processor time and GPUs, one JSON object a line."""

import contextlib
import functools
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkvisor.devices.gpu import GpuProbe
from chunkvisor.devices.health import Processes
from chunkvisor.events.attempt import AttemptStarted, WorkerEnded
from chunkvisor.events.device import TemplateFailed, TemplateStarted
from chunkvisor.events.event import Event
from chunkvisor.events.progress import AttemptKey
from chunkvisor.events.run import RunStarted
from chunkvisor.events.state import RunState
from chunkvisor.show.observer import Observer
from chunkvisor.store.layout import InvocationFiles
from chunkvisor_worker.contract.files import write_atomic

if TYPE_CHECKING:
    from pydantic import TypeAdapter

INTERVAL_S = 5.0
LINES = 3000
"""Four hours at first; from then on half as many lines in the same time, and so on: a week is 160 s a line."""
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


class Sensors(Observer):
    """Writes `sensors.jsonl` of an invocation."""

    def __init__(self, files: InvocationFiles) -> None:
        self._file = BoundedLines(files.sensors, LINES)
        self._interval_s = INTERVAL_S
        self._processes = Processes()
        self._probe: GpuProbe | None = None
        self._gpus: list[dict[str, Any]] = []
        self._pids: dict[AttemptKey, int] = {}
        self._next_s = 0.0
        self._due_s: float | None = None
        self._told = False

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - an event says it all
        """Learn of processes and devices."""
        match event:
            case RunStarted() if any(event.gpus):
                self._probe = GpuProbe(event.gpus)
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
        if self._probe is not None and (gpus := self._probe.answer()) is not None:
            self._gpus = gpus
            self._due_s = now_s
        if self._due_s is not None and now_s >= self._due_s:
            self._due_s = None
            self._write()
        if now_s >= self._next_s:
            self._next_s = now_s + self._interval_s
            if self._probe is not None and not self._probe.given_up:
                self._probe.ask()
                self._due_s = now_s + self._interval_s / 2  # a slow nvidia-smi holds up the others no longer than this
            else:
                self._due_s = now_s

    def close(self) -> None:
        """Take a last reading, and end the child."""
        if self._probe is not None:
            self._gpus = self._probe.answer() or []
            self._probe.close()
        self._write()

    def _write(self) -> None:
        line: dict[str, Any] = {"t": round(time.time(), 3)}
        if self._gpus:
            line["gpus"] = self._gpus
        line |= self._processes.read()
        if self._probe is not None and self._probe.given_up and not self._told:
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
