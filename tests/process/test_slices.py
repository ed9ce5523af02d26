"""Slices: runs that share a workdir without knowing of each other but through its files."""

import contextlib
import errno
import fcntl
import itertools
import json
import os
import signal
import socket
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkvisor.errors import Halt
from chunkvisor.events.event import Severity
from chunkvisor.show.follow import merged
from chunkvisor.show.snapshot import OutputState, RunHealth, Snapshot
from chunkvisor.store.fixed import Plan, read_facts
from chunkvisor.store.layout import Layout
from chunkvisor.store.ledger import Ledger
from chunkvisor.store.lock import opened, take, write_note
from chunkvisor.store.slicelock import hold_workdir, turn
from chunkvisor.store.slices import Slice
from chunkvisor_worker.contract.messages import Facts
from harness import events_in, expected, finish, kill, wait_for
from scripted_workplace import ScriptedWorkplace

TEXTS = ["t0", "t1", "t0", "t2", "t3", "t1", "t4", "t5", "t2"]
"""Three chunks of two texts."""


@pytest.fixture
def place(tmp_path: Path) -> ScriptedWorkplace:
    """Three chunks."""
    return ScriptedWorkplace.make(tmp_path / "place", TEXTS, chunk__size=2)


def assert_whole(place: ScriptedWorkplace) -> None:
    """The final file has the right bytes, and nothing that was half-written lies about."""
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS))
    state = place.workdir / "outputs" / "out"
    assert not (state / "chunks").exists()
    left = [path for path in place.workdir.rglob("*") if path.suffix in {".tmp", ".partial", ".damaged", ".new"}]
    assert not left
    assert not list(state.glob("facts.*.json"))


def start(place: ScriptedWorkplace, which: str, *more: str) -> subprocess.Popen[str]:
    """A slice in a process of its own."""
    return place.start("run", str(place.config_path), "--slice", which, *more)


def events_of(place: ScriptedWorkplace, which: str) -> list[dict[str, Any]]:
    """The slice's journal."""
    return events_in(Layout(place.workdir, Slice.parse(which)).events)


def has_told(place: ScriptedWorkplace, which: str, event: str) -> bool:
    """Whether the event stands in the slice's journal."""
    return any(told["event"] == event for told in events_of(place, which))


def status(place: ScriptedWorkplace) -> dict[str, Any]:
    """What `status --json` says."""
    ended = place.here("status", str(place.workdir), "--json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize("chunks", [0, 1, 2, 7, 8, 9, 1000, 1_000_003])
@pytest.mark.parametrize("count", [1, 2, 8, 13])
def test_shares_cover_every_chunk_once(chunks: int, count: int) -> None:
    """The shares follow one another from the first chunk to the last, and differ by one chunk at most."""
    shares = [Slice(number, count).chunks(chunks) for number in range(1, count + 1)]
    bounds = [0, *(share.stop for share in shares)]
    assert [(share.start, share.stop) for share in shares] == list(itertools.pairwise(bounds))
    assert bounds[-1] == chunks
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0/8", "0/8 is no slice"),
        ("9/8", "9/8 is no slice"),
        ("0/0", "0/0 is no slice"),
        ("x", "'x' is no slice: it is written as 3/8"),
        ("3", "'3' is no slice"),
        ("3/8/1", "is no slice"),
        ("-1/8", "is no slice"),
        ("", "is no slice"),
        ("٣/٨", "is no slice"),
    ],
)
def test_wrong_slices(place: ScriptedWorkplace, text: str, words: str) -> None:
    """What is no slice is a usage error that says how one is written."""
    ended = place.run_here("--slice", text)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert not place.workdir.exists()


def test_from_scratch_is_not_for_slices(place: ScriptedWorkplace) -> None:
    """A slice cannot discard what others have done; the words say what can."""
    ended = place.run_here("--slice", "1/2", "--from-scratch", "--yes")
    assert ended.returncode == 2
    assert "without --slice" in ended.stderr


