"""The view of a run fits into any terminal, and can be read without colors."""

from dataclasses import replace

import pytest

from chunkvisor.events.event import Severity
from chunkvisor.events.state import AttemptKey, OutputProgress, RunState
from chunkvisor.show.snapshot import DeviceView, Snapshot, WorkerView
from chunkvisor.show.terminal import view

GIB = 1 << 30
READING = {"memory_used_bytes": 14 * GIB, "memory_total_bytes": 80 * GIB, "utilization": 97.0, "power_w": 412.0}


def device(number: int) -> DeviceView:
    """A GPU with one worker that computes, and one prepared ahead."""
    computing = WorkerView(AttemptKey("titles", number, 1), "computing", True, 1000, 510, 32, 3 * GIB // 2)
    ahead = WorkerView(AttemptKey("titles", number + 8, 1), "ready", False, 1000)
    return DeviceView(f"GPU {number}", (computing, ahead), READING)


def snapshot(devices: int = 1, outputs: int = 1) -> Snapshot:
    """A run in full swing."""
    progress = OutputProgress(17_666, 17_666, 18, 9, texts_done=9_362)
    return Snapshot(
        state=RunState(chunks_here=9),
        doing="computing",
        elapsed_s=754,
        health="2 attempts failed and are tried again; nothing is lost",
        severity=Severity.CARE,
        outputs={f"out{number}": progress for number in range(outputs)},
        devices=tuple(device(number) for number in range(devices)),
        rows_per_s=24.2,
        tokens_per_s=1203.4,
        eta_s=680,
    )


def lines_of(what: Snapshot, columns: int, lines: int = 24) -> list[str]:
    """The view as plain text."""
    return [line.plain for line in view(what, columns, lines)]


def test_80_columns() -> None:
    """State, times, bar, figures, the device with everything that matters, and whether to worry: in 80 columns."""
    assert lines_of(snapshot(), 80) == [
        "computing, 13 min so far",
        f"{'━' * 39}{'─' * 35}  52 %",
        "9,362 of 17,666 rows, 24 rows/s, 1,203 tokens/s, about 11 min left",
        f"GPU 0 chunk 0    computing  {'━' * 6}{'─' * 6}  51 %  batch 32  14/80 GiB  RAM 1.5 GiB",
        "      next: chunk 8 ready",
        "note: 2 attempts failed and are tried again; nothing is lost",
    ]
    (wide,) = [line for line in lines_of(snapshot(), 160) if line.startswith("GPU 0")]
    assert "97 % busy  412 W" in wide


def test_a_long_wait_is_told_whole() -> None:
    """What is waited for, and what to do about it, is broken between words; without room, it is cut."""
    words = "waiting, next try in 30 s: the model hub cannot be reached. A model folder on this machine needs no hub"
    waiting = replace(snapshot(), health=words)
    assert lines_of(waiting, 80)[-2:] == [
        "note: waiting, next try in 30 s: the model hub cannot be reached. A model folder",
        "      on this machine needs no hub",
    ]
    assert len([line for line in lines_of(waiting, 80, 8) if "waiting" in line or "needs no hub" in line]) == 1


@pytest.mark.parametrize("columns", [20, 40, 79, 120, 300])
@pytest.mark.parametrize("lines", [2, 5, 10, 24, 50])
@pytest.mark.parametrize("devices", [0, 1, 16])
def test_it_always_fits(columns: int, lines: int, devices: int) -> None:
    """No line is wider than the terminal and there are no more lines than it has; nothing in them steers it."""
    for outputs in (0, 1, 6):
        drawn = view(replace(snapshot(devices, outputs), health="a\x1b]0;b\x07"), columns, lines)
        assert len(drawn) <= lines
        assert all(line.cell_len <= columns and line.plain.isprintable() for line in drawn)
        assert any(line.plain.startswith("computing") for line in drawn[:2])


def test_short_of_room() -> None:
    """With eight GPUs each has its line; what is prepared ahead makes way, and then devices are counted."""
    drawn = lines_of(snapshot(8), 80, 14)
    assert sum(line.startswith("GPU") for line in drawn) == 8
    assert not [line for line in drawn if "next" in line]
    assert "and 4 more" in lines_of(snapshot(8), 80, 9)
    assert sum("17,666 rows" in line and line.startswith("out") for line in lines_of(snapshot(1, 3), 80)) == 3


def test_what_is_not_known_yet() -> None:
    """Before there are rows, it says what it does, for how long, and that all is well."""
    reading = Snapshot(RunState(), "reading the source of titles", 42, "all is well")
    assert lines_of(reading, 80) == ["reading the source of titles, 42 s so far", "all is well"]
