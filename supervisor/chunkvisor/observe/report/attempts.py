"""Attempts as spans on the time axis, from their `go` to their verdict, in bounded number."""

from collections.abc import Container, Hashable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from chunkvisor.events.progress import AttemptKey
from chunkvisor_worker.contract.exits import Outcome

_DRAWN, _HELD = 600, 2000
"""Spans in the end, and while a journal is read."""
_AWAITED = 400
"""Attempts that are under way, or whose verdict may still come."""

_Key = TypeVar("_Key", bound=Hashable)


class Kind(StrEnum):
    """Outcomes by what they mean to the person; the plot has a colour for each."""

    DONE = "done"
    MEMORY = "memory"
    FAULT = "fault"
    TEXT = "text"
    WORLD = "world"
    STOPPED = "stopped"


_KINDS = {
    Kind.DONE: ("committed", (Outcome.COMMITTED,)),
    Kind.MEMORY: ("out of memory", (Outcome.GPU_OOM, Outcome.HOST_OOM)),
    Kind.FAULT: (
        "fault, crash or hang",
        (Outcome.DEVICE_FAULT, Outcome.HARDWARE_FAULT, Outcome.CRASHED, Outcome.HUNG),
    ),
    Kind.TEXT: ("bad text or vectors", (Outcome.BAD_INPUT, Outcome.BAD_OUTPUT)),
    Kind.WORLD: ("machine, disk or hub", (Outcome.GPU_BUSY, Outcome.SETUP, Outcome.DISK_FULL, Outcome.HUB)),
    Kind.STOPPED: ("interrupted", (Outcome.INTERRUPTED, Outcome.LOST)),
}


def kind_of(outcome: str) -> Kind:
    """The kind of an outcome by its name; a name that nobody knows is a fault."""
    return next((kind for kind, (_, outcomes) in _KINDS.items() if outcome in outcomes), Kind.FAULT)


def legend_of(kinds: Container[Kind], css: str) -> list[tuple[str, str]]:
    """(class, words) of those kinds, for a legend."""
    return [(f"{css} k-{kind}", words) for kind, (words, _) in _KINDS.items() if kind in kinds]


@dataclass(slots=True)
class AttemptSpan:
    """From a worker's `go` to its end; several, where spans have been merged."""

    device: str
    start_s: float
    stop_s: float
    kind: Kind = Kind.STOPPED
    words: str = ""
    attempts: int = 1


class Attempts:
    """Those of a workdir."""

    def __init__(self) -> None:
        self._spans: list[AttemptSpan] = []
        self._device_of: dict[AttemptKey, str] = {}
        self._open: dict[AttemptKey, AttemptSpan] = {}
        self._ended: dict[AttemptKey, AttemptSpan] = {}
        self._last_of: dict[tuple[str, int], AttemptSpan] = {}

    def spans(self) -> list[AttemptSpan]:
        """The ended attempts, in the order of their ends."""
        return thinned(self._spans, _DRAWN)

    def started(self, attempt: AttemptKey, device: str) -> None:
        """A worker was started."""
        remember(self._device_of, attempt, device, _AWAITED)

    def go(self, attempt: AttemptKey, at_s: float, run: int = 1) -> None:
        """It was let onto its device, in that run: after an interruption the next one begins with the same number."""
        words = f"{attempt.output} chunk {attempt.chunk}, attempt {attempt.attempt}{f' in run {run}' * (run > 1)}"
        span = AttemptSpan(self._device_of.get(attempt, ""), at_s, at_s, words=words)
        remember(self._open, attempt, span, _AWAITED)

    def ended(self, attempt: AttemptKey, at_s: float, had_s: float, *, well: bool) -> None:
        """Its worker has ended, after it had the device for `had_s`; one that never had it leaves no span."""
        self._device_of.pop(attempt, None)
        if (span := self._open.pop(attempt, None)) is not None:
            span.kind = Kind.DONE if well else Kind.STOPPED
            self._add(attempt, span, min(at_s, span.start_s + had_s) if had_s > 0 else at_s)

    def judged(self, attempt: AttemptKey, outcome: str) -> None:
        """It has failed; the verdict may come in a later run."""
        if (span := self._ended.get(attempt)) is not None:
            span.kind = kind_of(outcome)
            span.words = f"{span.words}: {outcome}"

    def last_of(self, output: str, chunk: int) -> AttemptSpan | None:
        """The attempt at the chunk that ended last."""
        return self._last_of.get((output, chunk))

    def cut_off(self, at_s: float) -> None:
        """The run is over: what is still open was stopped with it, and the next run judges it."""
        for attempt, span in self._open.items():
            self._add(attempt, span, at_s)
        self._open.clear()
        self._device_of.clear()

    def _add(self, attempt: AttemptKey, span: AttemptSpan, stop_s: float) -> None:
        span.stop_s = max(span.start_s, stop_s)
        remember(self._ended, attempt, span, _AWAITED)
        remember(self._last_of, (attempt.output, attempt.chunk), span, _AWAITED)
        self._spans.append(span)
        if len(self._spans) > _HELD:
            self._spans = thinned(self._spans, _DRAWN)


_Value = TypeVar("_Value")


def remember(known: dict[_Key, _Value], key: _Key, value: _Value, most: int) -> None:
    """Put it last; the oldest goes where there are more than `most`."""
    known.pop(key, None)
    known[key] = value
    if len(known) > most:
        known.pop(next(iter(known)))


def thinned(spans: list[AttemptSpan], limit: int) -> list[AttemptSpan]:
    """At most `limit` spans, those of failures last; no attempt is lost from the counts.

    Successes that are neighbours on a device are merged. Failures are not, or a few would fill the plot: of too many,
    every second one stands for two.
    """
    done = [span for span in spans if span.kind is Kind.DONE]
    failed = [span for span in spans if span.kind is not Kind.DONE]
    while len(done) > limit // 2 and len(merged := list(_merged(done))) < len(done):
        done = merged
    while len(failed) > limit // 2:
        pairs = zip(failed[::2], failed[1::2], strict=False)
        failed = [*(_one_for(span, other, span.stop_s) for span, other in pairs), *failed[len(failed) & ~1 :]]
    return done[: limit // 2] + failed


def _merged(spans: Iterable[AttemptSpan]) -> Iterator[AttemptSpan]:
    """Half as many, in pairs of neighbours on a device."""
    waiting: dict[str, AttemptSpan] = {}
    for span in spans:
        if (first := waiting.pop(span.device, None)) is None:
            waiting[span.device] = span
        else:
            yield _one_for(first, span, max(first.stop_s, span.stop_s))
    yield from waiting.values()


def _one_for(first: AttemptSpan, second: AttemptSpan, stop_s: float) -> AttemptSpan:
    attempts = first.attempts + second.attempts
    return AttemptSpan(first.device, first.start_s, stop_s, first.kind, f"{attempts:,} attempts", attempts)
