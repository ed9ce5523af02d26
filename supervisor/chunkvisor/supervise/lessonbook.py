"""What the run knows of batches that did not fit, by kind of device.

Pure: `decide.lessons` has what a fault teaches; the driver keeps it on disk for later runs.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from chunkvisor.decide.lessons import Lesson, apply, confirm, learn
from chunkvisor.supervise.instructions import SaveLessons
from chunkvisor.supervise.progress import Progress
from chunkvisor_worker.contract.messages import Limits, Tier


class Recall(Protocol):
    """The lessons of earlier runs, by kind of device."""

    def get(self, kind: str, default: tuple[Lesson, ...], /) -> tuple[Lesson, ...]:
        """Those of the kind."""


class LessonBook:
    """The lessons that hold now."""

    def __init__(self, recall: Recall, outputs: Sequence[Progress]) -> None:
        self._recall = recall
        self._lessons: dict[str, tuple[Lesson, ...]] = {}
        rows = max((output.limits.rows for output in outputs), default=1)
        tokens = max((output.limits.tokens or 0 for output in outputs), default=0)
        self._full = Limits(rows, tokens or None)
        """The widest limits of the config."""

    def limits(self, limits: Limits, kind: str, alone: Tier | None = None) -> Limits:
        """The limits of an output on such a device, narrowed by `alone` for one try."""
        if alone is not None:
            limits = replace(limits, tiers=(*limits.tiers, alone))
        lessons = self._of(kind)
        return apply(limits, lessons or ()) if lessons or limits.tiers else limits

    def learn(self, kind: str, tier: Tier) -> SaveLessons | None:
        """Take a lesson down; None where a narrower one holds already: a slower worker has paid for an old limit."""
        lessons = self._of(kind)
        for each in lessons:
            if each.tier.min_length == tier.min_length and _covers(each.tier, tier):
                return None
        return self._change(kind, learn(lessons, tier))

    def confirm(self, kind: str) -> SaveLessons | None:
        """A chunk was committed; something to save where that widens a limit or forgets one."""
        lessons = self._of(kind)
        return self._change(kind, confirm(lessons, self._full)) if lessons else None

    def _of(self, kind: str) -> tuple[Lesson, ...]:
        if kind not in self._lessons:
            self._lessons[kind] = self._recall.get(kind, ())
        return self._lessons[kind]

    def _change(self, kind: str, lessons: tuple[Lesson, ...]) -> SaveLessons | None:
        before = self._of(kind)
        self._lessons[kind] = lessons
        known = {lesson.tier for lesson in before}
        changed = next((lesson for lesson in lessons if lesson.tier not in known), None)
        if changed is None and len(lessons) == len(before):
            return None
        if changed is None:
            return SaveLessons(kind, lessons)
        return SaveLessons(kind, lessons, changed.tier, changed.doubted)


def _covers(narrow: Tier, wide: Tier) -> bool:
    return narrow.rows <= wide.rows and (narrow.tokens or 0) <= (wide.tokens or narrow.tokens or 0)