def test_side_by_side(place: ScriptedWorkplace, tmp_path: Path) -> None:
    """Slices started together each do their share, once; the bytes are those of a run of the whole."""
    alone = place.copy(tmp_path / "alone")
    assert alone.run_here().returncode == 0

    ends = [finish(process) for process in [start(place, f"{number}/3") for number in (1, 2, 3)]]

    assert [end.returncode for end in ends] == [0, 0, 0], [end.stderr for end in ends]
    assert_whole(place)
    assert (place.workdir / "out.npy").read_bytes() == (alone.workdir / "out.npy").read_bytes()
    assert Counter(map(tuple, place.calls())) == {("t0", "t1"): 1, ("t2", "t3"): 1, ("t4", "t5"): 1}
    told = [[event["event"] for event in events_of(place, f"{number}/3")] for number in (1, 2, 3)]
    assert sum(events.count("staging") for events in told) == 1  # the others have waited for it
    assert sum(events.count("output_complete") for events in told) == 1
    assert status(place)["state"] == "complete"
    assert place.here("verify", str(place.workdir)).returncode == 0


@pytest.mark.parametrize("order", ["3/3 1/3 2/3", "2/5 1/5 4/5 3/5 5/5"])
def test_the_last_one_joins(place: ScriptedWorkplace, order: str) -> None:
    """In whatever order slices run, and however many have nothing to do: the one that ends the work joins it."""
    *firsts, last = order.split()
    for which in firsts:
        ended = place.run_here("--slice", which)
        assert ended.returncode == 0, ended.stderr
        assert f"slice {which} is done" in ended.stderr
        assert not (place.workdir / "out.npy").exists()
    stopped = status(place)
    assert stopped["state"] == "stopped"
    assert {each["slice"]: each["state"] for each in stopped["slices"]} == dict.fromkeys(sorted(firsts), "complete")

    assert place.run_here("--slice", last).returncode == 0

    assert_whole(place)
    assert (place.workdir / "report.html").exists()
    again = place.run_here("--slice", firsts[0])
    assert again.returncode == 0
    assert "complete already" in again.stderr


def test_a_slice_of_bad_texts_that_ends_first(place: ScriptedWorkplace) -> None:
    """A slice that ends before anybody knows the dimension leaves its chunk to the last slice, which joins all."""
    for text in ("t0", "t1"):
        place.lay(text, "value_error!")
    ended = place.run_here("--slice", "1/3")
    assert ended.returncode == 3, ended.stderr
    assert place.run_here("--slice", "2/3").returncode == 0
    ended = place.run_here("--slice", "3/3")
    assert ended.returncode == 3, ended.stderr
    bad = [row for row, text in enumerate(TEXTS) if text in ("t0", "t1")]
    assert [each["row"] for each in place.manifest()["quarantined"]] == bad
    vectors, right = place.vectors(), expected(TEXTS)
    good = [row for row in range(len(TEXTS)) if row not in bad]
    np.testing.assert_array_equal(vectors[good], right[good])
    assert np.isnan(vectors[bad]).all()


def test_a_run_of_the_whole_finishes_what_slices_left(place: ScriptedWorkplace) -> None:
    """A run without --slice does what no slice has done, and joins; of what is done nothing is done again."""
    place.lay("t3", "damage!")
    place.write_config("scripted:make", chunk__size=2, recovery__attempts=1)
    assert place.run_here("--slice", "2/3").returncode == 75
    halted = status(place)
    assert halted["state"] == "halted"
    assert halted["message"][0] == "slice 2/3:"
    assert place.run_here("--slice", "3/3").returncode == 0
    place.lift("t3")
    done = len(place.calls())

    ended = place.run_here()

    assert ended.returncode == 0, ended.stderr
    assert_whole(place)
    assert [text for call in place.calls()[done:] for text in call] == ["t0", "t1", "t2", "t3"]


