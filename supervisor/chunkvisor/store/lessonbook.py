"""The lessons of a workdir about batches, on disk: what one run paid for, no later one pays for again.

It never decides what is learnt: `lessons` does. Lessons hold for one model on one kind of device.
"""

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from chunkvisor.decide.lessons import Lesson, apply, confirm, learn
from chunkvisor.store.seal import DamagedError, read_sealed, write_sealed
from chunkvisor_worker.contract.messages import Limits, Tier, from_json


class LessonBook:
    """Lessons for the model and device of a run; a damaged book is an empty one."""

    def __init__(self, path: Path, key: str, full: Limits, on_change: Callable[[Tier, bool], None]) -> None:
        """`full` are the widest limits of the config; `on_change(tier, doubted)` hears of every changed lesson."""
        self._path = path
        self._key = key
        self._full = full
        self._on_change = on_change
        self._lessons = _read(path, key)

    def limits(self, limits: Limits, alone: Tier | None = None) -> Limits:
        """The limits of an output as they hold now, narrowed by `alone` for one try."""
        if alone is not None:
            limits = replace(limits, tiers=(*limits.tiers, alone))
        return apply(limits, self._lessons)

    def learn(self, tier: Tier) -> None:
        """Take a new lesson down."""
        self._change(learn(self._lessons, tier))

    def confirm(self) -> None:
        """A chunk was committed."""
        if self._lessons:
            self._change(confirm(self._lessons, self._full))

    def _change(self, lessons: tuple[Lesson, ...]) -> None:
        before = {lesson.tier for lesson in self._lessons}
        self._lessons = lessons
        changed = [lesson for lesson in lessons if lesson.tier not in before]
        if not changed and len(lessons) == len(before):
            return
        # On a full disk the run has the lesson in mind all the same.
        with contextlib.suppress(OSError, DamagedError):
            _write(self._path, self._key, lessons)
        for lesson in changed:
            self._on_change(lesson.tier, lesson.doubted)


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
