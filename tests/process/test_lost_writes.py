"""A run's folder as power cuts may leave it: a few of those that tests/soak tries by the hundred."""

import random
import shutil

import pytest

from harness import local_engine_only
from lostwrites.crashes import Crash, Crashes
from lostwrites.disk import Disk
from lostwrites.judge import Judge, scratch_folder
from lostwrites.recording import Kind, can_record
from lostwrites.scenarios import SCENARIOS

pytestmark = [local_engine_only, pytest.mark.skipif(not can_record(), reason="the recorder needs gcc")]
EACH = 3


def test_folders_after_a_power_cut() -> None:
    """Each is gone on with to the right bytes, and nothing that was told of is lost; the recording has every byte."""
    folder = scratch_folder()
    try:
        scenario = SCENARIOS["plain"]
        recording = scenario.record(folder)
        disk = Disk()
        for call in recording.calls:
            disk.do(call)
        for path, file in disk.tree(disk.steps).items():
            if file.kind is Kind.CREATE:
                assert disk.content(file, "all") == (recording.folder / path).read_bytes(), path
        possible = list(Crashes(recording, random.Random("as always")).legal())
        kinds: dict[str, list[Crash]] = {}
        for crash in possible[len(possible) // 2 :]:  # before, little is promised
            kinds.setdefault(crash.what.partition(" ")[0], []).append(crash)
        chosen = [crash for each in kinds.values() for crash in each[:: max(1, len(each) // EACH)][:EACH]]
        with Judge(scenario, recording) as judge:
            for judgement in judge.each(chosen):
                assert not judgement.problems, (judgement.crash.what, judgement.problems)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
