"""Batch limits that workers had, as the report's chart shows them."""

from typing import NamedTuple

from chunkvisor.events import attempt as of_attempt
from chunkvisor_worker.contract.messages import Tier


class Ceiling(NamedTuple):
    """Batch limits, as a `go` tells them."""

    texts: int
    """In a batch of short texts."""
    tokens: int | None
    texts_long: int
    """In a batch of the longest texts, for which lessons were learnt."""
    tokens_long: int | None


def ceiling_of(event: of_attempt.Go) -> Ceiling:
    """The limits of a `go`: its own, and those of the narrowest of its tiers."""
    general: list[of_attempt.Go | Tier] = [event, *(tier for tier in event.tiers if not tier.min_length)]
    known: list[of_attempt.Go | Tier] = [event, *event.tiers]
    return Ceiling(
        min((limits.rows for limits in general if limits.rows), default=1),
        min((limits.tokens for limits in general if limits.tokens), default=None),
        min((limits.rows for limits in known if limits.rows), default=1),
        min((limits.tokens for limits in known if limits.tokens), default=None),
    )
