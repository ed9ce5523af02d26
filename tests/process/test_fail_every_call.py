"""A call of the operating system fails, wherever it stands in a run: words, and the right bytes at the next run."""

import subprocess
import sys

import pytest

from harness import ROOT, local_engine_only
from iofault.shim import build

pytestmark = local_engine_only


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Skips where the library that fails calls cannot be built."""
    try:
        build()
    except RuntimeError as problem:
        pytest.skip(str(problem))


KINDS = {
    "supervisor": ("open", "change", "create", "write", "sync", "allocate", "rename", "link", "remove", "mkdir"),
    "ingest": ("open", "create", "write", "sync", "truncate", "rename", "remove", "mkdir"),
    "worker": ("open", "create", "write", "allocate", "rename"),
}


def test_some_calls_of_a_run_fail() -> None:
    """Of all kinds of calls of all processes the same few each time; `make soak` has all."""
    command = [sys.executable, "-m", "tests.iofault", "--part", "1/40", "--errors", "1"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " 0 wrong" in ended.stdout
    for role, kinds in KINDS.items():
        assert all(f" {role} {kind}" in ended.stdout for kind in kinds), ended.stdout
