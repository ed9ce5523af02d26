"""Folders as a power cut may leave them, by chance; and each sync of the code, which is missed where it is gone."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lostwrites.crashes import Crashes
from lostwrites.judge import Judge, scratch_folder
from lostwrites.recording import can_record
from lostwrites.scenarios import SCENARIOS
from lostwrites.sites import MISSED_IN, sites, take_out

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


@pytest.mark.parametrize("site", [site for site in sites() if str(site) in MISSED_IN], ids=str)
def test_a_sync_that_is_not_there_is_missed(site: object, scratch: Path, chance: random.Random) -> None:
    """Some folder that a power cut can leave without it is not gone on with as it should be."""
    (found,) = [each for each in sites() if each == site]
    name = MISSED_IN[str(found)]
    recordings = {name: SCENARIOS[name].record(scratch / "recorded")}
    assert take_out(found, recordings, chance, most=100).scenario == name
