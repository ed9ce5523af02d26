"""What disks do to a run: calls fail wherever they stand in it, and a power cut leaves what was synced."""

import subprocess
import sys

import pytest

from harness import ROOT, local_engine_only
from lostwrites.recording import can_record

pytestmark = [
    local_engine_only,
    pytest.mark.skipif(not can_record(), reason="both harnesses need gcc"),
]


def played(*words: str, code: int = 0) -> str:
    """What a harness says that ends with this code."""
    ended = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout


def test_folders_after_a_power_cut() -> None:
    """Each is gone on with to the right bytes, and nothing told of is lost; as if nothing were synced, some is."""
    assert " 0 unsound" in played("tests.lostwrites", "plain", "--seed", "7", "--folders", "20")
    played("tests.lostwrites", "plain", "--seed", "7", "--folders", "30", "--no-syncs", code=1)


def test_some_calls_of_a_run_fail() -> None:
    """There are words, and the right bytes at the next run; `make soak` fails all calls."""
    said = played("tests.iofault", "--part", "1/40", "--errors", "1")
    assert " 0 wrong" in said
    for role, kind in (
        ("supervisor", "open"),
        ("supervisor", "sync"),
        ("ingest", "rename"),
        ("worker", "write"),
    ):
        assert f" {role} {kind}" in said