def test_who_may_work_beside_whom(place: ScriptedWorkplace) -> None:
    """While a slice lives, neither the whole, the same slice nor another cut may: 75, naming who holds it."""
    place.lay("t3", "wait_for_release")
    process = start(place, "2/3")
    wait_for(lambda: ["t2", "t3"] in place.calls())

    for arguments, words in (
        ([], f"slice 2/3 with pid {process.pid} on {socket.gethostname()}"),
        (["--slice", "2/3"], f"slice 2/3 with pid {process.pid}"),
        (["--slice", "1/4"], "1/4 is none of the 3 slices that are at work"),
    ):
        refused = place.run_here(*arguments)
        assert refused.returncode == 75, arguments
        assert words in refused.stderr
        assert "chunkvisor status" in refused.stderr
    for command in ("clean", "retry"):
        assert place.here(command, str(place.workdir)).returncode == 75
    live = status(place)
    assert (live["state"], live["pid"]) == ("running", process.pid)
    assert place.run_here("--slice", "3/3").returncode == 0

    (place.folder / "release").touch()
    assert finish(process).returncode == 0
    ended = place.run_here("--slice", "1/1")
    assert ended.returncode == 0, ended.stderr
    assert_whole(place)


def test_slices_wait_for_no_run_of_the_whole(place: ScriptedWorkplace) -> None:
    """A slice is refused while a run of the whole is at work, and the words name that run."""
    place.lay("t3", "wait_for_release")
    process = place.start("run", str(place.config_path))
    wait_for(lambda: ["t2", "t3"] in place.calls())

    refused = place.run_here("--slice", "1/3")

    assert refused.returncode == 75
    assert f"the run with pid {process.pid}" in refused.stderr
    (place.folder / "release").touch()
    assert finish(process).returncode == 0
    assert_whole(place)


def test_killed_and_run_again(place: ScriptedWorkplace) -> None:
    """A slice that is killed goes on where it was; of the slice beside it, no process and no file is touched."""
    place.lay("t1", "wait_for_release")
    place.lay("t3", "kill_both")
    other = start(place, "1/3")
    wait_for(lambda: ["t0", "t1"] in place.calls())
    assert finish(start(place, "2/3")).returncode == -signal.SIGKILL
    shown = place.here("status", str(place.workdir)).stdout
    assert "slice 2/3: stopped" in shown
    assert f"slice 1/3: running on {socket.gethostname()}, pid {other.pid}" in shown

    assert place.run_here("--slice", "2/3").returncode == 0

    assert other.poll() is None
    (place.folder / "release").touch()
    assert finish(other).returncode == 0
    assert Counter(map(tuple, place.calls())) == {("t0", "t1"): 1, ("t2", "t3"): 2}
    assert place.run_here("--slice", "3/3").returncode == 0
    assert_whole(place)


def test_orphans_of_the_same_slice_are_ended(place: ScriptedWorkplace) -> None:
    """What a killed slice has left behind is ended by the next run of it."""
    place.lay("t0", "leave_child")
    assert finish(start(place, "1/3")).returncode == -signal.SIGKILL
    ended = place.run_here("--slice", "1/3")
    assert ended.returncode == 0, ended.stderr
    assert "ended 1 worker left behind by an earlier run" in ended.stderr


SLOW_SOURCE = """
import os, time
from pathlib import Path
from chunkvisor.supervise import begin

stage = begin.stage_table

def slowly(request, folder, on_wait):
    here = Path({folder!r})
    (here / "preparing").write_text(str(os.getpid()))
    while not (here / "prepare").exists():
        on_wait()
        time.sleep(0.01)
    return stage(request, folder, on_wait)

begin.stage_table = slowly
from chunkvisor.cli import main
main()
"""
"""`chunkvisor` whose reading of a source lasts until a file is there."""


