"""Simulated lives; SIMULATE_S says for how many seconds (20), SIMULATE_FIRST names the first seed
(0).

`make test` always plays the same lives, so that a change is not held up by what was there before
it; fresh seeds are the soak's.
"""

import os
import time

import pytest

from .life import simulate
from .watchdog import Broken

SECONDS = float(os.environ.get("SIMULATE_S", "20"))
FIRST = int(os.environ.get("SIMULATE_FIRST", "0"))
SHARES = {"small": 0.7, "medium": 0.2, "large": 0.1}
"""Of the time, by size of life."""


@pytest.mark.timeout(max(300, 10 * SECONDS))
@pytest.mark.parametrize("size", SHARES)
def test_lives_hold_their_promises(size: str) -> None:
    """Whatever befalls it, a run keeps what it has, blames no good text and ends; a failure says
    how to replay it.
    """
    seed, end_s = FIRST, time.monotonic() + SHARES[size] * SECONDS
    while time.monotonic() < end_s:
        try:
            simulate(seed, size)
        except Broken as broken:
            again = f"python -m tests.simulator --seed {seed} --size {size}"
            pytest.fail(f"{broken}\nplay it again: {again}", pytrace=False)
        seed += 1


@pytest.mark.parametrize("size", ["small", "medium"])
def test_a_seed_says_all(size: str) -> None:
    """The same seed gives the same life, to the last instruction: or no failure could be played
    again.
    """
    for seed in range(30):
        one, other = (simulate(seed, size, trace=True) for _ in range(2))
        assert one.history == other.history
