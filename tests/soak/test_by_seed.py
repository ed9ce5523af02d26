"""Programs of their own, each from a fresh seed: simulated lives, calls that fail, folders after a
power cut.
"""

import random
import sys

import pytest

from harness import said_by
from iofault.scenarios import SCENARIOS as COMMANDS
from lostwrites.recording import can_record
from lostwrites.scenarios import SCENARIOS as POWER_CUTS

needs_gcc = pytest.mark.skipif(not can_record(), reason="it is built by gcc")


def play(*words: str, limit_s: float = 280) -> None:
    """Play; a failure prints what plays it again."""
    said_by(sys.executable, "-m", *words, limit_s=limit_s)


def test_lives(chance: random.Random) -> None:
    """A few thousand lives keep what they have, blame no good text and end."""
    size = chance.choice(["small", "medium", "large"])
    # Seconds of one core; on a busy machine that is minutes.
    first = str(chance.randrange(10**9))
    play("tests.simulator", "--first", first, "--size", size, "--seconds", "15")


@needs_gcc
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", COMMANDS)
def test_calls_that_fail(name: str, chance: random.Random) -> None:
    """Words and an exit code of the contract, and the same bytes as ever once nothing fails any
    more.
    """
    part = f"{chance.randint(1, 4)}/4"
    play("tests.iofault", "--scenario", name, "--part", part, limit_s=3000)


@needs_gcc
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", POWER_CUTS)
def test_folders_after_a_power_cut(name: str, chance: random.Random) -> None:
    """Each is gone on with to the right bytes, or refused by name, and nothing that was told of is
    lost.
    """
    seed = str(chance.randrange(1 << 30))
    play("tests.lostwrites", name, "--folders", "150", "--seed", seed, limit_s=1200)
