"""The lessons of a workdir about batches, on disk: what one run paid for, no later one pays for again.

Lessons hold for one model on one kind of device. A damaged file is an empty one.
"""

import contextlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from chunkvisor.decide.lessons import Lesson
from chunkvisor.store.seal import DamagedError, read_sealed, write_sealed
from chunkvisor_worker.contract.wire import from_json


class LessonFile:
    """The lessons for one model, by kind of device (`Device.model`)."""

    def __init__(self, path: Path, key: str) -> None:
        """`key` names the model."""
        self._path = path
        self._key = key

    def get(self, kind: str, _default: tuple[Lesson, ...] = ()) -> tuple[Lesson, ...]:
        """Those of the kind; none where there are none."""
        values: object = []
        with contextlib.suppress(OSError):
            values = self._read().get(self._key_of(kind))
        read = [from_json(Lesson, json.dumps(value)) for value in values] if isinstance(values, list) else []
        # The streak begins anew: a run does not begin with a doubt.
        return tuple(replace(lesson, successes=0) for lesson in read if lesson is not None)

    def save(self, kind: str, lessons: tuple[Lesson, ...]) -> None:
        """Keep them; on a full disk the run has them in mind all the same."""
        with contextlib.suppress(OSError):
            write_sealed(self._path, {**self._read(), self._key_of(kind): [asdict(lesson) for lesson in lessons]})

    def _read(self) -> dict[str, Any]:
        try:
            return read_sealed(self._path) or {}
        except DamagedError:
            return {}

    def _key_of(self, kind: str) -> str:
        return f"{kind}|{self._key}" if kind else self._key
