"""The fire drill: every fault is provoked, seen for what it is, and survived; nothing is left
behind.
"""

import json
import re
from collections.abc import Sequence

import numpy as np
import pytest

from chunkvisor.commands.drill import differs, problem
from chunkvisor.testing import FAULTS, PARENT_KILLED, DrillFault
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.drill import SABOTAGES
from docpages import text_of
from harness import ROOT, Workplace, finish

GOOD = np.arange(1, 13, dtype=np.float32).reshape(6, 2)
# Faults that end in each of the ways; test_testing.py has them all.
ONE_OF_A_KIND = ("ecc", "supervisor-killed", "poison-row")


@pytest.mark.parametrize(
    "names", [ONE_OF_A_KIND, pytest.param((), id="all", marks=pytest.mark.soak(only=True))]
)
def test_a_drill_recovers_and_leaves_nothing_behind(
    workplace: Workplace, names: tuple[str, ...]
) -> None:
    """A fault of every kind, and in a soak every fault, is recovered from; there is no scratch
    folder, and a real run's workdir is as it was.
    """
    workplace.prepare(
        [f"text number {number % 45}" for number in range(60)], "good:make", chunk__size=45
    )
    workplace.ends(0)
    before = {path: path.stat().st_mtime_ns for path in workplace.folder.rglob("*")}
    asked = ("drill", str(workplace.config_path), "--json", *(f"--fault={name}" for name in names))
    # In a new process: it measures the memory of its children.
    ended = finish(workplace.start(*asked), timeout_s=280)
    findings = json.loads(ended.stdout)
    assert ended.returncode == 0, [ended.stderr, findings]
    assert [each["fault"] for each in findings] == list(names or [fault.name for fault in FAULTS])
    assert [each for each in findings if not each["recovered"]] == []
    assert {path: path.stat().st_mtime_ns for path in workplace.folder.rglob("*")} == before


@pytest.mark.parametrize(
    ("encoder", "texts", "words"),
    [
        ("good:make", ["one", "two", "one"], "has 2 different texts"),
        ("nowhere:make", ["one", "two", "three"], "the undisturbed run did not complete"),
    ],
)
def test_what_cannot_be_drilled(
    workplace: Workplace, encoder: str, texts: list[str], words: str
) -> None:
    """With too few texts, or if the undisturbed run fails, a drill says so with 78, and provokes no
    fault.
    """
    workplace.prepare(texts, encoder)
    ended = workplace.does("drill", code=78)
    assert words in ended.stderr
    assert "segfault" not in ended.stdout


@pytest.mark.parametrize(
    ("seen", "codes", "found", "expected"),
    [
        ("crashed", [0], GOOD + np.float32(1e-5), ""),
        ("hung", [0], GOOD, "seen as hung, not as crashed: words"),
        ("crashed", [75], GOOD, "the run ended with 75, not with 0: words"),
        ("crashed", [0], GOOD[:5], "the final file is missing, or of another shape"),
        (
            "crashed",
            [0],
            np.vstack([GOOD[:5], [[np.nan, 1]]]),
            "rows [5] have other vectors, or none",
        ),
    ],
)
def test_what_is_no_recovery(
    seen: str, codes: Sequence[int], found: np.ndarray, expected: str
) -> None:
    """Only the right outcome, exit code and vectors make a recovery."""
    fault = DrillFault("segfault", "", Outcome.CRASHED)
    wrong = problem(fault, seen, [(code, "words") for code in codes])
    assert (wrong or differs(GOOD, found, [], 1e-4)) == expected


def test_all_know_the_same_faults() -> None:
    """Each fault but one has its sabotage in the worker; the page lists them, and marks those that
    are simulated.
    """
    assert {fault.name for fault in FAULTS} - {PARENT_KILLED} == set(SABOTAGES)
    page = text_of(ROOT / "docs" / "reference" / "checks.md").partition("### The faults\n")[2]
    listed = re.findall(r"^- `([\w-]+)`: .*?(\(simulated\))?$", page, re.MULTILINE)
    assert [(name, not mark) for name, mark in listed] == [
        (fault.name, not isinstance(SABOTAGES.get(fault.name), BaseException)) for fault in FAULTS
    ]
