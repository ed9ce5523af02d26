"""Folders as a power cut may leave them, by chance."""

import random
import subprocess
import sys

import pytest

from harness import ROOT
from lostwrites.recording import can_record
from lostwrites.scenarios import SCENARIOS

pytestmark = pytest.mark.skipif(not can_record(), reason="the recorder needs gcc")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SCENARIOS)
def test_folders_after_a_power_cut(name: str, chance: random.Random) -> None:
    """Each is gone on with to the right bytes, or refused by name, and nothing that was told of is lost."""
    options = ["--folders", "150", "--seed", str(chance.randrange(1 << 30))]
    command = [sys.executable, "-m", "tests.lostwrites", name, *options]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
