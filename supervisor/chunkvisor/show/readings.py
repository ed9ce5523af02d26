"""What the journal does not tell of a live run: the workers' beats, and the lines of the sensors."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from chunkvisor.events.progress import AttemptKey
from chunkvisor.events.state import RunState
from chunkvisor.show.sensors import SensorLine, last_line
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor_worker.contract.beatfile import read_beat
from chunkvisor_worker.contract.messages import Beat


@dataclass(frozen=True, slots=True)
class Readings:
    """Of one moment."""

    beats: dict[AttemptKey, tuple[Beat, float]] = field(default_factory=dict)
    """The last beat, and how many seconds it is old by the file's time."""
    sensors: SensorLine = field(default_factory=SensorLine)


def layout_of(state: RunState) -> Layout | None:
    """The workdir, as the run sees it; None until it has told."""
    return Layout(Path(state.workdir)) if state.workdir else None


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
