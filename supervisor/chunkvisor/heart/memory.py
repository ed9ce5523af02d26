"""All that a run remembers of attempts: what repeats, what is waited for, and which batches did not fit. Pure."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from chunkvisor.heart.work import DevicePlace
from chunkvisor.judge import Verdict
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Limits
from chunkvisor_worker.contract.rule import LOAD

STARTS = frozenset(
    {
        *(Outcome.SETUP, Outcome.DEVICE_FAULT, Outcome.GPU_OOM, Outcome.HOST_OOM, Outcome.HUNG),
        *(Outcome.CRASHED, Outcome.BAD_OUTPUT, Outcome.BAD_INPUT),
    }
)
"""What, before the first batch, is a start that failed: no text can be the cause."""

Where = int | str | None
"""A device, a machine, or (None) all of them."""


class Lesson(NamedTuple):
    """What fits in a batch, at most."""

    rows: int
    tokens: int | None
    """Padded; None where tokens are not known."""


class Memory:
    """Of one run; the lessons are those of earlier runs, too."""

    def __init__(self, recall: Callable[[str], tuple[int, int | None] | None]) -> None:
        """Begin with what earlier runs have learnt of each kind of device."""
        self._recall = recall
        self._lessons: dict[str, Lesson | None] = {}
        self._counts: Counter[tuple[str, Where]] = Counter()
        self._first_s: dict[tuple[str, Where], float] = {}
        self._last_s: dict[tuple[str, Where], float] = {}
        self._waits: dict[tuple[Outcome, Where], float] = {}
        """Since when each cause is waited for."""
        self.success_s = -math.inf
        """When something was stored last."""
        self.worked: set[int] = set()
        """Outputs of which this run has stored vectors."""
        self.sound: set[Where] = set()
        """Devices and machines on which a worker has done all it was to do."""
        self.fits: set[tuple[int, int]] = set()
        """(output, chunk) of which this run has any vector."""
        self.host_ooms = 0

    # --- what repeats: (what, where) -> how often in a row

    def count(self, what: str, where: Where = None) -> int:
        """Say how often it happened in a row."""
        return self._counts[what, where]

    def lasts_s(self, what: str, where: Where, now_s: float) -> float:
        """Say how long ago it happened for the first time in this row."""
        return now_s - self._first_s.get((what, where), now_s)

    def note(self, what: str, where: Where = None, began_s: float = math.inf, now_s: float = 0.0) -> None:
        """Count it once more, unless the attempt was on its way already when it happened last: that tells no more."""
        if self.confirms(what, where, began_s):
            self._counts[what, where] += 1
            self._first_s.setdefault((what, where), now_s)
            self._last_s[what, where] = now_s

    def confirms(self, what: str, where: Where, began_s: float) -> bool:
        """Say whether an attempt that began then tells anything new."""
        return began_s >= self._last_s.get((what, where), -math.inf)

    def forget(self, what: str, where: Where = None) -> None:
        """Begin to count anew: it did not happen the next time."""
        self._counts.pop((what, where), None)
        self._first_s.pop((what, where), None)
        self._last_s.pop((what, where), None)

    # --- what is waited for

    def waited_s(self, outcome: Outcome, where: Where, now_s: float) -> tuple[float, float]:
        """Say how long the spell lasts while nothing has succeeded anywhere, and in all."""
        since_s = self._waits.get((outcome, where), now_s)
        return now_s - max(since_s, self.success_s), now_s - since_s

    def wait(self, outcome: Outcome, where: Where, now_s: float) -> None:
        """Begin a spell, or go on with it."""
        self._waits.setdefault((outcome, where), now_s)

    # --- what succeeds

    def started(self, place: DevicePlace, outcome: Outcome) -> None:
        """Note that a worker got to its first batch there; `outcome` is how it ended."""
        self.forget("start", place.device)
        self.forget("start", place.node)
        # What is waited for may show in a batch as well: that is the same wait, not a way through it.
        if outcome is not Outcome.GPU_BUSY:
            self._waits.pop((Outcome.GPU_BUSY, place.device), None)

    def encoded(self, place: DevicePlace) -> None:
        """Note that a worker did its work there."""
        self.started(place, Outcome.COMMITTED)
        self.forget("canary", place.device)
        self.sound |= {place.device, place.node}
        self._free(place.device)

    def stored(self, output: int, now_s: float) -> None:
        """Note that something is done for good."""
        self.success_s = now_s
        self.worked.add(output)
        self.forget("given up")
        self.forget("fruitless")
        self._free(None)

    def _free(self, where: Where) -> None:
        self._waits = {cause: since_s for cause, since_s in self._waits.items() if cause[1] != where}

    # --- what did not fit

    def learn(self, kind: str, lesson: Lesson) -> Lesson | None:
        """Have batches on devices of this kind be no larger; None where they were not anyway."""
        old = self._of(kind)
        new = lesson if old is None else Lesson(min(old.rows, lesson.rows), _least(old.tokens, lesson.tokens))
        self._lessons[kind] = new
        return new if new != old else None

    def limits(self, limits: Limits, kind: str) -> Limits:
        """Narrow those of the config to what has been seen to fit."""
        lesson = self._of(kind)
        if lesson is None:
            return limits
        return replace(limits, rows=min(limits.rows, lesson.rows), tokens=_least(limits.tokens, lesson.tokens))

    def _of(self, kind: str) -> Lesson | None:
        if kind not in self._lessons:
            old = self._recall(kind)
            # One step wider than an earlier run had to go: its cause may have passed. That costs one failure at most.
            self._lessons[kind] = old and Lesson(2 * old[0], old[1] and 2 * old[1])
        return self._lessons[kind]


def cause_of(verdict: Verdict, place: DevicePlace | None) -> Where:
    """Say who waits: a device for its own memory, one of a cluster for its machine's disk, or all for the world."""
    own = verdict.outcome in (Outcome.GPU_BUSY, Outcome.GPU_OOM)
    own = own or (verdict.outcome is Outcome.DISK_FULL and place is not None and bool(place.node))
    return place.device if own and place is not None else None


def start_of(verdict: Verdict, place: DevicePlace) -> Where:
    """Say whose a failed start is: what fails while the model is loaded is the machine's, with its installation."""
    of_model = verdict.phase in LOAD and verdict.outcome in (Outcome.CRASHED, Outcome.BAD_OUTPUT, Outcome.SETUP)
    return place.node if of_model else place.device


def _least(one: int | None, other: int | None) -> int | None:
    return min(one, other) if one is not None and other is not None else one if other is None else other
