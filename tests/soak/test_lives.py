"""Simulated lives from a fresh seed; tests/simulator plays them for as long as one likes."""

import random
import subprocess
import sys

from harness import ROOT

SECONDS = 15
"""Of one core; on a busy machine that is minutes."""


def test_lives(chance: random.Random) -> None:
    """A few thousand lives keep what they have, blame no good text and end; a failure prints what plays it again."""
    command = [sys.executable, "-m", "tests.simulator", "--first", str(chance.randrange(10**9))]
    command += ["--size", chance.choice(["small", "medium", "large"]), "--seconds", str(SECONDS)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " lives in " in ended.stdout
