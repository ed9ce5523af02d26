"""What chooses in a soak: a seed, which is new each time unless CHUNKVISOR_SOAK_SEED has one."""

import random
import secrets
from pathlib import Path

import pytest

from harness import SOAK_SEED

SEED = SOAK_SEED or str(secrets.randbelow(1 << 32))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All that is here is of the soak."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("soak")


def pytest_report_header() -> str:
    """How to have it all again."""
    return f"soak: CHUNKVISOR_SOAK_SEED={SEED}"


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Decides for one test; tells how to decide the same again."""
    print(f"CHUNKVISOR_SOAK_SEED={SEED} .venv/bin/pytest '{request.node.nodeid}'")
    return random.Random(f"{SEED} {request.node.nodeid}")
