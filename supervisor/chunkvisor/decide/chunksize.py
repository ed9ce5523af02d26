"""Proposes how many texts a chunk should have, from what workers were measured to do.

Pure: the caller hands in the journal's events.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from chunkvisor.events.attempt import WorkerEnded
from chunkvisor.events.journal import Entry
from chunkvisor.events.run import RunStarted

TARGET_S = 40.0
"""A chunk takes a worker about so long: a fault costs little, and a worker's start little of it."""

LEAST_TEXTS, MOST_TEXTS = 100, 50_000

_LEADING = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
"""Round sizes begin with these: neighbours are at most 1.5 apart, so that the nearest keeps within 30 to 60 s."""

_UNMEASURED = {"cpu": 500, "cuda": 3000}
"""By device: 12 texts/s, as of 0.1 billion parameters on a few cores; 70, as of 1.5 billion on a GPU."""


@dataclass(frozen=True, slots=True)
class ChunkSize:
    """A size, and why it is that."""

    texts: int
    reason: str


def propose(texts_per_s: float | None, device_kind: str) -> ChunkSize:
    """A round size for a worker of that rate; None = nothing was measured, then one that suits many such devices."""
    if texts_per_s is None:
        return ChunkSize(_UNMEASURED[device_kind], f"usual for {device_kind}; no rate of this model is known here yet")
    wanted = texts_per_s * TARGET_S
    steps = (round(leading * 10**power) for power in range(1, 6) for leading in _LEADING)
    sizes = [size for size in steps if LEAST_TEXTS <= size <= MOST_TEXTS]
    texts = min(sizes, key=lambda size: max(size, wanted) / min(size, wanted))
    rate = f"{texts_per_s:,.0f}" if texts_per_s >= 10 else f"{texts_per_s:.2g}"
    return ChunkSize(texts, f"at {rate} texts/s, {max(1, round(texts / texts_per_s)):,} s a chunk")


def worker_rate(entries: Iterable[Entry], model: str, device_kind: str, output: str) -> float | None:
    """Texts a second of one worker, from its `go` to its end.

    Measured by the last run of that model on that kind of device that had anything to measure; on texts of the output
    if there were any, else on those of all. None where no such run is told of.
    """
    ours, fresh = False, False
    sums: dict[str, tuple[int, float]] = {}
    for _, _, event in entries:
        if isinstance(event, RunStarted):
            kind = "cpu" if event.device == "cpu" else "cuda"
            ours, fresh = event.model == model and kind == device_kind, True
        elif ours and isinstance(event, WorkerEnded) and event.returncode == 0 and event.texts > 0 and event.busy_s > 0:
            if fresh:
                sums, fresh = {}, False
            texts, busy_s = sums.get(event.output, (0, 0.0))
            sums[event.output] = (texts + event.texts, busy_s + event.busy_s)
    counted = [sums[output]] if output in sums else list(sums.values())
    return sum(texts for texts, _ in counted) / sum(busy_s for _, busy_s in counted) if counted else None
