"""What a person sees of a run at a glance: in the live view, in any terminal, and on the screen of
`status`.
"""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console, Group

from chunkvisor.events.event import Halted, Weight
from chunkvisor.events.state import DeviceTimes, Progress, RunState
from chunkvisor.messages import BadReason
from chunkvisor.show.snapshot import Snapshot
from chunkvisor.show.status import OutputStatus, State, Status, status_screen
from chunkvisor.show.terminal import view
from chunkvisor.units import human_moment

T0 = 1_800_000_000.0
AT = "CPU: a chunk 4, computing, 7 of 100 texts"
WORKING = Snapshot(
    RunState(),
    doing="computing",
    elapsed_s=754,
    health="all is well",
    workers=(AT,),
    rows_per_s=12,
    eta_s=680,
)


def snapshot(workers: int = 1, outputs: int = 1) -> Snapshot:
    """A run in full swing."""
    progress = Progress(17_666, 17_666, 18, 9, texts_done=9_362)
    return replace(
        WORKING,
        health="2 attempts failed and are tried again; nothing is lost",
        weight=Weight.CARE,
        outputs={f"out{number}": progress for number in range(outputs)},
        workers=tuple(
            f"GPU {number}: titles chunk {number}, loading the model" for number in range(workers)
        ),
        tokens_per_s=1203.4,
    )


def lines_of(now: Snapshot, columns: int = 80) -> list[str]:
    """The view as it is drawn."""
    console = Console(file=io.StringIO(), width=columns, highlight=False)
    with console.capture() as captured:
        console.print(Group(*view(now)))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_80_columns() -> None:
    """State, times, bar, figures, whether to worry, and what each worker is at: in 80 columns."""
    assert lines_of(snapshot(2)) == [
        "computing, 13 min so far",
        f"{'━' * 15}{'─' * 15} 52 %",
        "9,362 of 17,666 rows, 9 of 18 chunks, 12 rows/s, 1,203 tokens/s, about 11 min",
        "left",
        "note: 2 attempts failed and are tried again; nothing is lost",
        "GPU 0: titles chunk 0, loading the model",
        "GPU 1: titles chunk 1, loading the model",
    ]
    assert sum("17,666 rows" in line and "out" in line for line in lines_of(snapshot(1, 3))) == 3


@pytest.mark.parametrize("columns", [20, 79, 300])
@pytest.mark.parametrize("workers", [0, 1, 16])
def test_it_always_fits(columns: int, workers: int) -> None:
    """No line is wider than the terminal; nothing in them steers it."""
    drawn = lines_of(replace(snapshot(workers, 6), health="a\x1b]0;b\x07"), columns)
    assert all(len(line) <= columns and line.isprintable() for line in drawn)
    assert drawn[0].startswith("computing")


FRAGMENTED = {"resident_bytes": 3 << 30, "reserved_bytes": 70 << 30, "allocated_bytes": 40 << 30}


def status(state: State, done: int, quarantined: int = 0) -> Status:
    """Of one output with 10 chunks."""
    reasons = (BadReason("crashed", "it died", quarantined),) if quarantined else ()
    listed_in = "w/a.quarantined.jsonl" if quarantined else ""
    output = OutputStatus(
        100, 10 * done, 10, done, quarantined, done == 10, 100, reasons, "", listed_in
    )
    return Status(state, 77, {"a": output}, {"committed": done}, 12.0, None)


@pytest.mark.parametrize(
    ("now", "ending", "lines"),
    [
        (
            status(State.RUNNING, 3),
            None,
            [
                "running (pid 77): computing, 13 min so far",
                "  a: 30 %, 30 of 100 rows, 3 of 10 chunks",
                "  12 rows/s, about 11 min left",
                "  CPU: a chunk 4, computing, 7 of 100 texts",
                "  attempts: 3 committed",
                "  all is well",
                "  to follow it: chunkvisor status --watch w",
            ],
        ),
        (
            status(State.STOPPED, 3),
            None,
            [
                "stopped: its process was killed, the machine went down, or the disk was full; "
                "finished work is kept",
                "  a: 30 %, 30 of 100 rows, 3 of 10 chunks",
                "  attempts: 3 committed",
                "  to continue: run the same command again",
            ],
        ),
        (
            replace(
                status(State.STOPPED, 10),
                command="cd /a && chunkvisor run b.yaml",
                began_at=T0,
                told_at=T0 + 125,
            ),
            130,
            [
                "stopped by Ctrl-C (SIGINT); finished work is kept",
                "  a: 100 %, 100 of 100 rows, 10 of 10 chunks",
                "  attempts: 10 committed",
                f"  began {human_moment(T0)}, ended {human_moment(T0 + 125)}, after 2 min",
                "  to continue: run the same command again",
                "  the command: cd /a && chunkvisor run b.yaml",
            ],
        ),
        (
            replace(
                status(State.STOPPED, 3),
                attempts={"committed": 3, "gpu_oom": 1},
                devices={"GPU 0": DeviceTimes(memory=FRAGMENTED)},
            ),
            None,
            [
                "stopped: its process was killed, the machine went down, or the disk was full; "
                "finished work is kept",
                "  a: 30 %, 30 of 100 rows, 3 of 10 chunks",
                "  GPU 0: torch reserved 70.0 GiB of the GPU's memory and allocated at most 40.0 GiB "
                "of it: the rest is in pieces",
                "  set env: {PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True}",
                "  attempts: 3 committed, 1 gpu_oom",
                "  to continue: run the same command again",
            ],
        ),
        (
            status(State.COMPLETE, 10, 2),
            3,
            [
                "complete, but 2 rows have no vector",
                "  a: 100 %, 100 of 100 rows, 10 of 10 chunks, 2 rows without a vector",
                "  attempts: 10 committed",
                "  a: all 2 for the same reason: crashed: it died",
                "  which rows: w/a.quarantined.jsonl",
                "  to try them again: chunkvisor retry w, then run again",
                "  see: chunkvisor explain quarantine",
            ],
        ),
    ],
)
def test_status_screen(now: Status, ending: int | None, lines: list[str]) -> None:
    """At a glance: the state, how far, how long, whether to worry, and what to do."""
    snapshot = replace(
        WORKING, state=RunState(ending=Halted(ending) if ending is not None else None)
    )
    assert status_screen(now, snapshot, Path("w")) == lines
