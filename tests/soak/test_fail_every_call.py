"""Every call of a run that opens, writes, syncs, renames, links or removes fails, with each error that it can have.

Each part plays about 1,500 trials; `make soak SOAK_S=3600 SOAK_ARGS="--each --only fail_every_call"` plays all.
"""

import subprocess
import sys

import pytest

from harness import ROOT
from iofault.shim import build

TRIALS = {
    "plain": 3200,
    "eventful": 6700,
    "apart": 6200,
    "begun": 2600,
    "complete": 1400,
    "from-scratch": 3600,
    "sql": 3200,
    "warm": 3300,
    "retry": 650,
}
"""About so many are there."""

_SIZE = 1500
PARTS = [
    f"{name} {part}/{-(-count // _SIZE)}" for name, count in TRIALS.items() for part in range(1, 1 - (-count // _SIZE))
]


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("part", PARTS)
def test_fail_every_call(part: str) -> None:
    """Words and an exit code of the contract, and the same bytes as ever once nothing fails any more."""
    try:
        build()
    except RuntimeError as problem:
        pytest.skip(str(problem))
    scenario, which = part.split()
    command = [sys.executable, "-m", "tests.iofault", "--scenario", scenario, "--part", which]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    print(ended.stdout)
