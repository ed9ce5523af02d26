"""What an attempt may leave behind: an outcome each time, and no wrong vector.

`make test` tries a few, the same each time; `make soak` hundreds, others each time.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkvisor.config.model import RecoveryConfig
from chunkvisor.core.policy import History, decide
from chunkvisor.judge import EndedBy, Evidence, judge
from chunkvisor.store.artifact import inspect
from chunkvisor.store.attempt import AttemptFolder
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Facts, Limits, Spec
from chunkvisor_worker.contract.wire import read_message
from harness import expected, local_engine_only
from hostile import another
from scripted_workplace import ScriptedWorkplace, made_once
from soaked import soaked

pytestmark = [pytest.mark.soak, local_engine_only]

CHUNK = ["a", "b", "", "c", "d", "e"]
"""Texts of the attempt; batches of two."""
RECORDS = (
    "spec.json",
    "texts.jsonl",
    "beat.json",
    "batches.jsonl",
    "result.json",
    "embeddings.npy",
    "fault.json",
)


@made_once
def attempted(folder: Path) -> ScriptedWorkplace:
    """A whole attempt that nobody has judged, and another that died in its third batch."""
    place = ScriptedWorkplace.make(folder, [*CHUNK, *(f"x{text}" for text in CHUNK)], chunk__size=6)
    place.write_config(
        "scripted:make",
        chunk__size=6,
        encode__batch_size=2,
        **{"outputs.out.source": str(place.source)},
    )
    place.lay("a", "kill_supervisor")
    assert place.apart().returncode == -9
    (whole,) = attempts(place)
    by_hand = [sys.executable, "-P", "-m", "chunkvisor_worker", str(whole.folder)]
    assert subprocess.run(by_hand, check=False, timeout=60).returncode == 0
    shutil.copytree(whole.folder, whole.folder.with_name("dead"))
    dead = AttemptFiles(whole.folder.with_name("dead"))
    dead.result.unlink()
    dead.vectors.rename(dead.partial)
    lines = dead.batches.read_bytes().splitlines(keepends=True)
    dead.batches.write_bytes(b"".join(lines[:-1]))
    dead.fault.write_bytes(
        b'{"phase":"forward","chain":[{"name":"E","bases":[],"message":"m"}],"traceback":""}'
    )
    return place


def attempts(place: ScriptedWorkplace) -> list[AttemptFiles]:
    """Those that are there."""
    return [AttemptFiles(path.parent) for path in sorted(place.workdir.rglob("spec.json"))]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> ScriptedWorkplace:
    """Of this module's own."""
    return attempted(tmp_path_factory.mktemp("wire") / "place")


def right_rows(path: Path, rows: list[int]) -> None:
    """These rows of the file are the vectors of their texts."""
    vectors = np.load(path, allow_pickle=False)
    np.testing.assert_array_equal(vectors[rows], expected(CHUNK)[rows])


@soaked(400)
@given(st.data())
def test_attempt_of_any_content(
    place: ScriptedWorkplace, tmp_path: Path, data: st.DataObject
) -> None:
    """Whatever an attempt leaves in its folder is judged, and no wrong vector counts as a result or
    as a batch.
    """
    original = data.draw(st.sampled_from(attempts(place)))
    folder = tmp_path / "attempt"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original.folder, folder)
    files, spec = AttemptFiles(folder), read_message(Spec, original.spec)
    assert spec is not None
    names = [
        name
        for name in (*RECORDS, "embeddings.partial.npy", "worker.log")
        if (folder / name).exists()
    ]
    for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True)):
        path = folder / name
        path.write_bytes(data.draw(another(path.read_bytes())))
    known = data.draw(st.sampled_from([None, Facts(8), Facts(3), Facts(8, "bfloat16")]))
    returncode = data.draw(st.sampled_from([None, 0, 1, 20, 24, 26, 99, -6, -9, -11]))
    end = Evidence(returncode, data.draw(st.sampled_from(EndedBy)), limits=Limits(2))
    attempt = AttemptFolder(files, spec, lambda: known, lambda row: not CHUNK[row])
    verdict = judge(attempt.evidence_of_end(end))
    decide(verdict, History(), RecoveryConfig(wait_timeout=1))
    if verdict.outcome is Outcome.COMMITTED:
        inspect(files.vectors)
        right_rows(files.vectors, list(range(6)))
    left = attempt.salvage()
    if left.done:
        right_rows(files.partial, list(left.done))
