"""Attempts as spans on the time axis, in a bounded number.

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
class AttemptSpan:
    """From a worker's `go` to its end; several, where spans have been merged."""

    device: str
    start_s: float
    stop_s: float
    kind: Kind = Kind.STOPPED
    words: str = ""
    attempts: int = 1


def thinned(spans: list[AttemptSpan], limit: int = _LIMIT) -> list[AttemptSpan]:
    """At most so many spans, those of failures last; no attempt is lost from the counts.

    Successes that are neighbours on a device are merged. Failures are not, or a few would fill the plot: of too many,
    every second one stands for two.
    """
    done = [span for span in spans if span.kind is Kind.DONE]
    failed = [span for span in spans if span.kind is not Kind.DONE]
    while len(done) > limit // 2:
        merged = _halved(done)
        if len(merged) == len(done):  # a device for each
            done = done[: limit // 2]
            break
        done = merged
    while len(failed) > limit // 2:
        kept = [_one_for(span, other, span.stop_s) for span, other in zip(failed[::2], failed[1::2], strict=False)]
        failed = kept + failed[2 * len(kept) :]
    return done + failed


def _halved(spans: list[AttemptSpan]) -> list[AttemptSpan]:
    """Half as many, in pairs of neighbours on a device."""
    merged: list[AttemptSpan] = []
    waiting: dict[str, AttemptSpan] = {}
    for span in spans:
        if (first := waiting.pop(span.device, None)) is None:
            waiting[span.device] = span
        else:
            merged.append(_one_for(first, span, max(first.stop_s, span.stop_s)))
    return merged + list(waiting.values())


def _one_for(first: AttemptSpan, second: AttemptSpan, stop_s: float) -> AttemptSpan:
    attempts = first.attempts + second.attempts
    return AttemptSpan(first.device, first.start_s, stop_s, first.kind, f"{attempts:,} attempts", attempts)
