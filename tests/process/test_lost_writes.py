"""A run's folder as power cuts may leave it: a few of those that tests/soak tries by the hundred."""

import subprocess
import sys

import pytest

from harness import ROOT, local_engine_only
from lostwrites.recording import can_record

pytestmark = [local_engine_only, pytest.mark.skipif(not can_record(), reason="the recorder needs gcc")]


@pytest.mark.parametrize(("options", "code"), [(("--folders", "20"), 0), (("--folders", "30", "--no-syncs"), 1)])
def test_folders_after_a_power_cut(options: tuple[str, ...], code: int) -> None:
    """Each is gone on with to the right bytes, and nothing told of is lost; as if nothing were synced, some is."""
    command = [sys.executable, "-m", "tests.lostwrites", "plain", "--seed", "7", *options]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert " refused by name" in ended.stdout, ended.stderr
