"""What disks do to a run: calls fail wherever they stand in it, and a power cut leaves what was
synced.
"""

import sys

import pytest

from harness import local_engine_only, said_by
from lostwrites.recording import can_record

pytestmark = [
    local_engine_only,
    pytest.mark.skipif(not can_record(), reason="both harnesses need gcc"),
]


PLAIN = (sys.executable, "-m", "tests.lostwrites", "plain", "--seed", "7", "--folders")


def test_folders_after_a_power_cut() -> None:
    """Each is gone on with to the right bytes, and nothing told of is lost; as if nothing were
    synced, some is.
    """
    assert " 0 unsound" in said_by(*PLAIN, "20")
    said_by(*PLAIN, "30", "--no-syncs", code=1)


def test_some_calls_of_a_run_fail() -> None:
    """There are words, and the right bytes at the next run; `make soak` fails all calls."""
    said = said_by(sys.executable, "-m", "tests.iofault", "--part", "1/40", "--errors", "1")
    assert " 0 wrong" in said
    for kind in ("supervisor open", "supervisor sync", "ingest rename", "worker write"):
        assert f" {kind}" in said
