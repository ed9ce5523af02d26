"""The batch limits over time, as a report draws them.

Pure: made of the limits that each `go` tells.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from chunkvisor.events.attempt import Go
from chunkvisor_worker.contract.messages import Tier


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The batch limits from one time on."""

    at_s: float
    texts: int
    """In a batch of short texts."""
    tokens: int | None
    texts_long: int
    """In a batch of the longest texts, for which lessons were learnt."""
    tokens_long: int | None


def ceiling_of(event: Go, at_s: float) -> Ceiling:
    """The limits of a `go`: its own, and those of the narrowest of its tiers."""
    general: list[Go | Tier] = [event, *(tier for tier in event.tiers if not tier.min_length)]
    known: list[Go | Tier] = [event, *event.tiers]
    return Ceiling(
        at_s,
        texts=_least(limits.rows for limits in general) or 1,
        tokens=_least(limits.tokens for limits in general),
        texts_long=_least(limits.rows for limits in known) or 1,
        tokens_long=_least(limits.tokens for limits in known),
    )


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value), default=None)
