"""Follows attempts from their `go` to their verdict, and keeps them as bands.

It never holds more than a bounded number of them, open or ended.
"""

from dataclasses import dataclass, field
from typing import Any

from chunkvisor.observe.report.bands import Band, Kind, thinned
from chunkvisor.observe.report.fields import integer, text

_BANDS = 2000
_AWAITED = 200
"""Ended attempts whose verdict may still come, and those that are under way."""

Attempt = tuple[str, int, int]
"""Output, chunk, attempt."""


def attempt_of(event: dict[str, Any]) -> Attempt:
    """The attempt that an event is about."""
    return text(event.get("output"), 100), integer(event.get("chunk")), integer(event.get("attempt"))


@dataclass(slots=True)
class Lanes:
    """All attempts of a workdir."""

    _bands: list[Band] = field(default_factory=list)
    _device_of: dict[Attempt, str] = field(default_factory=dict)
    """Of the attempts that have not ended."""
    _open: dict[Attempt, Band] = field(default_factory=dict)
    _ended: dict[Attempt, Band] = field(default_factory=dict)
    _last_of: dict[tuple[str, int], Band] = field(default_factory=dict)

    def bands(self) -> list[Band]:
        """The ended attempts, in the order of their ends."""
        return thinned(self._bands)

    def started(self, attempt: Attempt, device: str) -> None:
        """A worker was started."""
        _keep(self._device_of, attempt, device)

    def go(self, attempt: Attempt, at_s: float) -> None:
        """It was let onto its device."""
        words = f"{attempt[0]} chunk {attempt[1]}, attempt {attempt[2]}"
        _keep(self._open, attempt, Band(self._device_of.get(attempt, ""), at_s, at_s, words=words))

    def ended(self, attempt: Attempt, at_s: float, had_s: float, well: bool) -> None:
        """Its worker has ended, after it had the device for so long; one that never had it leaves no band."""
        self._device_of.pop(attempt, None)
        if (band := self._open.pop(attempt, None)) is not None:
            freed_s = band.start_s + had_s if had_s > 0 else at_s
            band.stop_s = max(band.start_s, min(at_s, freed_s))
            band.kind = Kind.DONE if well else Kind.STOPPED
            self._add(attempt, band)

    def judged(self, attempt: Attempt, kind: Kind, outcome: str) -> None:
        """It has failed; the verdict may come in a later run."""
        if (band := self._ended.get(attempt)) is not None:
            band.kind = kind
            band.words = f"{band.words}: {outcome}"

    def last_of(self, chunk: tuple[str, int]) -> Band | None:
        """The attempt at the chunk that ended last."""
        return self._last_of.get(chunk)

    def cut_off(self, at_s: float) -> None:
        """The run is over: what is still open was stopped with it, and the next run judges it."""
        for attempt, band in self._open.items():
            band.stop_s = max(band.start_s, at_s)
            self._add(attempt, band)
        self._open.clear()
        self._device_of.clear()

    def _add(self, attempt: Attempt, band: Band) -> None:
        _keep(self._ended, attempt, band)
        _keep(self._last_of, attempt[:2], band)
        self._bands.append(band)
        if len(self._bands) > _BANDS:
            self._bands = thinned(self._bands)


def _keep(known: dict[Any, Any], key: object, value: object) -> None:
    """Put it last; the oldest go where there are too many."""
    known.pop(key, None)
    known[key] = value
    if len(known) > _AWAITED:
        known.pop(next(iter(known)))
