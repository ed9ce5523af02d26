"""All that a run remembers of attempts: what repeats, what is waited for, and which batches did not fit. Pure."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from chunkvisor.heart.work import DevicePlace
from chunkvisor.judge import Verdict
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Limits
from chunkvisor_worker.contract.rules import LOAD

Where = int | str | tuple[int, int] | None
"""A device, a machine, a chunk of an output, or (None) the run."""

_WAITS = (Outcome.GPU_BUSY, Outcome.GPU_OOM, Outcome.HUB, Outcome.DISK_FULL)


class Lesson(NamedTuple):
    """What fits in a batch, at most."""

    rows: int
    tokens: int | None  # padded; None = not known


@dataclass(slots=True)
class _Streak:
    """How often in a row something happened, the first time and the last."""

    count: int
    first_s: float
    last_s: float


class Memory:
    """Of one run; the lessons are those of earlier runs, too."""

    def __init__(self, recall: Callable[[str], tuple[int, int | None] | None]) -> None:
        """Begin with what earlier runs have learnt of each kind of device."""
        self._recall = recall
        self._lessons: dict[str, Lesson | None] = {}
        self._streaks: dict[tuple[str, Where], _Streak] = {}
        self.success_s = -math.inf  # when something was stored last
        self.worked: set[int] = set()  # outputs of which this run has stored vectors
        self.sound: set[Where] = set()  # devices and machines on which a worker has done all it was to do
        self.given_up: set[tuple[int, int]] = set()  # chunks, since something was stored
        self.host_ooms = 0

    # --- what repeats

    def count(self, what: str, where: Where = None, began_s: float = math.inf) -> int:
        """Say how often it happened in a row before an attempt that began then."""
        streak = self._streaks.get((what, where))
        # An attempt that was on its way already when it happened last tells nothing more.
        return streak.count - (began_s < streak.last_s) if streak else 0

    def lasts_s(self, what: str, where: Where, now_s: float) -> float:
        """Say how long ago it happened for the first time in this row."""
        streak = self._streaks.get((what, where))
        return now_s - streak.first_s if streak else 0.0

    def note(self, what: str, where: Where = None, began_s: float = math.inf, now_s: float = 0.0) -> None:
        """Count it once more, unless the attempt was on its way already when it happened last."""
        streak = self._streaks.setdefault((what, where), _Streak(0, now_s, -math.inf))
        if began_s >= streak.last_s:
            streak.count, streak.last_s = streak.count + 1, now_s

    def forget(self, what: str, where: Where = None) -> None:
        """Begin to count anew: it did not happen the next time."""
        self._streaks.pop((what, where), None)

    def waited_s(self, outcome: Outcome, where: Where, now_s: float) -> tuple[float, float]:
        """Say how long it is waited for while nothing has succeeded anywhere, and in all."""
        spell_s = self.lasts_s(outcome, where, now_s)
        return min(spell_s, now_s - self.success_s), spell_s

    # --- what succeeds

    def started(self, place: DevicePlace, outcome: Outcome) -> None:
        """Note that a worker got to its first batch there; `outcome` is how it ended."""
        self.forget("start", place.device)
        self.forget("start", place.node)
        # What is waited for may show in a batch as well: that is the same wait, not a way through it.
        if outcome is not Outcome.GPU_BUSY:
            self.forget(Outcome.GPU_BUSY, place.device)

    def encoded(self, place: DevicePlace) -> None:
        """Note that a worker did its work there."""
        self.started(place, Outcome.COMMITTED)
        self.sound |= {place.device, place.node}
        for what in ("canary", *_WAITS):
            self.forget(what, place.device)

    def stored(self, output: int, now_s: float) -> None:
        """Note that something is done for good."""
        self.success_s = now_s
        self.worked.add(output)
        self.given_up.clear()
        for what in ("fruitless", *_WAITS):
            self.forget(what)

    # --- what did not fit

    def learn(self, kind: str, lesson: Lesson) -> Lesson | None:
        """Have batches on devices of this kind be no larger; None if they were not anyway."""
        old = self._of(kind)
        new = lesson if old is None else Lesson(min(old.rows, lesson.rows), least(old.tokens, lesson.tokens))
        self._lessons[kind] = new
        return new if new != old else None

    def limits(self, limits: Limits, kind: str) -> Limits:
        """Narrow those of the config to what has been seen to fit."""
        lesson = self._of(kind)
        if lesson is None:
            return limits
        return replace(limits, rows=min(limits.rows, lesson.rows), tokens=least(limits.tokens, lesson.tokens))

    def _of(self, kind: str) -> Lesson | None:
        if kind not in self._lessons:
            old = self._recall(kind)
            # One step wider than an earlier run had to go: its cause may have passed. That costs one failure at most.
            self._lessons[kind] = old and Lesson(2 * old[0], old[1] and 2 * old[1])
        return self._lessons[kind]


def cause_of(verdict: Verdict, place: DevicePlace | None) -> int | None:
    """Say who waits: a device for its own memory, one of a cluster for its machine's disk, or (None) all."""
    own = verdict.outcome in (Outcome.GPU_BUSY, Outcome.GPU_OOM)
    own = own or (verdict.outcome is Outcome.DISK_FULL and place is not None and bool(place.node))
    return place.device if own and place is not None else None


def start_of(verdict: Verdict, place: DevicePlace) -> Where:
    """Say whose a failed start is: what fails while the model is loaded is the machine's, with its installation."""
    of_model = verdict.phase in LOAD and verdict.outcome in (Outcome.CRASHED, Outcome.BAD_OUTPUT, Outcome.SETUP)
    return place.node if of_model else place.device


def least(one: int | None, other: int | None) -> int | None:
    """Give the smaller of two limits, where None is none."""
    return min((each for each in (one, other) if each is not None), default=None)
