"""The journal: how a reader finds out at its end what all of it comes to."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from chunkvisor.events import journal as journal_module
from chunkvisor.events.event import (
    AttemptFailed,
    AttemptStarted,
    BatchesKept,
    ChunkCommitted,
    ChunkSplit,
    Event,
    Go,
    Invoked,
    Note,
    OutputOpened,
    RunStarted,
    Waiting,
    WorkerEnded,
)
from chunkvisor.events.journal import Journal, Tail, read_events
from chunkvisor.events.state import RunState
from chunkvisor.show.status import Follower
from chunkvisor.store.layout import Layout

COUNT = 60


def story(chunks: int) -> Iterator[Event]:
    """What a run tells of so many chunks, with some trouble."""
    yield Invoked("w", "001_x", pid=1, command="chunkvisor run c.yaml")
    yield RunStarted("w", "cpu", model="m", outputs=("a",))
    yield OutputOpened("a", 10 * chunks, 10 * chunks, chunks, 10)
    for chunk in range(chunks):
        yield AttemptStarted("a", chunk, 1, pid=100 + chunk, device=chunk % 2)
        yield Go("a", chunk, 1, rows=32)
        if chunk % 7 == 3:
            yield AttemptFailed("a", chunk, 1, "crashed", 'it said "event": "run_state"')
            yield BatchesKept("a", chunk, 3)
            yield ChunkSplit("a", chunk, texts=10, parts=2)
            continue
        yield WorkerEnded("a", chunk, 1, 0, chunk % 2, startup_s=0.1, idle_s=0.01, busy_s=0.25, texts=10, tokens=99)
        yield ChunkCommitted("a", chunk, 10, 10 * chunk + 10, chunk + 1, chunks, True, 40.0, 1.5, 99)
    yield Waiting(5, "the hub")


def sums(found: RunState) -> dict[str, Any]:
    """As JSON has it."""
    content: dict[str, Any] = json.loads(json.dumps(asdict(found)))
    return content


def from_the_start(path: Path) -> dict[str, Any]:
    """What a reader finds who reads every event."""
    found = RunState()
    for entry in read_events(path):
        found.apply(entry.event, entry.t)
    return sums(found)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal of two runs; the first left half a line. It is summed up every kilobyte."""
    monkeypatch.setattr(journal_module, "_EVERY_BYTES", 1000)
    monkeypatch.setattr(journal_module, "_SHARE", 0)
    path = tmp_path / ".chunkvisor" / "events.jsonl"
    path.parent.mkdir()
    for run in ("first", "second"):
        journal = Journal(path, run)
        for event in story(COUNT):
            journal.write(event)
        journal.close()
        with path.open("ab") as file:
            file.write(b'{"t": 1, "event": "chunk_com')
    return path


def read_state(path: Path) -> tuple[RunState, int]:
    """What a reader finds who begins at the last sums, and where these end."""
    tail = Tail(path)
    offset = tail.offset
    tail.read()
    return tail.state, offset


def newest_state(path: Path) -> tuple[RunState, int]:
    """The last sums, and where they end."""
    tail = Tail(path)
    return tail.state, tail.offset


def marks(path: Path) -> list[int]:
    """Numbers of the lines that sum up."""
    return [number for number, line in enumerate(path.read_bytes().splitlines()) if b'"event": "run_state"' in line]


def test_the_end_tells_all(path: Path) -> None:
    """Reading the end of a long journal gives the same as reading all of it, over several runs."""
    assert len(marks(path)) > 20
    found, offset = read_state(path)
    assert 0 < path.stat().st_size - offset < 5000
    assert sums(found) == from_the_start(path)
    assert found.attempts_before == found.attempts == {"committed": 51, "crashed": 9}
    assert {number: times.texts for number, times in found.device_times.items()} == {"0": 260, "1": 250}


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line[: len(line) // 2],
        lambda line: line.replace(b'"attempts": {', b'"attempts": {"x": "y", '),
        lambda line: line.replace(b'"points": [[', b'"points": [[1.0], ['),
        lambda line: b'{"t": 1, "event": "run_state"}',
        lambda line: line + b"x" * 5000,
    ],
)
def test_damaged_sums_are_passed_over(path: Path, damage: Any) -> None:
    """A line that sums up but is torn, altered or nonsense is as if it were not there; an earlier one serves."""
    lines = path.read_bytes().splitlines()
    for number in marks(path)[-2:]:
        lines[number] = damage(lines[number])
    path.write_bytes(b"\n".join(lines))
    _, offset = newest_state(path)
    assert offset > 0
    assert sums(read_state(path)[0]) == from_the_start(path)


def test_follower_reads_the_end(path: Path) -> None:
    """Who looks on sees workers, rates and the last news of the run, though he has read but the end of its story."""
    (path.parent / "outputs").mkdir()
    follower = Follower(Layout(path.parent.parent))
    snapshot = follower.look()
    assert snapshot.total("chunks") == COUNT
    assert snapshot.state.chunks_here == 51
    assert [line.words for line in follower.news][-1] == "waiting: the hub"
    assert len(follower.news) == 5


def test_runs_follow_each_other_line_by_line(tmp_path: Path) -> None:
    """A second run begins on the next line, without an empty one between; after a torn line, on a line of its own."""
    where = tmp_path / "events.jsonl"
    for run in ("one", "two"):
        journal = Journal(where, run)
        journal.write(Note("said"))
        journal.close()
    assert [json.loads(line)["run"] for line in where.read_text().splitlines()] == ["one", "two"]
    with open(where, "ab") as file:
        file.write(b'{"t": 1, "ru')
    journal = Journal(where, "three")
    journal.write(Note("said"))
    journal.close()
    assert [entry.run for entry in read_events(where)] == ["one", "two", "three"]
