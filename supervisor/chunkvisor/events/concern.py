"""Decides whether the person should worry about a run, and says so in one sentence.

Pure: it never looks at a run, only at what its events have told.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chunkvisor.events.snapshot import Concern, WorkerState
from chunkvisor.events.words import Weight, plain
from chunkvisor.units import human_time

_SILENCE_S = 60.0
"""No batch of a sensible model takes as long."""


@dataclass(slots=True)
class Troubles:
    """What has gone wrong in this run so far."""

    failed: int = 0
    """Attempts."""
    quarantined: int = 0
    """Texts."""
    set_aside: int = 0
    """Chunks."""
    dropped: int = 0
    """Devices."""
    waits_until_s: float = 0.0
    waits_for: str = ""
    """Empty again once the run has got on: between two waits for the same thing it has not."""

    def feed(self, event: str, details: Mapping[str, Any], t: float) -> None:
        """Take in an event."""
        match event:
            case "attempt_failed" | "part_failed":
                self.failed += 1
            case "quarantined":
                self.quarantined += 1
            case "chunk_set_aside":
                self.set_aside += 1
            case "device_dropped":
                self.dropped += 1
            case "waiting":
                self.waits_until_s, self.waits_for = t + float(details["delay_s"]), plain(str(details["reason"]))
            case "checking_model" | "staging" | "output_opened" | "go" | "assembling":
                self.waits_for = ""


def concern_of(troubles: Troubles, workers: Sequence[WorkerState], now_s: float, *, live: bool) -> Concern:
    """The gravest matter of the moment."""
    if live and troubles.waits_for:
        left_s = troubles.waits_until_s - now_s
        doing = f"waiting for {human_time(left_s)}, then it goes on by itself" if left_s > 0 else "trying again"
        return Concern(Weight.CARE, f"{doing}: {troubles.waits_for}")
    silent = max((worker for worker in workers if live), key=lambda worker: worker.silent_s, default=None)
    if silent is not None and silent.silent_s > _SILENCE_S:
        for_long = human_time(silent.silent_s)
        return Concern(
            Weight.CARE,
            f"no progress in chunk {silent.chunk} for {for_long}; if that lasts, it is tried anew by itself",
        )
    lost = []
    if troubles.quarantined:
        none = f"{_count(troubles.quarantined, 'text')} could not be encoded"
        lost.append(f"{none} and {'will be NaN' if live else 'got no vector'}")
    if troubles.set_aside:
        lost.append(f"{_count(troubles.set_aside, 'chunk')} given up for now, running again tries them anew")
    if troubles.dropped:
        lost.append(f"{_count(troubles.dropped, 'device')} left out")
    if lost:
        return Concern(Weight.LOSS, "; ".join(lost))
    if troubles.failed:
        several = troubles.failed > 1
        tried = ("are" if several else "is") if live else ("were" if several else "was")
        return Concern(
            Weight.CARE, f"{_count(troubles.failed, 'attempt')} failed and {tried} tried again; nothing is lost"
        )
    return Concern(Weight.NEWS, "all is well" if live else "without a fault")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
