"""A short soak: the long one is `make chaos`."""

import subprocess
import sys

from harness import ROOT


def test_short_soak() -> None:
    """A dozen seconds of random faults lose no row, leave no process and show no traceback."""
    command = [sys.executable, str(ROOT / "tests" / "chaos" / "soak.py"), "--seconds", "12", "--seed", "7"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "seed 7" in ended.stdout
