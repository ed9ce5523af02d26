"""The lessons of a workdir about batches, on disk: what one run paid for, no later one pays for again.

It never decides what is learnt: `lessons` does. Lessons hold for one model on one kind of device: of a machine with
GPUs of several kinds each kind has its own.
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
    """Lessons for the model and the devices of a run; a damaged book is an empty one.

    A `device` is a kind of device, as `Device.model` names it.
    """

    def __init__(self, path: Path, key: str, full: Limits, on_change: Callable[[Tier, bool, str], None]) -> None:
        """`key` names the model, and `full` are the widest limits of the config.

        `on_change(tier, doubted, device)` hears of every changed lesson.
        """
        self._path = path
        self._key = key
        self._full = full
        self._on_change = on_change
        self._lessons: dict[str, tuple[Lesson, ...]] = {}

    def limits(self, limits: Limits, alone: Tier | None = None, device: str = "") -> Limits:
        """The limits of an output as they hold now on the device, narrowed by `alone` for one try."""
        if alone is not None:
            limits = replace(limits, tiers=(*limits.tiers, alone))
        return apply(limits, self._of(device))

    def learn(self, tier: Tier, device: str = "") -> None:
        """Take a new lesson down."""
        self._change(device, learn(self._of(device), tier))

    def confirm(self, device: str = "") -> None:
        """A chunk was committed on the device."""
        if lessons := self._of(device):
            self._change(device, confirm(lessons, self._full))

    def _of(self, device: str) -> tuple[Lesson, ...]:
        if device not in self._lessons:
            self._lessons[device] = _read(self._path, self._key_of(device))
        return self._lessons[device]

    def _key_of(self, device: str) -> str:
        return f"{device}|{self._key}" if device else self._key

    def _change(self, device: str, lessons: tuple[Lesson, ...]) -> None:
        before = {lesson.tier for lesson in self._of(device)}
        self._lessons[device] = lessons
        changed = [lesson for lesson in lessons if lesson.tier not in before]
        if not changed and len(lessons) == len(before):
            return
        # On a full disk the run has the lesson in mind all the same.
        with contextlib.suppress(OSError, DamagedError):
            _write(self._path, self._key_of(device), lessons)
        for lesson in changed:
            self._on_change(lesson.tier, lesson.doubted, device)


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
