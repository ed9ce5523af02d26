"""The fire drill: every fault is provoked, seen for what it is, and survived; nothing is left behind."""

import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from chunkvisor.commands.drill import Good, Ran, action, choose, problem
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import (
    AttemptFailed,
    ChunkSplit,
    Event,
    Halted,
    LateCrash,
    LimitsLowered,
    Quarantined,
    Waiting,
)
from chunkvisor.testing import FAULTS, PARENT_KILLED, DrillFault
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.drill import SABOTAGES
from harness import ROOT, Ended, Workplace, finish, wait_for

GOOD = np.arange(1, 13, dtype=np.float32).reshape(6, 2)
FAULT = DrillFault("segfault", "", Outcome.CRASHED)


def failed(outcome: str = "crashed") -> Event:
    """The event of a failed attempt."""
    return AttemptFailed("out", 1, 1, outcome)


def drill(workplace: Workplace, *names: str) -> Ended:
    """A drill of these faults, in a new process: it measures the memory of its children."""
    asked = ("drill", str(workplace.config_path), "--json", *(f"--fault={name}" for name in names))
    return finish(workplace.start(*asked), timeout_s=280)


def prepare(workplace: Workplace) -> None:
    """Sixty rows, some of them twice, and a plug-in."""
    workplace.write_source([f"text number {number % 45}" for number in range(60)])
    workplace.write_config("good:make", chunk__size=45)


def check_findings(ended: Ended, names: Sequence[str]) -> None:
    """The run recovered from all of these."""
    findings = json.loads(ended.stdout)
    assert ended.returncode == 0, [ended.stderr, findings]
    assert [each["fault"] for each in findings] == list(names)
    assert [each for each in findings if not each["recovered"] or each["difference"] != 0] == []


@pytest.mark.soak(only=True)
def test_every_fault_is_recovered_from(workplace: Workplace) -> None:
    """A drill of all faults on a CPU ends with 0: all of them end as they must."""
    prepare(workplace)
    check_findings(drill(workplace), [fault.name for fault in FAULTS])


ONE_OF_A_KIND = ("ecc", "exit-1-after-result", "supervisor-killed", "poison-row")
"""Faults that end in each of the ways; test_testing.py has them all."""


def test_a_drill_recovers_and_leaves_nothing_behind(workplace: Workplace) -> None:
    """A fault of every kind is recovered from; there is no scratch folder, and a real run's workdir is as it was."""
    prepare(workplace)
    assert workplace.run().returncode == 0
    before = {path: path.stat().st_mtime_ns for path in workplace.folder.rglob("*")}

    check_findings(drill(workplace, *ONE_OF_A_KIND), ONE_OF_A_KIND)

    assert {path: path.stat().st_mtime_ns for path in workplace.folder.rglob("*")} == before


def test_a_drill_needs_several_texts(workplace: Workplace) -> None:
    """With fewer different texts than chunks, a drill says so and ends with 78."""
    workplace.write_source(["one", "two", "one"])
    workplace.write_config("good:make")

    ended = workplace.call("drill", str(workplace.config_path))

    assert ended.returncode == ExitCode.CONFIG
    assert "has 2 different texts" in ended.stderr


def test_a_model_that_fails_anyway_is_not_drilled(workplace: Workplace) -> None:
    """Where the undisturbed run fails, its words are shown, and no fault is provoked."""
    workplace.write_source(["one", "two", "three"])
    workplace.write_config("nowhere:make")

    ended = workplace.call("drill", str(workplace.config_path))

    assert ended.returncode == ExitCode.CONFIG
    assert "the undisturbed run did not complete" in ended.stderr
    assert "nowhere" in ended.stderr
    assert "segfault" not in ended.stdout


