"""The view of a run fits into any terminal, and can be read without colours."""

from dataclasses import replace

import pytest

from chunkvisor.events.event import Severity
from chunkvisor.show.lines import progress_line
from chunkvisor.show.sensors import GpuReading
from chunkvisor.show.snapshot import DeviceState, OutputState, RunHealth, Snapshot, WorkerState
from chunkvisor.show.terminal import Room, view

GIB = 1 << 30


def device(number: int) -> DeviceState:
    """A GPU with one worker that computes, and one prepared ahead."""
    computing = WorkerState("titles", number, 1, "computing", True, 1000, 510, 32, 3 * GIB // 2)
    ahead = WorkerState("titles", number + 8, 1, "ready", False, 1000)
    return DeviceState(f"GPU {number}", (computing, ahead), GpuReading(number, 14 * GIB, 80 * GIB, 97.0, 61.0, 412.0))


def snapshot(devices: int = 1, outputs: int = 1) -> Snapshot:
    """A run in full swing."""
    return Snapshot(
        doing="computing",
        elapsed_s=754,
        health=RunHealth(Severity.CARE, "2 attempts failed and are tried again; nothing is lost"),
        outputs=tuple(OutputState(f"out{number}", 17_666, 0.53, 18, 9) for number in range(outputs)),
        devices=tuple(device(number) for number in range(devices)),
        rows_per_s=24.2,
        tokens_per_s=1203.4,
        eta_s=680,
    )


def lines_of(what: Snapshot, columns: int, lines: int = 24, *, ascii_only: bool = False) -> list[str]:
    """The view as plain text."""
    return [line.plain for line in view(what, Room(columns, lines, ascii_only)) if line.plain]


def test_80_columns() -> None:
    """State, times, bar, figures, the device with everything that matters, and whether to worry: in 80 columns."""
    bar, device_bar = "━" * 39 + "─" * 35, "━" * 6 + "─" * 6
    assert lines_of(snapshot(), 80) == [
        "computing, 13 min so far, about 11 min left",
        f"{bar}  53 %",
        "9,362 of 17,666 rows, 24 rows/s, 1,203 tokens/s, 9 of 18 chunks",
        f"GPU 0 chunk 0    computing  {device_bar}  51 %  batch 32  14/80 GiB  RAM 1.5 GiB",
        "      next: chunk 8 ready",
        "note: 2 attempts failed and are tried again; nothing is lost",
    ]


def test_a_long_wait_is_told_whole() -> None:
    """What is waited for, and what to do about it, is broken between words; where there is no room, it is cut."""
    words = "waiting, next try in 30 s: the model hub cannot be reached. A model folder on this machine needs no hub"
    waiting = replace(snapshot(), health=RunHealth(Severity.CARE, words))
    assert lines_of(waiting, 80)[-2:] == [
        "note: waiting, next try in 30 s: the model hub cannot be reached. A model folder",
        "      on this machine needs no hub",
    ]
    assert lines_of(waiting, 80, 8)[-1].endswith("A model folde…")


def test_160_columns() -> None:
    """With more room there is more to see of the device."""
    (line,) = [line for line in lines_of(snapshot(), 160) if line.startswith("GPU 0")]
    for words in ("510 of 1,000 texts", "batch 32", "14/80 GiB", "RAM 1.5 GiB", "97 % busy", "61 °C", "412 W"):
        assert words in line


@pytest.mark.parametrize("columns", [20, 30, 40, 60, 79, 80, 100, 119, 120, 160, 300])
@pytest.mark.parametrize("lines", [2, 5, 10, 24, 50])
@pytest.mark.parametrize("devices", [0, 1, 8, 16])
def test_it_always_fits(columns: int, lines: int, devices: int) -> None:
    """No line is wider than the terminal and there are no more lines than it has, whether to worry among them."""
    for outputs in (0, 1, 6):
        drawn = view(snapshot(devices, outputs), Room(columns, lines))
        assert len(drawn) <= lines
        assert all(line.cell_len <= columns for line in drawn)
        assert any(line.plain.startswith("computing") for line in drawn[:2])


def test_a_full_bar_keeps_its_distance() -> None:
    """100 % does not touch the bar before it, and a second worker that computes is counted."""
    computing = WorkerState("titles", 0, 1, "writing", True, 100, 100, 32)
    full = replace(snapshot(), devices=(DeviceState("CPU", (computing, replace(computing, chunk=1))),))
    (line,) = [line for line in lines_of(full, 80) if line.startswith("CPU")]
    assert "━ 100 %  batch 32  and 1 more" in line
    done = replace(snapshot(), outputs=(OutputState("titles", 10, 1.0, 1, 1),))
    assert lines_of(done, 80)[1].endswith("━ 100 %")


def test_a_time_that_the_rate_of_rows_does_not_give_says_so() -> None:
    """Before a chunk is done the time left is reckoned from tokens, and the line says so."""
    early = replace(snapshot(), by_tokens=True)
    assert lines_of(early, 80)[0] == "computing, 13 min so far, about 11 min left by tokens"
    assert progress_line(early).endswith(", about 11 min left by tokens")


def test_eight_devices_in_24_lines() -> None:
    """With eight GPUs each has its line; what is prepared ahead makes way."""
    drawn = lines_of(snapshot(8), 80, 14)
    assert sum(line.startswith("GPU") for line in drawn) == 8
    assert not [line for line in drawn if "next" in line]
    assert "and 4 more devices" in lines_of(snapshot(8), 80, 9)


def test_several_outputs() -> None:
    """Each output has its bar, where there is more than one."""
    drawn = lines_of(snapshot(1, 3), 80)
    assert sum("17,666 rows" in line and line.startswith("out") for line in drawn) == 3


def test_ascii() -> None:
    """A terminal that knows no UTF-8 gets nothing else."""
    for line in lines_of(snapshot(2, 2), 80, ascii_only=True):
        assert line.isascii()


def test_nothing_is_known_yet() -> None:
    """Before there are rows, it says what it does, for how long, and that all is well."""
    early = Snapshot("reading the source of titles", 42, RunHealth(Severity.NEWS, "all is well"))
    assert lines_of(early, 80) == ["reading the source of titles, 42 s so far", "all is well"]


def test_control_characters_do_not_come_through() -> None:
    """A name or a message with an escape sequence steers no terminal."""
    evil = replace(snapshot(), doing="reading \x1b[2J", health=RunHealth(Severity.NEWS, "a\x1b]0;b\x07"))
    assert all(line.isprintable() for line in lines_of(evil, 80))
