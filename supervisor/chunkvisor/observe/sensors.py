"""Notes every few seconds what the run takes: memory, processor time and GPUs, one JSON object a line."""

import json
import time
from typing import Any

from chunkvisor.devices.gpuprobe import GpuProbe
from chunkvisor.devices.processes import Processes
from chunkvisor.events.attempt import AttemptStarted, WorkerEnded
from chunkvisor.events.device import TemplateFailed, TemplateStarted
from chunkvisor.events.event import Event
from chunkvisor.events.progress import AttemptKey
from chunkvisor.events.run import RunStarted
from chunkvisor.events.state import RunState
from chunkvisor.observe.boundedlines import BoundedLines
from chunkvisor.observe.observer import Observer
from chunkvisor.store.layout import InvocationFiles

INTERVAL_S = 5.0
LINES = 3000
"""Four hours at first; from then on half as many lines in the same time, and so on: a week is 160 s a line."""
_WITHOUT = "nvidia-smi gave no usable answer three times; the sensors go on without the GPUs"


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
                # A slow nvidia-smi holds up the others no longer than this.
                self._due_s = now_s + self._interval_s / 2
            else:
                self._due_s = now_s

    def close(self) -> None:
        """A last reading, and the end of the child."""
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