def test_sigint_ends_a_drill(workplace: Workplace) -> None:
    """Ctrl-C in the middle of a hang ends the drill with 130, and the scratch folder is gone."""
    prepare(workplace)
    process = workplace.start("drill", str(workplace.config_path), "--fault=hang", "--fault=nan-row")
    wait_for(lambda: _struck(workplace.folder))

    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)

    assert process.returncode == ExitCode.INTERRUPTED, stderr
    assert "nan-row" not in stdout
    assert not list(workplace.folder.glob(".chunkvisor-drill-*"))


def test_an_unknown_fault_is_refused_with_the_nearest() -> None:
    """A misspelt name ends the command with 2, and the message has the name that was meant."""
    with pytest.raises(Halt, match="did you mean segfault") as caught:
        choose(["segfalt"])

    assert caught.value.code is ExitCode.USAGE


def test_both_sides_know_the_same_faults() -> None:
    """Every fault that strikes in a worker has a sabotage of its name, and there is no other."""
    in_workers = {fault.name for fault in FAULTS} - {PARENT_KILLED}

    assert in_workers == set(SABOTAGES)


@pytest.mark.parametrize(
    ("events", "code", "expected"),
    [
        ([failed()], 0, "retried"),
        ([failed(), failed()], 0, "retried 2 times"),
        ([failed(), LimitsLowered(8)], 0, "batch cut to 8 rows"),
        ([failed(), Waiting(1.0, "full")], 0, "waited 1 s, retried"),
        ([failed(), ChunkSplit("out", 1, parts=1)], 0, "texts taken apart"),
        ([failed(), ChunkSplit("out", 1), failed(), Quarantined("out", 1)], 3, "quarantined, found in 2 tries"),
        ([LateCrash("out", 1)], 0, "its vectors were kept"),
        ([failed(), Halted(69)], 69, "ended with 69; run again"),
    ],
)
def test_action(events: list[Event], code: int, expected: str) -> None:
    """The events of a run say what was done about the fault."""
    assert expected in action([Ran(code, "", events)])


@pytest.mark.parametrize(
    ("seen", "codes", "found", "expected"),
    [
        ("crashed", [0], GOOD, ""),
        ("crashed", [0], GOOD + np.float32(1e-5), ""),
        ("hung", [0], GOOD, "seen as hung, not as crashed"),
        ("", [0], GOOD, "seen as nothing at all"),
        ("crashed", [75], None, "ended with 75, not with 0"),
        ("crashed", [0, 75], None, "again ended with 75"),
        ("crashed", [0], None, "no final file"),
        ("crashed", [0], GOOD[:5], "shape (5, 2)"),
        ("crashed", [0], GOOD + 1, "differ by up to 1.0e+00"),
        ("crashed", [0], np.vstack([GOOD[:5], [[np.nan, 1]]]), "rows [5] have no vectors"),
    ],
)
def test_problem(seen: str, codes: list[int], found: np.ndarray | None, expected: str) -> None:
    """Only the right outcome, exit code and vectors make a recovery."""
    said = problem(FAULT, seen, [Ran(code, "words") for code in codes], Good(GOOD, "float32", (5,)), found)

    assert said == expected == "" or (expected and expected in said)


def test_the_page_lists_the_faults() -> None:
    """The drill's page says of every fault, and of no other, whether it is real or simulated on a CPU and on a GPU."""
    page = (ROOT / "docs" / "reference" / "drill.md").read_text("utf-8")
    listed = re.findall(r"^\| `([\w-]+)` \| .* \| (real|simulated) \| (real|simulated) \|$", page, re.MULTILINE)

    way = {True: "real", False: "simulated"}
    assert listed == [(fault.name, way["cpu" in fault.real_on], way["cuda" in fault.real_on]) for fault in FAULTS]


def _struck(folder: Path) -> bool:
    """Whether a saboteur has begun."""
    logs = folder.glob(".chunkvisor-drill-*/hang-first-*/.chunkvisor/outputs/out/attempts/000001/001/beat.json")
    return any('"forward"' in log.read_text() for log in logs)
