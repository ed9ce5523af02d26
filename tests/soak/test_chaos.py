"""Half a minute of random faults at a time; `make chaos` takes longer."""

import random
import subprocess
import sys

from harness import ROOT


def test_chaos(chance: random.Random) -> None:
    """Random faults lose no row, leave no process and show no traceback."""
    seed = str(chance.randrange(1 << 32))
    command = [sys.executable, str(ROOT / "tests" / "soak" / "chaos" / "soak.py"), "--seconds", "30", "--seed", seed]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"seed {seed}" in ended.stdout
