"""`chunkvisor.testing.fault`: what a test asks for strikes at the chosen chunk, and leaves no
trace.
"""

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import chunkvisor
from chunkvisor import testing
from chunkvisor.testing import FAULTS
from chunkvisor_worker.contract.exits import TESTING_FAULTS, Outcome
from docpages import blocks
from harness import ROOT, Workplace, halts, local_engine_only, said_by

pytestmark = local_engine_only

TEXTS = [f"text number {number}" for number in range(30)]
OUTCOMES = {fault.name: str(fault.seen_as) for fault in FAULTS}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for temporary files."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def prepare(workplace: Workplace, **changes: Any) -> None:
    """Write three chunks of ten texts, and a config with a plug-in."""
    workplace.prepare(TEXTS, "good:make", recovery__stall_timeout=2, **changes)


def failed(workplace: Workplace) -> list[tuple[int, str]]:
    """(chunk, outcome) of each failed attempt."""
    events = workplace.named("attempt_failed", "part_failed", "late_crash")
    return [(each["chunk"], each.get("outcome", "committed")) for each in events]


def test_each_fault_strikes_once_and_is_survived(workplace: Workplace, temporary: Path) -> None:
    """Every fault strikes in the first attempt at its own chunk, is seen for what it is, and costs
    no row.
    """
    names = [name for name in testing.NAMES if name not in ("ecc", "poison-row")]
    texts = [f"text number {number}" for number in range(2 * len(names) + 2)]
    workplace.write_source(texts)
    # One row a batch: no out-of-memory fault can lower the limits. The first chunk shows that the
    # setup works.
    workplace.write_config(
        "good:make", chunk__size=2, encode__batch_size=1, recovery__stall_timeout=4
    )
    with ExitStack() as stack:
        faults = [
            stack.enter_context(testing.fault(name, chunk=chunk))
            for chunk, name in enumerate(names, start=1)
        ]
        chunkvisor.run(workplace.config_path)

    assert {name: fault.struck for name, fault in zip(names, faults, strict=True)} == dict.fromkeys(
        names, 1
    )
    assert sorted(failed(workplace)) == [
        (chunk, OUTCOMES[name]) for chunk, name in enumerate(names, start=1)
    ]
    workplace.has(texts)
    assert list(temporary.iterdir()) == []


def test_a_fault_that_ends_the_run(workplace: Workplace) -> None:
    """A hardware fault ends the run with its error, and the next one completes within the same
    block.
    """
    prepare(workplace)
    with testing.fault("ecc", chunk=1) as fault:
        with pytest.raises(chunkvisor.ChunkvisorError):
            chunkvisor.run(workplace.config_path)
        chunkvisor.run(workplace.config_path)

    assert fault.struck == 1
    assert failed(workplace) == [(1, "hardware_fault")]
    workplace.has(TEXTS)


def test_every_outcome_has_its_fault() -> None:
    """The name of an outcome stands for a fault that is seen as that outcome; one that no fault
    ends in is refused.
    """
    for outcome in Outcome:
        if outcome in OUTCOMES.values():
            assert OUTCOMES[testing._FAULT_OF[outcome]] == outcome
        else:
            with pytest.raises(chunkvisor.ChunkvisorError), testing.fault(outcome, chunk=0):
                pass


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "gpu_omm", "chunk": 1}, "no fault gpu_omm to provoke; did you mean gpu_oom"),
        (
            {"name": "supervisor-killed", "chunk": 1},
            "no fault supervisor-killed to provoke; it would kill your test; start the command",
        ),
        ({"name": "oom", "chunk": -1}, "chunk=-1"),
        ({"name": "oom", "chunk": 1, "times": 0}, "times=0"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], words: str) -> None:
    """Unknown names are refused with the nearest one, and impossible numbers by name, before
    anything is set.
    """
    with halts(2, words), testing.fault(**arguments):
        pytest.fail("the block was entered")
    assert TESTING_FAULTS not in os.environ


def test_times_and_output(workplace: Workplace) -> None:
    """A fault strikes that many attempts of its output's chunk, and no other's."""
    outputs = {name: {"source": "rows.jsonl", "column": "text"} for name in ("first", "second")}
    # else the second has nothing to encode
    prepare(workplace, outputs=outputs, reuse=False)
    with testing.fault("sigkill", chunk=0, output="second", times=2) as fault:
        chunkvisor.run(workplace.config_path)

    struck = [(each["output"], each["chunk"]) for each in workplace.named("attempt_failed")]
    assert (fault.struck, struck) == (2, [("second", 0)] * 2)


def test_a_poison_row_is_quarantined(workplace: Workplace) -> None:
    """The first text of the chunk fails in every attempt that has it, and is the only row without a
    vector.
    """
    prepare(workplace)
    with testing.fault("poison-row", chunk=1) as fault, pytest.warns(chunkvisor.QuarantineWarning):
        report = chunkvisor.run(workplace.config_path)
    assert [each.row for each in report.outputs["out"].quarantined] == [10]
    assert fault.struck == 1


def test_commands_started_in_the_block_meet_it(workplace: Workplace) -> None:
    """A `chunkvisor run` that the pipeline starts as a process meets the fault; the log says that a
    test asked.
    """
    prepare(workplace)
    with testing.fault("device_fault", chunk=1):
        workplace.ends(0)
    assert failed(workplace) == [(1, "device_fault")]
    (log,) = workplace.hidden.glob("outputs/out/0001/attempts/000001/001/worker.log")
    assert "the fault device-assert strikes here, as a test asked" in log.read_text()


def test_the_fixture_of_the_page_kills_a_run(workplace: Workplace) -> None:
    """The page's fixture kills a run after its first chunk, and its test finds that it continues."""
    prepare(workplace)
    page = ROOT / "docs" / "how-to" / "test-your-pipeline.md"
    (block,) = (each.text for each in blocks(page, "python") if "pytest" in each.text)
    (workplace.folder / "test_page.py").write_text(block)
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py")
    assert "1 passed" in said_by(*command, cwd=workplace.folder)


def test_a_fault_that_never_struck_is_an_error(workplace: Workplace) -> None:
    """A block whose fault never struck fails the test; one that ended in another error keeps that."""
    prepare(workplace)
    with (
        pytest.raises(AssertionError, match=r"oom never struck: .* chunk 7"),
        testing.fault("oom", chunk=7),
    ):
        chunkvisor.run(workplace.config_path)
    with pytest.raises(KeyError), testing.fault("oom", chunk=0):
        raise KeyError("mine")
