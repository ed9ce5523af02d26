"""A call of the operating system fails, wherever it stands in a run: words, and the right bytes at the next run."""

import subprocess
import sys

import pytest

from harness import ROOT, local_engine_only
from iofault.shim import Position, build

pytestmark = local_engine_only


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Skips where the library that fails calls cannot be built."""
    try:
        build()
    except RuntimeError as problem:
        pytest.skip(str(problem))


def sweep(*options: str) -> str:
    """What `python -m tests.iofault` prints; fails where it has found something."""
    command = [sys.executable, "-m", "tests.iofault", *options]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_some_calls_of_a_run_fail() -> None:
    """The same forty trials each time; `make soak` has all of them (docs/reliability.md)."""
    assert " 0 wrong" in sweep("--part", "1/70")


def test_positions_are_those_of_all_processes() -> None:
    """An undisturbed run makes calls of every kind: the supervisor, the reader of its source, its workers."""
    positions = [Position.parse(line.rpartition(" ")[0]) for line in sweep("--list").splitlines()]
    kinds = {
        role: {each.kind for each in positions if each.role == role} for role in ("supervisor", "ingest", "worker")
    }
    assert kinds["supervisor"] >= {"open", "create", "write", "sync", "allocate", "rename", "link", "remove", "mkdir"}
    assert kinds["ingest"] >= {"open", "create", "write", "sync", "truncate", "rename", "remove", "mkdir"}
    assert kinds["worker"] >= {"open", "create", "write", "allocate", "rename"}
