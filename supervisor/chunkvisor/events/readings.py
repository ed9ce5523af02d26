"""What the journal does not tell of a live run: the workers' beats and the newest line of the sensors.

It never writes, and never waits: what cannot be read is not there.
"""

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor_worker.contract.files import open_regular
from chunkvisor_worker.contract.messages import Beat, read_message

_TAIL_BYTES = 16 << 10


class AttemptKey(NamedTuple):
    """Which attempt."""

    output: str
    chunk: int
    attempt: int

    @classmethod
    def of(cls, details: Mapping[str, Any]) -> Self:
        """That of an event. Raises KeyError, ValueError, TypeError."""
        return cls(str(details["output"]), int(details["chunk"]), int(details["attempt"]))


@dataclass(frozen=True, slots=True)
class Readings:
    """Of one moment."""

    beats: dict[AttemptKey, tuple[Beat, float]] = field(default_factory=dict)
    """The last beat, and how many seconds it is old by the file's time."""
    sensors: dict[str, Any] = field(default_factory=dict)
    """As `sensors.jsonl` has it; empty where nothing was measured lately."""


def take_readings(layout: Layout, invocation: str, attempts: Iterable[AttemptKey]) -> Readings:
    """Read what is there of these attempts, and of the machine."""
    now = time.time()
    beats = {}
    for key in attempts:
        path = layout.output(key.output).attempt(key.chunk, key.attempt).beat
        if (beat := read_message(Beat, path)) is not None:
            try:
                beats[key] = (beat, max(0.0, now - path.stat().st_mtime))
            except OSError:
                continue
    sensors = last_line(InvocationFiles(layout.invocations / invocation).sensors) if invocation else {}
    return Readings(beats, sensors)


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
