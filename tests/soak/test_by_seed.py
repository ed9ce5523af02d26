"""Programs of their own, each from a fresh seed: simulated lives, calls that fail, folders after a power cut."""

import random
import subprocess
import sys

import pytest

from harness import ROOT
from iofault.scenarios import SCENARIOS as COMMANDS
from lostwrites.recording import can_record
from lostwrites.scenarios import SCENARIOS as POWER_CUTS

needs_gcc = pytest.mark.skipif(not can_record(), reason="it is built by gcc")


def play(*words: str) -> None:
    """A failure prints what plays it again."""
    ended = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_lives(chance: random.Random) -> None:
    """A few thousand lives keep what they have, blame no good text and end."""
    size = chance.choice(["small", "medium", "large"])
    # Seconds of one core; on a busy machine that is minutes.
    play(
        "tests.simulator",
        "--first",
        str(chance.randrange(10**9)),
        "--size",
        size,
        "--seconds",
        "15",
    )


@needs_gcc
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", COMMANDS)
def test_calls_that_fail(name: str, chance: random.Random) -> None:
    """Words and an exit code of the contract, and the same bytes as ever once nothing fails any more."""
    play("tests.iofault", "--scenario", name, "--part", f"{chance.randint(1, 4)}/4")


@needs_gcc
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", POWER_CUTS)
def test_folders_after_a_power_cut(name: str, chance: random.Random) -> None:
    """Each is gone on with to the right bytes, or refused by name, and nothing that was told of is lost."""
    play("tests.lostwrites", name, "--folders", "150", "--seed", str(chance.randrange(1 << 30)))
