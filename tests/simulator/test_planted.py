"""Bugs are planted in the real loop, scheduler and ledger, and lives find each of them."""

import pytest

from .life import simulate
from .planted import BUGS_FOR_LIVES
from .watchdog import Broken

LIVES = 1500


@pytest.mark.parametrize("name", BUGS_FOR_LIVES)
def test_a_planted_bug_is_found(name: str) -> None:
    """Some life, not far from the one that found it first, breaks by the bug."""
    bug = BUGS_FOR_LIVES[name]
    with bug.planted():
        for seed in range(bug.seed, bug.seed + LIVES):
            try:
                simulate(seed)
            except Broken:
                return
    pytest.fail(
        f"no life of {LIVES} from seed {bug.seed} on finds it: name another seed in planted.py"
    )
