"""The journal, and whoever follows it."""

import json
from pathlib import Path

import pytest

from chunkvisor.events import journal as journals
from chunkvisor.events.event import (
    AttemptFailed,
    AttemptStarted,
    ChunkCommitted,
    ChunkSplit,
    Event,
    Go,
    Halted,
    Invoked,
    OutputOpened,
    PartCommitted,
    RunEnded,
    RunStarted,
    WorkerEnded,
)
from chunkvisor.events.journal import Journal, Tail, read_events
from chunkvisor.events.state import RunState
from chunkvisor.show.status import Follower, read_status
from chunkvisor.store.layout import Layout

RUN: list[Event] = [
    Invoked("w", command="chunkvisor run c.yaml"),
    AttemptStarted("a", 0, 1, pid=100),
    Go("a", 0, 1, rows=32),
    AttemptFailed("a", 0, 1, "crashed", "no"),
    WorkerEnded("a", 1, 1, busy_s=0.25, texts=10, tokens=99),
    ChunkCommitted("a", 1, 10, 10, 1, 2, True, 40.0, 99),
]
LONG: list[Event] = [
    RunStarted("w", "cuda:0", ("GPU-1",), outputs=("a", "b")),
    OutputOpened("b", 10, 10, 1),
    AttemptStarted("b", 0, 1, pid=100),
    Go("b", 0, 1, rows=32),
    PartCommitted("b", 0, 0, 5, 5, 50),
    ChunkSplit("b", 0, texts=4),
    AttemptStarted("b", 0, 2, pid=100),
]
"""What leaves something in every part of the state."""


def note(text: str) -> bytes:
    """A line of the journal."""
    return b'{"t":1,"event":"note","text":"%s"}\n' % text.encode()


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A folder for a journal."""
    Layout(tmp_path).hidden.mkdir()
    return Layout(tmp_path)


def write(layout: Layout, run: str, events: list[Event]) -> Journal:
    """A run that tells these events."""
    journal = Journal(layout.events, run)
    for event in events:
        journal.write(event)
    journal.close()
    return journal


def test_runs_follow_each_other_line_by_line(layout: Layout) -> None:
    """A torn last line costs nothing but itself, and a new run knows what all runs before it add up
    to.
    """
    for run in ("one", "two", "three"):
        journal = write(layout, run, RUN)
        with open(layout.events, "ab") as file:
            file.write(b'{"t": 1, "ru' if run == "two" else b"")
    assert [
        line["run"] for line in map(json.loads, layout.events.read_text().splitlines()[:12])
    ] == [*["one"] * 6, *["two"] * 6]
    assert [each.run for each in read_events(layout.events)] == [
        *["one"] * 6,
        *["two"] * 6,
        *["three"] * 6,
    ]
    assert journal.state.attempts_before == {"committed": 2, "crashed": 2}
    assert journal.state.attempts == {"committed": 1, "crashed": 1}
    assert journal.state.device_times["0"].texts == 30


def test_news(layout: Layout) -> None:
    """Only whole lines count, each once, and of a long story the last few; a shorter journal is
    read from its start.
    """
    follower = Follower(layout)

    def news() -> list[str]:
        follower.refresh()
        return [each.event.line for each in follower.news]

    layout.events.write_bytes(b"".join(note(f"n{number}") for number in range(50)))
    assert news() == ["n45", "n46", "n47", "n48", "n49"]
    layout.events.write_bytes(
        note("a") + b'nonsense\n{"event":5,"t":1}\n' + note("b") + b"\n" + note("c")[:20]
    )
    assert news() == ["a", "b"]
    assert news() == []
    with layout.events.open("ab") as file:
        file.write(note("c")[20:])
    assert news() == ["c"]
    layout.events.write_bytes(note("d"))
    assert news() == ["d"]
    assert not follower.alive


@pytest.fixture
def long(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> RunState:
    """A journal that is long for its sums; what all of it adds up to."""
    monkeypatch.setattr(journals, "_SUMS_EVERY_BYTES", 3000)
    for number in range(20):
        write(layout, str(number), [*RUN, *LONG, Halted(75, "x", outcome="hung")])
    write(layout, "last", RUN * 12)
    return write(layout, "last", LONG).state


def test_a_reader_of_a_long_journal_begins_at_sums(layout: Layout, long: RunState) -> None:
    """However long a journal is, a reader begins close to its end, and knows what all of it adds up
    to.
    """
    tail = Tail(layout.events)
    assert tail.offset > layout.events.stat().st_size - 3500
    assert [each.event for each in tail.read_new()] == LONG
    everything = RunState()
    for entry in read_events(layout.events):
        everything.apply(entry.event, entry.t)
    assert tail.state == long == everything
    assert everything.attempts_before["crashed"] == 31


@pytest.mark.parametrize(
    ("whole", "damaged"),
    [
        ('"wanted":[', '"wanted":5,"x":['),
        ('"offset":', '"offset":9'),
        ('"state":{', '"state":['),
        ('{"offset"', ""),
        ('"points":[', '"points":[[1],'),
        ('"last_event_s":', '"last_event_s":NaN,"x":'),
    ],
)
def test_damaged_sums(layout: Layout, long: RunState, whole: str, damaged: str) -> None:
    """Without sums, or with those of another journal, the journal is read from its start."""
    path = layout.events.with_suffix(".sums")
    assert whole in path.read_text()
    path.write_text(path.read_text().replace(whole, damaged))
    tail = Tail(layout.events)
    assert tail.offset == 0
    assert list(tail.read_new())
    assert tail.state == long


def test_another_journal_in_its_place(layout: Layout, long: RunState) -> None:
    """Who follows a workdir that is made anew begins anew: nothing of the old journal counts."""
    tail = Tail(layout.events)
    layout.events.unlink()
    new = write(layout, "new", RUN)

    assert [each.event for each in tail.read_new()] == RUN

    assert tail.state == new.state != long


def test_phases_that_nobody_knows(layout: Layout) -> None:
    """A damaged journal may have other phases, and times that are none: status says what it can."""
    times = {"import": 2.0, "another": 3.0, "forward": float("nan"), "tokenize": 1e308}
    write(
        layout,
        "one",
        [*RUN, ChunkCommitted("a", 1, 10, 10, 1, 2, True, 40.0, 99, times), RunEnded(0)],
    )
    layout.hidden.chmod(0o700)
    _, lines = read_status(layout.workdir)
    assert "  all workers together: importing the encoder's packages 2 s; another 3 s" in lines
