"""Follows attempts from their `go` to their verdict, and keeps them as spans.

It never holds more than a bounded number of them, open or ended.
"""

from dataclasses import dataclass, field
from typing import Any

from chunkvisor.events.progress import AttemptKey
from chunkvisor.observe.report.attemptspans import AttemptSpan, Kind, thinned

_SPANS = 2000
_AWAITED = 200
"""Ended attempts whose verdict may still come, and those that are under way."""


@dataclass(slots=True)
class AttemptTracker:
    """All attempts of a workdir."""

    _spans: list[AttemptSpan] = field(default_factory=list)
    _device_of: dict[AttemptKey, str] = field(default_factory=dict)
    """Of the attempts that have not ended."""
    _open: dict[AttemptKey, AttemptSpan] = field(default_factory=dict)
    _ended: dict[AttemptKey, AttemptSpan] = field(default_factory=dict)
    _last_of: dict[tuple[str, int], AttemptSpan] = field(default_factory=dict)

    def spans(self) -> list[AttemptSpan]:
        """The ended attempts, in the order of their ends."""
        return thinned(self._spans)

    def started(self, attempt: AttemptKey, device: str) -> None:
        """A worker was started."""
        _keep(self._device_of, attempt, device)

    def go(self, attempt: AttemptKey, at_s: float) -> None:
        """It was let onto its device."""
        words = f"{attempt.output} chunk {attempt.chunk}, attempt {attempt.attempt}"
        _keep(self._open, attempt, AttemptSpan(self._device_of.get(attempt, ""), at_s, at_s, words=words))

    def ended(self, attempt: AttemptKey, at_s: float, had_s: float, well: bool) -> None:
        """Its worker has ended, after it had the device for so long; one that never had it leaves no span."""
        self._device_of.pop(attempt, None)
        if (span := self._open.pop(attempt, None)) is not None:
            freed_s = span.start_s + had_s if had_s > 0 else at_s
            span.stop_s = max(span.start_s, min(at_s, freed_s))
            span.kind = Kind.DONE if well else Kind.STOPPED
            self._add(attempt, span)

    def judged(self, attempt: AttemptKey, kind: Kind, outcome: str) -> None:
        """It has failed; the verdict may come in a later run."""
        if (span := self._ended.get(attempt)) is not None:
            span.kind = kind
            span.words = f"{span.words}: {outcome}"

    def last_of(self, chunk: tuple[str, int]) -> AttemptSpan | None:
        """The attempt at the chunk that ended last."""
        return self._last_of.get(chunk)

    def cut_off(self, at_s: float) -> None:
        """The run is over: what is still open was stopped with it, and the next run judges it."""
        for attempt, span in self._open.items():
            span.stop_s = max(span.start_s, at_s)
            self._add(attempt, span)
        self._open.clear()
        self._device_of.clear()

    def _add(self, attempt: AttemptKey, span: AttemptSpan) -> None:
        _keep(self._ended, attempt, span)
        _keep(self._last_of, attempt[:2], span)
        self._spans.append(span)
        if len(self._spans) > _SPANS:
            self._spans = thinned(self._spans)


def _keep(known: dict[Any, Any], key: object, value: object) -> None:
    """Put it last; the oldest go where there are too many."""
    known.pop(key, None)
    known[key] = value
    if len(known) > _AWAITED:
        known.pop(next(iter(known)))
