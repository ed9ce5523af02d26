"""What the journal does not tell of a live run: the workers' beats and the newest line of the sensors.

It never writes, and never waits: what cannot be read is not there.
"""

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chunkvisor.events.progress import AttemptKey
from chunkvisor.events.state import RunState
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor.store.slices import Slice
from chunkvisor_worker.contract.files import open_regular
from chunkvisor_worker.contract.messages import Beat, read_message

_TAIL_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Readings:
    """Of one moment."""

    beats: dict[AttemptKey, tuple[Beat, float]] = field(default_factory=dict)
    """The last beat, and how many seconds it is old by the file's time."""
    sensors: dict[str, Any] = field(default_factory=dict)
    """As `sensors.jsonl` has it; empty where nothing was measured lately."""


def layout_of(state: RunState) -> Layout | None:
    """The workdir, as the run sees it; None until it has told. Raises ValueError where it told of no slice."""
    of_slice = Slice.parse(state.slice) if state.slice else None
    return Layout(Path(state.workdir), of_slice) if state.workdir else None


def take_readings(layout: Layout, state: RunState, *, sensors: bool = True) -> Readings:
    """Read what is there of the attempts under way, and of the machine."""
    now = time.time()
    beats = {}
    for worker in state.workers.values():
        key = worker.key
        path = layout.output(key.output).attempt(key.chunk, key.attempt).beat
        if (beat := read_message(Beat, path)) is not None:
            try:
                beats[key] = (beat, max(0.0, now - path.stat().st_mtime))
            except OSError:
                continue
    if not sensors or not state.invocation:
        return Readings(beats)
    return Readings(beats, last_line(InvocationFiles(layout.invocations / state.invocation).sensors))


def last_line(path: Path) -> dict[str, Any]:
    """The last whole line of a file of JSON objects; empty where there is none."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).splitlines(keepends=True)
    except OSError:
        return {}
    for line in reversed(lines):
        if line.endswith(b"\n"):
            try:
                found = json.loads(line)
            except ValueError:
                return {}
            return found if isinstance(found, dict) else {}
    return {}