@pytest.fixture
def slow(place: ScriptedWorkplace, monkeypatch: pytest.MonkeyPatch) -> ScriptedWorkplace:
    """A place where the one that prepares does not get on until the file `prepare` is there."""
    command = place.command()
    script = SLOW_SOURCE.format(folder=str(place.folder))
    monkeypatch.setattr(place, "command", lambda *arguments: [*command[:2], script, *arguments])
    return place


def test_one_prepares_and_dies(slow: ScriptedWorkplace) -> None:
    """Slices started together wait for the one that prepares; if it is killed, another one does it."""
    slices = {f"{number}/4": start(slow, f"{number}/4") for number in (1, 2, 3, 4)}
    first = int(wait_for(lambda: (slow.folder / "preparing").exists() and (slow.folder / "preparing").read_text()))
    (name,) = [name for name, process in slices.items() if process.pid == first]
    others = [other for other in slices if other != name]
    wait_for(lambda: all(has_told(slow, other, "waiting_for_turn") for other in others))
    (waiting,) = [each for each in events_of(slow, others[0]) if each["event"] == "waiting_for_turn"]
    assert waiting["who"].startswith(f"slice {name} with pid {first}")

    kill(slices[name])
    wait_for(lambda: (slow.folder / "preparing").read_text() not in ("", str(first)))
    (slow.folder / "prepare").touch()

    assert [finish(slices[other]).returncode for other in others] == [0, 0, 0]
    assert slow.run_here("--slice", name).returncode == 0
    assert_whole(slow)
    assert sum(has_told(slow, f"{number}/4", "staged") for number in (1, 2, 3, 4)) == 1


def test_who_waits_names_the_one_that_has_the_turn(tmp_path: Path) -> None:
    """Between two slices that have the turn one after the other, nobody is told the wrong name, or none."""
    layouts = [Layout(tmp_path, Slice(number, 3)) for number in (1, 2, 3)]
    for layout in layouts:
        layout.run.mkdir(parents=True, exist_ok=True)
    told: list[str] = []
    with turn(layouts[0], lambda _seconds: None, told.append):
        pass
    with opened(layouts[1].turn) as fd:
        assert take(fd, fcntl.LOCK_EX)  # slice 2 has it, and has not said so yet
        notes = iter(["", "slice 2/3"])

        def pause(_seconds: float) -> None:
            if (note := next(notes, None)) is not None:
                write_note(fd, note)
            else:
                fcntl.flock(fd, fcntl.LOCK_UN)

        with turn(layouts[2], pause, told.append):
            pass

    assert told == ["slice 2/3"]


def test_a_slice_that_waits_can_be_stopped(slow: ScriptedWorkplace) -> None:
    """A signal ends the wait for another slice's preparation."""
    first = start(slow, "1/2")
    wait_for(lambda: (slow.folder / "preparing").exists())
    second = start(slow, "2/2")
    wait_for(lambda: has_told(slow, "2/2", "waiting_for_turn"))
    second.send_signal(signal.SIGTERM)
    assert finish(second).returncode == 143
    first.send_signal(signal.SIGINT)
    assert finish(first).returncode == 130


def test_rows_without_a_vector(place: ScriptedWorkplace) -> None:
    """A slice with a text that cannot be encoded ends with 3 and names it; so does the one that joins."""
    place.lay("t3", "value_error!")
    bad = place.run_here("--slice", "2/2")
    assert bad.returncode == 3
    assert f"slice 2/2 is done, but 1 text could not be encoded: out row 4 ({place.source}:5)" in bad.stderr
    assert place.run_here("--slice", "1/2").returncode == 3
    assert [row["row"] for row in place.manifest()["quarantined"]] == [4]

    place.lift("t3")
    assert place.here("retry", str(place.workdir)).returncode == 0
    assert place.run_here("--slice", "2/2").returncode == 0
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS))


