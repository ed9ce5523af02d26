"""The lessons of a workdir about batches, on disk: what one run paid for, no later one pays for again.

Lessons hold for one model on one kind of device. A damaged file is an empty one.
"""

import contextlib
import json
from dataclasses import asdict, replace
from pathlib import Path

from chunkvisor.decide.lessons import Lesson
from chunkvisor.store.seal import DamagedError, read_sealed, write_sealed
from chunkvisor_worker.contract.messages import from_json


class LessonFile:
    """The lessons for one model, by kind of device (`Device.model`)."""

    def __init__(self, path: Path, key: str) -> None:
        """`key` names the model."""
        self._path = path
        self._key = key

    def get(self, kind: str, _default: tuple[Lesson, ...] = ()) -> tuple[Lesson, ...]:
        """Those of the kind; none where there are none."""
        return _read(self._path, self._key_of(kind))

    def save(self, kind: str, lessons: tuple[Lesson, ...]) -> None:
        """Keep them; on a full disk the run has them in mind all the same."""
        with contextlib.suppress(OSError, DamagedError):
            _write(self._path, self._key_of(kind), lessons)

    def _key_of(self, kind: str) -> str:
        return f"{kind}|{self._key}" if kind else self._key


def _read(path: Path, key: str) -> tuple[Lesson, ...]:
    try:
        content = read_sealed(path) or {}
    except (DamagedError, OSError):
        return ()
    values = content.get(key, [])
    read = [from_json(Lesson, json.dumps(value)) for value in values] if isinstance(values, list) else []
    # The streak begins anew: a run does not begin with a doubt.
    return tuple(replace(lesson, successes=0) for lesson in read if lesson is not None)


def _write(path: Path, key: str, lessons: tuple[Lesson, ...]) -> None:
    try:
        content = read_sealed(path) or {}
    except DamagedError:
        content = {}
    write_sealed(path, {**content, key: [asdict(lesson) for lesson in lessons]})
