"""Whoever looks at a folder: the growing journal, and the screen of `chunkvisor status`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from chunkvisor.assemble.badrows import BadReason
from chunkvisor.events.event import Halted
from chunkvisor.events.state import AttemptKey, RunState
from chunkvisor.show.snapshot import DeviceView, Snapshot, WorkerView
from chunkvisor.show.status import Follower, OutputStatus, State, Status, status_screen
from chunkvisor.store.layout import Layout
from chunkvisor.units import human_moment


def note(text: str) -> bytes:
    """A line of the journal."""
    return b'{"t":1,"event":"note","text":"%s"}\n' % text.encode()


def test_news(tmp_path: Path) -> None:
    """Only whole lines count, each once; damaged ones are passed over; a shorter journal is read from its start."""
    layout = Layout(tmp_path)
    layout.hidden.mkdir()
    follower = Follower(layout)

    def news() -> list[str]:
        follower.look()
        return [line.words for line in follower.news]

    assert news() == []
    layout.events.write_bytes(note("a") + b'nonsense\n{"event":5,"t":1}\n' + note("b") + b"\n" + note("c")[:20])
    assert news() == ["a", "b"]
    assert news() == []
    with layout.events.open("ab") as file:
        file.write(note("c")[20:])
    assert news() == ["c"]
    layout.events.write_bytes(note("d"))
    assert news() == ["d"]


def test_follower_begins_with_the_last_news(tmp_path: Path) -> None:
    """Of a long story only the last few lines are told at the first look, and none of them twice."""
    Layout(tmp_path).hidden.mkdir()
    Layout(tmp_path).events.write_text(
        "".join(json.dumps({"t": number + 1, "event": "note", "text": f"n{number}"}) + "\n" for number in range(50))
    )
    follower = Follower(Layout(tmp_path))
    follower.look()
    assert [line.words for line in follower.news] == ["n45", "n46", "n47", "n48", "n49"]
    follower.look()
    assert follower.news == []
    assert not follower.alive


T0 = 1_800_000_000.0
WORKING = Snapshot(
    RunState(),
    doing="computing",
    elapsed_s=754,
    health="all is well",
    devices=(DeviceView("CPU", (WorkerView(AttemptKey("a", 4, 1), "computing", True, 100, 7),)),),
    rows_per_s=12,
    eta_s=680,
)


def status(state: State, done: int, quarantined: int = 0) -> Status:
    """Of one output with 10 chunks."""
    reasons = (BadReason("crashed", "it died", quarantined),) if quarantined else ()
    listed_in = "w/a.json" if quarantined else ""
    output = OutputStatus(100, 10 * done, 10, done, quarantined, done == 10, 100, reasons, "", listed_in)
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
                "stopped: its process was killed, the machine went down, or the disk was full; finished work is kept",
                "  a: 30 %, 30 of 100 rows, 3 of 10 chunks",
                "  attempts: 3 committed",
                "  to go on: run the same command again",
            ],
        ),
        (
            replace(status(State.STOPPED, 10), command="cd /a && chunkvisor run b.yaml", began_at=T0, told_at=T0 + 125),
            130,
            [
                "stopped: it was interrupted (Ctrl-C, SIGINT)",
                "  a: 100 %, 100 of 100 rows, 10 of 10 chunks",
                "  attempts: 10 committed",
                f"  began {human_moment(T0)}, ended {human_moment(T0 + 125)}, 2 min 5 s later",
                "  to go on: run the same command again",
                "  the command: cd /a && chunkvisor run b.yaml",
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
                "  which rows: w/a.json",
                "  to try them again: chunkvisor retry w, then run again",
                "  see: chunkvisor explain quarantine",
            ],
        ),
    ],
)
def test_status_screen(now: Status, ending: int | None, lines: list[str]) -> None:
    """At a glance: the state, how far, how long, whether to worry, and what to do."""
    seen = replace(WORKING, state=RunState(ending=Halted(ending) if ending is not None else None))
    assert status_screen(now, seen, Path("w")) == lines