def test_a_share_without_one_good_text(place: ScriptedWorkplace) -> None:
    """A slice all of whose texts are bad leaves its chunk for the moment in which another has found the dimension."""
    for text in ("t0", "t1"):
        place.lay(text, "value_error!")
    assert place.run_here("--slice", "1/3").returncode == 3
    assert place.run_here().returncode == 3
    assert np.isnan(place.vectors()[[0, 1, 2, 5]]).all()
    assert np.isfinite(place.vectors()[[3, 4, 6, 7, 8]]).all()


def test_a_ledger_of_a_share_leaves_the_rest_alone(tmp_path: Path) -> None:
    """Loading a share removes what is damaged of it, and nothing of others; what it does not own it does not see."""
    layout = Layout(tmp_path).output("out")
    names = [f"chunks/000/{number:06d}-{'f' * 32}.npy" for number in range(6)]
    names += [f"quarantine/{number:06d}.json" for number in range(6)]
    names += [f"attempts/{number:06d}/001/spec.json" for number in range(6)]
    names += [f"parts/{number:06d}/index.json" for number in range(6)]
    for name in names:
        (layout.state / name).parent.mkdir(parents=True, exist_ok=True)
        (layout.state / name).write_text("damaged")

    ledger = Ledger(layout, Plan(12, 2), "f", Slice(2, 3))
    ledger.load()

    assert list(ledger.share) == [2, 3]
    assert {chunk for chunk, _ in ledger.attempt_folders()} == {2, 3}
    assert ledger.taken_apart() == [2, 3]
    gone = {name for name in names if not (layout.state / name).exists()}
    assert {number for number in range(6) for name in gone if f"00000{number}" in name} <= {2, 3}


