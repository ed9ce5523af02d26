"""Attempts as bands on the time axis, in a bounded number.

Pure: it never reads the journal; `story` does.
"""

from dataclasses import dataclass
from enum import StrEnum

from chunkvisor_worker.contract.exits import Outcome

_LIMIT = 600


class Kind(StrEnum):
    """Outcomes by what they mean to the person; the plot has a colour and a pattern for each."""

    DONE = "done"
    MEMORY = "memory"
    FAULT = "fault"
    TEXT = "text"
    WORLD = "world"
    STOPPED = "stopped"


KIND_OF = {
    Outcome.COMMITTED: Kind.DONE,
    Outcome.GPU_OOM: Kind.MEMORY,
    Outcome.HOST_OOM: Kind.MEMORY,
    Outcome.DEVICE_FAULT: Kind.FAULT,
    Outcome.HARDWARE_FAULT: Kind.FAULT,
    Outcome.CRASHED: Kind.FAULT,
    Outcome.HUNG: Kind.FAULT,
    Outcome.BAD_INPUT: Kind.TEXT,
    Outcome.BAD_OUTPUT: Kind.TEXT,
    Outcome.GPU_BUSY: Kind.WORLD,
    Outcome.SETUP: Kind.WORLD,
    Outcome.DISK_FULL: Kind.WORLD,
    Outcome.HUB: Kind.WORLD,
    Outcome.INTERRUPTED: Kind.STOPPED,
    Outcome.LOST: Kind.STOPPED,
}
WORDS_OF = {
    Kind.DONE: "committed",
    Kind.MEMORY: "out of memory",
    Kind.FAULT: "fault, crash or hang",
    Kind.TEXT: "bad text or vectors",
    Kind.WORLD: "machine, disk or hub",
    Kind.STOPPED: "interrupted",
}


def kind_of(outcome: object) -> Kind:
    """The kind of an outcome by its name; a name that nobody knows is a fault."""
    return next((kind for known, kind in KIND_OF.items() if known == outcome), Kind.FAULT)


@dataclass(slots=True)
class Band:
    """From a worker's `go` to its end; several, where bands have been merged."""

    device: str
    start_s: float
    stop_s: float
    kind: Kind = Kind.STOPPED
    words: str = ""
    attempts: int = 1


def thinned(bands: list[Band], limit: int = _LIMIT) -> list[Band]:
    """At most so many bands, those of failures last; no attempt is lost from the counts.

    Successes that are neighbours on a device are merged. Failures are not, or a few would fill the plot: of too many,
    every second one stands for two.
    """
    done = [band for band in bands if band.kind is Kind.DONE]
    failed = [band for band in bands if band.kind is not Kind.DONE]
    while len(done) > limit // 2:
        merged = _merged(done)
        if len(merged) == len(done):  # a device for each
            done = done[: limit // 2]
            break
        done = merged
    while len(failed) > limit // 2:
        kept = [_together(band, other, band.stop_s) for band, other in zip(failed[::2], failed[1::2], strict=False)]
        failed = kept + failed[2 * len(kept) :]
    return done + failed


def _merged(bands: list[Band]) -> list[Band]:
    """Half as many, in pairs of neighbours on a device."""
    merged: list[Band] = []
    waiting: dict[str, Band] = {}
    for band in bands:
        if (first := waiting.pop(band.device, None)) is None:
            waiting[band.device] = band
        else:
            merged.append(_together(first, band, max(first.stop_s, band.stop_s)))
    return merged + list(waiting.values())


def _together(first: Band, second: Band, stop_s: float) -> Band:
    attempts = first.attempts + second.attempts
    return Band(first.device, first.start_s, stop_s, first.kind, f"{attempts:,} attempts", attempts)
