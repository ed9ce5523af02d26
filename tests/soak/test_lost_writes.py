"""Folders as a power cut may leave them, by chance."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lostwrites.crashes import Crashes
from lostwrites.judge import Judge, scratch_folder
from lostwrites.recording import can_record
from lostwrites.scenarios import SCENARIOS

pytestmark = pytest.mark.skipif(not can_record(), reason="the recorder needs gcc")
FOLDERS = 150
"""Of the thousands that are possible; `python -m tests.lostwrites` takes a thousand of each scenario."""


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in memory, where that can be."""
    folder = scratch_folder()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("name", SCENARIOS)
def test_folders_after_a_power_cut(name: str, scratch: Path, chance: random.Random) -> None:
    """Each is gone on with to the right bytes, or refused by name, and nothing that was told of is lost."""
    recording = SCENARIOS[name].record(scratch / "recorded")
    possible = list(Crashes(recording, chance).legal())
    assert len(possible) >= 1000
    with Judge(SCENARIOS[name], recording) as judge:
        for judgement in judge.each(chance.sample(possible, FOLDERS)):
            crash = judgement.crash
            assert not judgement.problems, f"after call {crash.at}, lost: {crash.what}: {judgement.problems}"