def test_first_facts_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two slices that find the facts in the same moment one writes them; the other takes them over, or halts."""
    layout = Layout(tmp_path).output("out")
    ledgers = [Ledger(layout, Plan(12, 2), "f", Slice(number, 3)) for number in (1, 2, 3)]
    layout.state.mkdir(parents=True)
    facts = Facts(dimension=8, dtype="float32", max_length=None, versions={"numpy": "1"})
    ledgers[0].fix_facts(facts)
    for ledger, dimension in ((ledgers[1], 8), (ledgers[2], 16)):
        unseen = iter([None])  # when it looks, the facts are not there yet
        monkeypatch.setattr("chunkvisor.store.ledger.read_facts", lambda layout, unseen=unseen: next(unseen, facts))
        found = replace(facts, dimension=dimension, versions={"numpy": "2"})
        with contextlib.nullcontext() if dimension == 8 else pytest.raises(Halt, match="of 8 and of 16 numbers"):
            ledger.fix_facts(found)
        assert ledger.facts == read_facts(layout) == facts
    assert [path.name for path in layout.state.iterdir()] == ["facts.json"]


def test_cuts_do_not_mix(tmp_path: Path) -> None:
    """Slices of another number are refused while one lives, and welcome afterwards."""
    with hold_workdir(Layout(tmp_path, Slice(1, 8)), "a"):
        with hold_workdir(Layout(tmp_path, Slice(2, 8)), "b"), pytest.raises(Halt, match="3/9 is none of the 8 slices"):
            hold_workdir(Layout(tmp_path, Slice(3, 9)), "c").__enter__()
        with pytest.raises(Halt, match="slice 1/8 with pid"):
            hold_workdir(Layout(tmp_path, Slice(1, 8)), "d").__enter__()
    with hold_workdir(Layout(tmp_path, Slice(3, 9)), "e"):
        count = Layout(tmp_path).slice_count
        assert json.loads(count.read_text()) == {"slices": 9, "version": 1}
        count.write_text("9")  # as earlier versions have it
        with hold_workdir(Layout(tmp_path, Slice(4, 9)), "g"):
            pass
        count.write_text(json.dumps({"slices": 9, "version": 2}))
        with pytest.raises(Halt, match="4/9 is none of the other slices"):
            hold_workdir(Layout(tmp_path, Slice(4, 9)), "h").__enter__()
    with hold_workdir(Layout(tmp_path), "f") as before:
        assert set(before) == {"a", "b", "e", "g"}


def test_a_slice_on_another_machine(place: ScriptedWorkplace) -> None:
    """A slice whose process cannot be seen from here is at work as long as its lock is held."""
    assert place.run_here("--slice", "1/3").returncode == 0
    layout = Layout(place.workdir, Slice(1, 3))
    holder = json.loads(layout.lock.read_text())
    layout.lock.write_text(json.dumps({**holder, "host": "elsewhere"}))
    with layout.events.open("a") as journal:
        journal.write(json.dumps({"t": 1, "event": "invoked", "workdir": str(place.workdir), "slice": "1/3"}) + "\n")
        journal.write(json.dumps({"t": 1, "event": "run_started", "outputs": ["out"], "device": "cpu"}) + "\n")
    with opened(layout.lock) as fd:
        assert take(fd, fcntl.LOCK_EX)
        live = status(place)
        assert live["state"] == "running"
        assert [(each["slice"], each["host"], each["state"]) for each in live["slices"]] == [
            ("1/3", "elsewhere", "running")
        ]
        assert "slice 1/3: running on elsewhere" in place.here("status", str(place.workdir)).stdout
    assert status(place)["state"] == "stopped"


def part(
    doing: str, done: int, of: int, rate: float, eta_s: float | None, severity: Severity = Severity.NEWS
) -> Snapshot:
    """What there is to see of a slice."""
    output = OutputState("a", 10 * of, done / of, of, done)
    return Snapshot(doing, 60.0, RunHealth(severity, "words"), (output,), (), rate, 2 * rate, eta_s)


def test_snapshots_add_up() -> None:
    """Rates of the living add up, the slowest says how long it takes, and the worst health is told by its name."""
    sizes = {"a": (160, 16)}
    seen = [
        ("1/3", part("ended", 4, 4, 100.0, None)),
        ("2/3", part("computing", 1, 4, 5.0, 30.0)),
        ("3/3", part("computing", 2, 4, 6.0, 90.0, Severity.CARE)),
    ]
    whole = merged(seen, {"2/3", "3/3"}, sizes)
    assert whole.doing == "computing in 2 slices"
    assert (whole.rows_per_s, whole.tokens_per_s, whole.eta_s) == (11.0, 22.0, 90.0)
    assert (whole.rows, whole.rows_done, whole.chunks, whole.chunks_done) == (160, 70, 16, 7)
    assert whole.health == RunHealth(Severity.CARE, "slice 3/3: words")
    assert merged(seen[1:], {"2/3", "3/3"}, sizes).eta_s is None  # nobody is at the first slice, nor has done it


def test_a_disk_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system has no locks the words say so, and what can be done."""

    def refuse(_fd: int, _operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    for layout in (Layout(tmp_path), Layout(tmp_path, Slice(1, 2))):
        with pytest.raises(Halt, match="no file can be locked") as raised:
            hold_workdir(layout, "a").__enter__()
        assert raised.value.code == 69
        assert "flock" in raised.value.remedy


def test_report_of_slices(place: ScriptedWorkplace) -> None:
    """The page tells of all slices: what each has done and failed at, and which of them are at work."""
    place.lay("t0", "crash")
    place.lay("t3", "wait_for_release")
    assert place.run_here("--slice", "1/3").returncode == 0
    process = start(place, "2/3")
    wait_for(lambda: ["t2", "t3"] in place.calls())

    assert place.here("report", str(place.workdir)).returncode == 0

    page = (place.workdir / "report.html").read_text("utf-8")
    assert "<h1>Running" in page
    assert page.count("still running") == 1
    assert "slice 1/3: cpu" in page
    assert "out chunk 0, attempt 1" in page
    assert "device 0 of slice 1/3" in page
    (place.folder / "release").touch()
    assert finish(process).returncode == 0
