"""The journal: how a reader finds out at its end what all of it comes to."""

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from chunkvisor.events import journal as journal_module
from chunkvisor.events.fold import Fold
from chunkvisor.events.journal import Journal, newest_mark, read_events, read_so_far
from chunkvisor.events.sofar import SoFar
from chunkvisor.observe.follow import Follower

COUNT = 60
DULL = {"ending", "slice", "_nodes"}
"""Of a run that has ended, of a slice, of a cluster: the story here is of none."""


def story(chunks: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a run tells of so many chunks, with some trouble."""
    yield "invoked", {"workdir": "w", "invocation": "001_x", "pid": 1}
    yield "run_started", {"workdir": "w", "device": "cpu", "outputs": ["a"], "model": "m"}
    counts = {"rows": 10 * chunks, "distinct": 10 * chunks, "chunks": chunks, "chunks_done": 0, "texts_done": 0}
    yield "output_opened", {"output": "a", "chunk_size": 10, **counts}
    for chunk in range(chunks):
        place = {"output": "a", "chunk": chunk, "attempt": 1}
        yield "attempt_started", {**place, "pid": 100 + chunk, "device": chunk % 2}
        yield "go", {**place, "rows": 32, "tokens": None}
        if chunk % 7 == 3:
            yield "attempt_failed", {**place, "outcome": "crashed", "reason": 'it said "event": "so_far"'}
            yield "chunk_split", {"output": "a", "chunk": chunk, "texts": 10, "parts": 2}
            continue
        figures = {"texts": 10, "tokens": 99, "busy_s": 0.25, "idle_s": 0.01, "startup_s": 0.1}
        yield "worker_ended", {**place, "returncode": 0, "device": chunk % 2, **figures}
        done = {"chunks_done": chunk + 1, "texts_done": 10 * chunk + 10, "texts": 10, "tokens": 99}
        yield "chunk_committed", {**place, **done, "attempt_ok": True, "texts_per_s": 40.0, "eta_s": 1.5}
    yield "waiting", {"delay_s": 5, "reason": "the hub"}


def sums(found: SoFar) -> dict[str, Any]:
    """As JSON has it."""
    content: dict[str, Any] = json.loads(json.dumps(found.to_json()))
    return content


def from_the_start(path: Path) -> dict[str, Any]:
    """What a reader finds who reads every event."""
    found = SoFar()
    for event in read_events(path):
        found.feed(event)
    return sums(found)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal of two runs; the first left half a line. It is summed up every kilobyte."""
    monkeypatch.setattr(journal_module, "_EVERY_BYTES", 1000)
    monkeypatch.setattr(journal_module, "_SHARE", 0)
    path = tmp_path / "events.jsonl"
    for run in ("first", "second"):
        journal = Journal(path, run)
        for event, details in story(COUNT):
            journal.write(event, **details)
        journal.close()
        with path.open("ab") as file:
            file.write(b'{"t": 1, "event": "chunk_com')
    return path


def marks(path: Path) -> list[int]:
    """Numbers of the lines that sum up."""
    return [number for number, line in enumerate(path.read_bytes().splitlines()) if b'"event": "so_far"' in line]


def test_the_end_tells_all(path: Path) -> None:
    """Reading the end of a long journal gives the same as reading all of it, over several runs."""
    assert len(marks(path)) > 20
    found, offset = read_so_far(path)
    assert 0 < path.stat().st_size - offset < 5000
    assert sums(found) == from_the_start(path)
    assert found.tally.attempts == {"committed": 2 * 51, "crashed": 2 * 9}
    assert {number: device.texts for number, device in found.tally.devices.items()} == {"0": 260, "1": 250}


def test_every_prefix_tells_its_own(path: Path) -> None:
    """Wherever a run is killed, even within a line that sums up, the rest of the journal says what came before."""
    data = path.read_bytes()
    for cut in range(0, len(data), 1999):
        path.write_bytes(data[:cut])
        assert sums(read_so_far(path)[0]) == from_the_start(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line[: len(line) // 2],
        lambda line: line.replace(b'"attempts": {', b'"attempts": {"x": "y", '),
        lambda line: line.replace(b'"points": [[', b'"points": [[1.0], ['),
        lambda line: b'{"t": 1, "event": "so_far"}',
        lambda line: b'{"t": 1, "event": "so_far", ' + b"[" * 5000,
        lambda line: line + b"x" * 5000,
    ],
)
def test_damaged_sums_are_passed_over(path: Path, damage: Any) -> None:
    """A line that sums up but is torn, altered or nonsense is as if it were not there; an earlier one serves."""
    lines = path.read_bytes().splitlines()
    for number in marks(path)[-2:]:
        lines[number] = damage(lines[number])
    path.write_bytes(b"\n".join(lines))
    _, offset = newest_mark(path)
    assert offset > 0
    assert sums(read_so_far(path)[0]) == from_the_start(path)


def test_a_journal_without_sums(path: Path) -> None:
    """One that an older version wrote is read from its start, and summed up by the next run's first event."""
    lines = path.read_bytes().splitlines(keepends=True)
    without = set(range(len(lines))) - set(marks(path))
    path.write_bytes(b"".join(lines[number] for number in sorted(without)))
    assert newest_mark(path)[1] == 0
    whole = from_the_start(path)
    assert sums(read_so_far(path)[0]) == whole
    journal = Journal(path, "third")
    journal.write("note", text="here")
    journal.close()
    assert newest_mark(path)[1] == path.stat().st_size
    assert sums(read_so_far(path)[0]) == from_the_start(path)


def test_nothing_is_left_out(path: Path) -> None:
    """What is written down of the view of a run has all that the view is made of, whatever is added to it."""
    fold = read_so_far(path)[0].fold
    again = SoFar.restored(json.dumps(read_so_far(path)[0].to_json()))
    assert again is not None
    for each in fields(Fold):
        assert getattr(again.fold, each.name) == getattr(fold, each.name), each.name
        assert each.name in DULL or getattr(fold, each.name) != getattr(Fold(), each.name), (
            f"the story lacks {each.name}"
        )


def test_follower_reads_the_end(path: Path) -> None:
    """Who looks on sees workers, rates and the last news of the run, though he has read but the end of its story."""
    (path.parent / "outputs").mkdir()
    follower = Follower(path.parent)
    snapshot = follower.look()
    assert snapshot.chunks == COUNT
    assert snapshot.chunks_here == 51
    assert [words for _, _, words in follower.news][-1] == "nothing is started for 5 s: the hub"
    assert len(follower.news) == 5
    assert follower.begun_anew() == [("a", chunk) for chunk in range(COUNT) if chunk % 7 == 3]


def test_what_was_summed_up_is_not_read_again(path: Path) -> None:
    """All that comes before the last sums may be gone: nothing of it is read, however much it was."""
    before, follower = sums(read_so_far(path)[0]), Follower(path.parent).look()
    _, offset = newest_mark(path)
    data = path.read_bytes()
    last = data.rindex(b"\n", 0, offset - 1) + 1
    path.write_bytes(b"x" * (last - 1) + data[last - 1 :])
    assert sums(read_so_far(path)[0]) == before
    assert Follower(path.parent).look() == follower
