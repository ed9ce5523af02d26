"""What the config allows of tries and waits, and how long a pause is. Pure."""

from dataclasses import dataclass
from enum import Enum

BACKOFF_S, BACKOFF_MAX_S = 0.5, 60.0
"""Pause before the second try; it doubles with each further one, up to the second number."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What the config allows."""

    attempts: int = 3
    """Tries of a chunk for one cause."""
    min_batch_size: int = 1
    wait_timeout_s: float = 600


class Company(Enum):
    """Who else holds memory of the attempt's device."""

    UNTOLD = "untold"
    """It was not looked at, or it is no GPU."""
    ALONE = "alone"
    CAME = "came"
    """Others, who were not there when the run began and hold what was missing."""
    OURS = "ours"
    """Another worker of this run."""
    BLIND = "blind"
    """There is nothing to look with: NVML is broken."""


def backoff_s(tries: int) -> float:
    """Say how long to pause after so many failures."""
    return float(min(BACKOFF_MAX_S, BACKOFF_S * 2 ** max(0, tries - 1)))


def pause_s(waited_s: float, limit_s: float) -> float:
    """Say how long to pause in a wait that has lasted so long: seconds at first, a minute later, not past the limit."""
    return min(BACKOFF_MAX_S, 1 + waited_s / 10, max(0.1, limit_s - waited_s))
