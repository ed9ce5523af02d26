"""What people read of a run: what follows a failure, how often a wait is told, lines that fit a
terminal.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from chunkvisor.core.policy import (
    BatchLimit,
    GiveUp,
    How,
    Quarantine,
    Repeated,
    Retry,
    Split,
    Step,
    Stop,
)
from chunkvisor.core.reports import what_follows
from chunkvisor.core.run import WaitReporter
from chunkvisor.errors import ExitCode
from chunkvisor.events.event import (
    AttemptFailed,
    ChunkSplit,
    Event,
    OutputOpened,
    RunStarted,
    Waiting,
    WorkPlanned,
)
from chunkvisor.judge import Verdict
from chunkvisor.store.attempt import failed_as, find_log
from chunkvisor.units import which_rows
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (Retry(limit=BatchLimit(8, None)), "retrying with batches of at most 8 rows"),
        (Retry(limit=BatchLimit(1, None)), "retrying with batches of at most 1 row"),
        (Retry(limit=BatchLimit(32, 512)), "retrying with batches of at most 512 tokens"),
        (Retry(0.5), "retrying"),
        (Retry(4), "retrying in 4 s"),
        (Retry(2, counts=Repeated.START), "starting another worker in 2 s"),
        (Split(How.SUSPECTS), "trying the texts of that batch one by one"),
        (Split(How.HALVES), "trying it in two halves"),
        (
            Split(How.BAD),
            "keeping the others, and trying the bad ones once more in one worker, each alone in "
            "its batch",
        ),
        (Stop(ExitCode.MACHINE), ""),
        (Quarantine(), ""),
        (GiveUp(), ""),
    ],
)
def test_what_follows(step: Step, words: str) -> None:
    """A failure says what the run does about it, unless the next line does."""
    assert what_follows(step, Verdict(Outcome.CRASHED, "")) == words


def test_what_follows_a_device_fault() -> None:
    """The next worker names the kernel that failed."""
    blocking = "retrying, with CUDA_LAUNCH_BLOCKING=1 so that the log names the place"
    assert what_follows(Retry(), Verdict(Outcome.DEVICE_FAULT, "")) == blocking


def test_a_failure_without_an_attempt() -> None:
    """Where no worker could be started there is no attempt 0 to look for; what follows stands at
    the end.
    """
    assert AttemptFailed("a", 1, 2, "crashed", "why", then="retrying").line == (
        "a chunk 1, attempt 2: crashed: why; retrying"
    )
    assert AttemptFailed("a", 1, 0, "host_oom", "why").line == "a chunk 1: host_oom: why"


def test_the_search_says_what_is_left_and_what_is_tried() -> None:
    """How many texts, and which rows are next; the steps that follow are read from one line of the
    view.
    """
    split = ChunkSplit("a", 2, 7, "rows 23, 25")
    assert (
        split.line == "a chunk 2: looking for the text that fails among 7 texts; next: rows 23, 25"
    )
    assert replace(split, again=True).line == ""


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], ""),
        ([13], "row 13"),
        ([13, 14], "rows 13 to 14"),
        ([3, 7, 8, 9], "rows 3, 7 to 9"),
        ([*range(1, 12, 2)], "rows 1, 3, 5, 7, 9 and more"),
    ],
)
def test_rows_are_told_as_ranges(rows: list[int], words: str) -> None:
    """Neighbours together, and no more than a few."""
    assert which_rows(rows) == words


def test_nouns_are_counted() -> None:
    """One chunk, two chunks."""
    assert (
        OutputOpened("a", 1, 1, 1, 2000).line
        == "a: 1 row, 1 distinct text, 1 chunk of up to 2,000, 0 done"
    )
    assert OutputOpened("a", 3, 2, 2, 1, chunks_done=1).line == (
        "a: 3 rows, 2 distinct texts, 2 chunks of up to 1, 1 done"
    )


def test_a_wait_is_told_once_a_minute() -> None:
    """However often it is tried: at once, then after a minute; a new wait is told at once again."""
    heard: list[Event] = []
    waits = WaitReporter(heard.append, 600)
    for waited_s in (0.0, 1, 2.1, 30, 59, 61, 90, 119, 122):
        waits.report(1, waited_s, "no answer", "hub")
    waits.report(1, 0, "no answer", "hub")
    waits.report(1, 0, "busy", "gpu_busy", device=1)
    assert all(isinstance(each, Waiting) for each in heard)
    assert [each.line for each in heard if each.line] == [
        "waiting, for up to 10 min: no answer",
        "still waiting, 61 s by now, for up to 10 min: no answer",
        "still waiting, 2 min by now, for up to 10 min: no answer",
        "waiting, for up to 10 min: no answer",
        "waiting, for up to 10 min: busy",
    ]


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("cpu", "the CPU"),
        ("NVIDIA X (GPU-1)", "NVIDIA X (GPU-1)"),
        (
            ", ".join(f"NVIDIA X (GPU-{number})" for number in range(8)),
            "NVIDIA X (GPU-0), NVIDIA X (GPU-1) and 6 more",
        ),
        ("the Ray cluster", "the Ray cluster"),
    ],
)
def test_the_first_line(device: str, words: str) -> None:
    """It says what is encoded, with which model, on what, and where."""
    assert (
        RunStarted("/w", device, model="m", outputs=("a", "b")).line
        == f"encoding a, b with m on {words}, in /w"
    )


@pytest.mark.parametrize(
    ("planned", "words"),
    [
        (WorkPlanned(2000, 1500, 1500, 4, 4), "to do: 1,500 of 1,500 texts, 4 of 4 chunks"),
        (
            WorkPlanned(2000, 1500, 1000, 4, 1, 10.0),
            "to do: 1,000 of 1,500 texts, 1 of 4 chunks; about 2 min at the speed of the last run",
        ),
        (WorkPlanned(2000, 1500, 0, 4, 0), "nothing left to compute"),
        (WorkPlanned(3020, 20, 20, 1, 1, None, 3000), "to do: 20 of 3,020 texts, 1 of 1 chunk"),
    ],
)
def test_the_plan(planned: WorkPlanned, words: str) -> None:
    """Once all sources are read, it says how much is left to do, and how long that may take, if
    that is known.
    """
    assert planned.line == words


def failed(folder: Path, reason: str, rule: str = "") -> AttemptFiles:
    """Make the folder of a failed attempt, with a log."""
    files = AttemptFiles(folder)
    files.folder.mkdir(parents=True)
    files.log.write_text(reason)
    files.verdict.write_text(f'{{"outcome": "crashed", "reason": "{reason}", "rule": "{rule}"}}')
    return files


def test_the_log_to_open_exists(tmp_path: Path) -> None:
    """It is the attempt's own, else the newest of its chunk; of a reason that is told, the one that
    has it.
    """
    first = failed(tmp_path / "000003" / "001", "segfault", "segmentation-fault")
    other = failed(tmp_path / "000005" / "001", "hang")
    assert find_log(first) == first.log
    assert find_log(AttemptFiles(tmp_path / "000003")) == first.log
    assert find_log(AttemptFiles(tmp_path / "000003" / "002")) == first.log
    assert find_log(AttemptFiles(tmp_path / "000009")) is None
    assert failed_as(tmp_path, "crashed", "segfault") == ("segmentation-fault", first.log)
    assert failed_as(tmp_path, "crashed", "hang") == ("", other.log)
    assert failed_as(tmp_path, "crashed", "never heard of") in (("", first.log), ("", other.log))
    assert failed_as(tmp_path / "nothing", "crashed", "segfault") == ("", None)
