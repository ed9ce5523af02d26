"""What the journal does not tell of a live run: the workers' beats, and the lines of the sensors."""

import functools
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from chunkvisor.events.progress import AttemptKey
from chunkvisor.events.state import RunState
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor.store.slices import Slice
from chunkvisor_worker.contract.beatfile import read_beat
from chunkvisor_worker.contract.files import open_regular
from chunkvisor_worker.contract.messages import Beat

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_TAIL_BYTES = 16 << 10


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
    """Of a worker, or of the supervisor."""

    pid: int = 0
    rss_bytes: float = 0.0
    peak_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class HostReading:
    """Of the machine."""

    available_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class SensorLine:
    """A line of `sensors.jsonl`, as far as anything is made of it."""

    t: float = 0.0
    """Seconds since the epoch."""
    gpus: tuple[GpuReading, ...] = ()
    workers: tuple[ProcessReading, ...] = ()
    parent: ProcessReading = ProcessReading()
    host: HostReading = HostReading()


@dataclass(frozen=True, slots=True)
class Readings:
    """Of one moment."""

    beats: dict[AttemptKey, tuple[Beat, float]] = field(default_factory=dict)
    """The last beat, and how many seconds it is old by the file's time."""
    sensors: SensorLine = SensorLine()


def layout_of(state: RunState) -> Layout | None:
    """The workdir, as the run sees it; None until it has told. Raises ValueError where it told of no slice."""
    of_slice = Slice.parse(state.slice) if state.slice else None
    return Layout(Path(state.workdir), of_slice) if state.workdir else None


def take_readings(layout: Layout, state: RunState, *, sensors: bool = True) -> Readings:
    """Read what is there of the attempts under way, and of the machine."""
    beats = {}
    for key in (worker.key for worker in state.workers.values()):
        path = layout.output(key.output).attempt(key.chunk, key.attempt).beat
        if (beat := read_beat(path)) is not None:
            try:
                beats[key] = (beat, max(0.0, time.time() - path.stat().st_mtime))
            except OSError:
                continue
    if not sensors or not state.invocation:
        return Readings(beats)
    return Readings(beats, last_line(InvocationFiles(layout.invocations / state.invocation).sensors))


@functools.cache
def _kind() -> "TypeAdapter[SensorLine]":
    from pydantic import TypeAdapter

    return TypeAdapter(SensorLine)


def read_line(line: bytes) -> SensorLine | None:
    """A line of the sensors; None for what is none. By pydantic, which is ten times as fast as `from_json`."""
    try:
        return _kind().validate_json(line)
    except ValueError:
        return None


def last_line(path: Path) -> SensorLine:
    """The last whole line of the sensors; an empty one where there is none."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            whole, ended, _ = file.read(_TAIL_BYTES).rpartition(b"\n")
    except OSError:
        return SensorLine()
    return (read_line(whole.rpartition(b"\n")[2]) if ended else None) or SensorLine()
