"""What out-of-memory faults teach about batches, by length of the texts.

Pure. A lesson holds for batches of texts at least as long as those that did not
fit: shorter ones keep their size. It is taken back by a step after a streak of successes; where that was wrong, the
next streak has to be twice as long.
"""

from dataclasses import dataclass, replace

from chunkvisor.decide.verdict import Verdict
from chunkvisor_worker.contract.messages import Limits, Tier

STREAK = 32
"""Chunks committed under a lesson before it is doubted for the first time: a doubt costs an attempt if it is wrong."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A learnt limit and how well it has stood."""

    tier: Tier
    successes: int = 0
    """Chunks committed since it was learnt or doubted last."""
    needed: int = STREAK
    """Successes after which it is doubted."""
    doubted: bool = False
    """Whether it was widened after a streak, and has not failed since."""


def smaller(verdict: Verdict, min_rows: int) -> Tier | None:
    """Half of the batch that ran out of memory, or None where it was as small as is allowed.

    Both limits halve, counted from the batch itself: it may have been far below one of them (a few long texts are
    below the row cap), and one step has to make that very batch smaller. Lengths are taken in powers of two.
    """
    longest = verdict.batch_tokens // verdict.batch_rows if verdict.batch_rows and verdict.batch_tokens else 0
    rows, tokens = verdict.limits.of_length(longest)
    failed_rows = min(verdict.batch_rows or rows, rows)
    if failed_rows <= min_rows:
        return None
    if not longest:
        return Tier(0, max(min_rows, failed_rows // 2), tokens and max(1, tokens // 2))
    min_length = 1 << (longest.bit_length() - 1)
    return Tier(
        min_length, max(min_rows, failed_rows // 2), max(longest, verdict.batch_tokens // 2) if tokens else None
    )


def learn(lessons: tuple[Lesson, ...], tier: Tier) -> tuple[Lesson, ...]:
    """The lessons with a new one; it replaces that of the same lengths and those of longer texts that it covers."""
    old = next((each for each in lessons if each.tier.min_length == tier.min_length), None)
    needed = 2 * old.needed if old is not None and old.doubted else old.needed if old is not None else STREAK
    kept = tuple(each for each in lessons if each.tier.min_length != tier.min_length and not _covers(tier, each.tier))
    return (*kept, Lesson(tier, needed=needed))


def confirm(lessons: tuple[Lesson, ...], full: Limits) -> tuple[Lesson, ...]:
    """The lessons after a committed chunk; one that has stood its streak is widened to twice its size.

    A lesson as wide as the limits of the config is forgotten after one more streak: were it forgotten at once, an
    out-of-memory fault at the full size would begin with the first streak again.
    """
    confirmed = []
    for each in lessons:
        lesson = replace(each, successes=each.successes + 1)
        if lesson.successes >= lesson.needed:
            tier = lesson.tier
            if tier.rows >= full.rows and (tier.tokens or 0) >= (full.tokens or 0):
                continue
            wider = Tier(tier.min_length, 2 * tier.rows, tier.tokens and 2 * tier.tokens)
            lesson = replace(lesson, tier=wider, successes=0, doubted=True)
        confirmed.append(lesson)
    return tuple(confirmed)


def apply(limits: Limits, lessons: tuple[Lesson, ...]) -> Limits:
    """The limits of the config, narrowed by the lessons."""
    tiers = (*limits.tiers, *(lesson.tier for lesson in lessons))
    return replace(limits, tiers=tuple(sorted(tiers, key=lambda tier: tier.min_length)))


def _covers(new: Tier, old: Tier) -> bool:
    narrower = new.rows <= old.rows and (new.tokens or 0) <= (old.tokens or 0)
    return narrower and new.min_length <= old.min_length
