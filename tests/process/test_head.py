"""The first rows of a large source are encoded while the rest is read; all else is as without that."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import ROOT, Ended, expected, finish, kill, local_engine_only, sweep, wait_for
from scripted_workplace import ScriptedWorkplace

pytestmark = local_engine_only

TEXTS = ["t0", "t1", "t0", *(f"t{number}" for number in range(2, 11)), "t3", "t1", *(f"u{n}" for n in range(9)), "t0"]
HEAD = 12
"""Rows, of which the first two chunks of four texts are made; the last two or three texts are in another chunk."""


def make(folder: Path, **changes: Any) -> ScriptedWorkplace:
    """A workplace over the texts, with a head."""
    return ScriptedWorkplace.make(folder, TEXTS, **{"chunk__size": 4, "ingest__head": HEAD, **changes})


def start(place: ScriptedWorkplace, *options: str) -> subprocess.Popen[str]:
    """A run whose source is read when the file `read` is there."""
    command = [sys.executable, "-P", "-m", "drivers.held", str(place.folder / "read")]
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT / "tests")]))
    return subprocess.Popen(
        [*command, "run", str(place.config_path), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def go_on(place: ScriptedWorkplace) -> None:
    """Let the source be read."""
    (place.folder / "read").touch()


def told(place: ScriptedWorkplace, *names: str) -> list[dict[str, Any]]:
    """The journal's events of these names."""
    return [event for event in place.events() if event["event"] in names]


def is_done(place: ScriptedWorkplace) -> bool:
    """Whether the head is encoded, and the rest is waited for."""
    return bool(told(place, "head_done"))


def ran(place: ScriptedWorkplace) -> Ended:
    """A run whose head is encoded before the rest of the source is read."""
    (place.folder / "read").unlink(missing_ok=True)
    heads = len(told(place, "head_done"))
    run = start(place)
    wait_for(lambda: run.poll() is not None or len(told(place, "head_done")) > heads)
    go_on(place)
    return finish(run)


def assert_as_without(place: ScriptedWorkplace, tmp_path: Path, texts: list[str] = TEXTS) -> None:
    """Final file, manifest and folder are those of a run that has read all first; each text was encoded once."""
    plain = ScriptedWorkplace.make(tmp_path / "plain", texts, chunk__size=4, ingest__head=None)
    ended = plain.run_here()
    assert ended.returncode == 0, ended.stderr
    assert not told(plain, "head_begun")
    assert (place.workdir / "out.npy").read_bytes() == (plain.workdir / "out.npy").read_bytes()
    ours, theirs = (
        {name: value for name, value in each.manifest().items() if name not in ("created_at", "seal", "source")}
        for each in (place, plain)
    )
    assert ours == theirs
    assert place.manifest()["source"]["digest"] == plain.manifest()["source"]["digest"]
    state = place.workdir / "outputs" / "out"
    assert {path.name for path in state.iterdir()} == {
        path.name for path in (plain.workdir / "outputs" / "out").iterdir()
    }
    ended = place.here("verify", str(place.workdir))
    assert ended.returncode == 0, ended.stdout


def asked_for(place: ScriptedWorkplace) -> Counter[str]:
    """How often each text was encoded."""
    return Counter(text for call in place.calls() for text in call)


def test_first_vectors_before_the_source_is_read(tmp_path: Path) -> None:
    """Chunks are committed while the source is read, and told of as such; the result is the same."""
    place = make(tmp_path / "place")
    run = start(place)
    wait_for(lambda: is_done(place))
    assert len(told(place, "chunk_committed")) == 2
    assert not told(place, "staged")
    status = place.status()
    assert status["state"] == "running"
    assert status["eta_s"] is None
    out = status["outputs"]["out"]
    assert (out["is_head"], out["rows"], out["chunks"], out["chunks_done"]) == (True, HEAD, 2, 2)
    shown = place.here("status", str(place.workdir)).stdout
    assert "the rest of its source is still to be read" in shown
    go_on(place)
    ended = finish(run)
    assert ended.returncode == 0, ended.stderr
    assert f"out: the first {HEAD} rows are encoded while the rest is read" in ended.stderr
    assert "2 done already" in ended.stderr
    assert "generation" not in ended.stderr
    assert set(asked_for(place).values()) == {1}
    assert [event["chunk"] for event in told(place, "chunk_committed")] == list(range(5))
    assert place.status()["outputs"]["out"]["is_head"] is False
    assert_as_without(place, tmp_path)


@pytest.mark.parametrize("when", ["under way", "done"])
def test_killed_while_the_source_is_read(tmp_path: Path, when: str) -> None:
    """After a kill the same command goes on with the head, and no text is encoded twice but those under way."""
    place = make(tmp_path / "place")
    if when == "under way":
        place.lay("t5", "wait_for_release")
    run = start(place)
    wait_for(lambda: is_done(place) if when == "done" else "t5" in asked_for(place))
    kill(run)
    status = place.status()
    assert status["state"] == "stopped"
    assert status["outputs"]["out"]["is_head"]
    assert f"{status['outputs']['out']['chunks_done']} chunk" in place.here("status", str(place.workdir)).stdout
    (place.folder / "release").touch()
    before = sum(asked_for(place).values())
    again = start(place)
    wait_for(lambda: len(told(place, "head_done")) == (2 if when == "done" else 1))
    if when == "done":
        assert sum(asked_for(place).values()) == before
    go_on(place)
    ended = finish(again)
    assert ended.returncode == 0, ended.stderr
    assert "--update" not in ended.stderr
    assert {text for text, times in asked_for(place).items() if times > 1} <= set(TEXTS[5:12])
    assert_as_without(place, tmp_path)


@pytest.mark.parametrize(
    ("targets", "share"),
    [
        (("chunkvisor.events.journal:Journal.write",), "3:a"),
        (("os:replace", "os:rename", "os:fsync", "os:rmdir"), "8:a"),
        (
            tuple(f"chunkvisor.supervise.headtaken:{name}" for name in ("_ledger_of", "_digest_of", "remove_folder")),
            "1:",
        ),
    ],
    ids=["events", "renames and syncs", "taking over"],
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_again_and_again(tmp_path: Path, targets: tuple[str, ...], share: str, when: str) -> None:
    """A folder in which every run was killed at a new place, with a bad text in the head, still comes out right."""
    place = make(tmp_path / "template", recovery__attempts=1)
    place.lay("t5", "value_error!")
    lines = sweep(
        "chain", when, place.folder, tmp_path / "chain", *targets, keys="output chunk", share=share, held=True
    )
    assert lines[-1]["returncode"] == 3, lines[-1]["stderr"]
    assert not [line for line in lines if "Traceback" in line["stderr"]]
    assert not [line for line in lines if "has changed" in line["stderr"]]
    assert len(lines) > 2
    left = ScriptedWorkplace(Path(lines[-1]["folder"]))
    assert told(left, "head_begun")
    right = expected(TEXTS)
    right[TEXTS.index("t5")] = np.nan
    np.testing.assert_array_equal(left.vectors(), right)
    assert [bad["row"] for bad in left.manifest()["quarantined"]] == [TEXTS.index("t5")]
    assert not (left.workdir / "outputs" / "out" / "head").exists()


def test_bad_row_further_on(tmp_path: Path) -> None:
    """A source that cannot be read ends the run as ever; after the mend the next run takes over what is encoded."""
    place = make(tmp_path / "place")
    whole = place.source.read_text()
    place.source.write_text(whole + "{\n")
    ended = ran(place)
    assert ended.returncode == 78, ended.stderr
    assert f"rows.jsonl, line {len(TEXTS) + 1}" in ended.stderr
    place.source.write_text(whole)
    ended = place.run()
    assert ended.returncode == 0, ended.stderr
    assert "2 done already" in ended.stderr
    assert set(asked_for(place).values()) == {1}
    assert_as_without(place, tmp_path)


def test_another_head_after_the_mend(tmp_path: Path) -> None:
    """Where the first rows themselves are others at the next run, they are encoded anew."""
    place = make(tmp_path / "place")
    run = start(place)
    wait_for(lambda: is_done(place))
    kill(run)
    texts = ["new", *TEXTS]
    place.write_source(texts)
    go_on(place)
    ended = place.run()
    assert ended.returncode == 0, ended.stderr
    assert_as_without(place, tmp_path, texts)


def test_other_settings_after_a_kill(tmp_path: Path) -> None:
    """Vectors of other settings are not mixed in: the head is begun anew, and nothing is refused."""
    place = make(tmp_path / "place")
    run = start(place)
    wait_for(lambda: is_done(place))
    kill(run)
    ended = place.run("--set", "encode.truncate_dim=3")
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS)[:, :3])


@pytest.mark.parametrize("option", ["ingest.head=null", "ingest.head=3", "ingest.head=100", "chunk.size=3"])
def test_other_head_after_a_kill(tmp_path: Path, option: str) -> None:
    """Without a head, with a shorter or longer one, or with other chunks, the next run comes out right as well."""
    place = make(tmp_path / "place")
    run = start(place)
    wait_for(lambda: is_done(place))
    kill(run)
    ended = place.run("--set", option)
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS))
    assert not (place.workdir / "outputs" / "out" / "head").exists()
    if option == "ingest.head=null":
        assert set(asked_for(place).values()) == {1}


def test_faults_in_the_head(tmp_path: Path) -> None:
    """A worker that dies and a text that always fails are dealt with as ever; its row is right, and told once."""
    place = make(tmp_path / "place", recovery__attempts=1)
    place.lay("t1", "crash")
    place.lay("t5", "value_error!")
    ended = ran(place)
    assert ended.returncode == 3, ended.stderr
    row = TEXTS.index("t5")
    assert [(event["row"], event["rows"]) for event in told(place, "quarantined")] == [(row, 1)]
    assert [(bad["row"], bad["place"]) for bad in place.manifest()["quarantined"]] == [
        (row, f"{place.source}:{row + 1}")
    ]
    assert place.status()["outputs"]["out"]["quarantined"] == 1
    right = expected(TEXTS)
    right[row] = np.nan
    np.testing.assert_array_equal(place.vectors(), right)
    place.lift("t5")
    assert place.here("retry", str(place.workdir)).returncode == 0
    assert place.run_here().returncode == 0
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS))


def test_taken_apart_when_the_source_is_read(tmp_path: Path) -> None:
    """What is known of a chunk that is taken apart stays known when it is gone on with all rows."""
    place = make(tmp_path / "place", encode__batch_size=1, recovery__attempts=1)
    place.lay("t2", "value_error!")
    place.lay("t3", "wait_for_release")
    run = start(place)
    wait_for(lambda: place.calls() and place.calls()[-1] == ["t3"])
    go_on(place)
    wait_for(lambda: told(place, "head_left"))
    (place.folder / "release").touch()
    ended = finish(run)
    assert ended.returncode == 3, ended.stderr
    assert [event["row"] for event in told(place, "quarantined")] == [TEXTS.index("t2")]
    assert max(asked_for(place).values()) <= 3
    right = expected(TEXTS)
    right[TEXTS.index("t2")] = np.nan
    np.testing.assert_array_equal(place.vectors(), right)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"])
def test_stopped_while_the_source_is_read(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """The chunk under way is finished, the reading is given up, and the next run goes on."""
    place = make(tmp_path / "place")
    place.lay("t2", "wait_for_release")
    run = start(place)
    wait_for(lambda: "t2" in asked_for(place))
    run.send_signal(number)
    wait_for(lambda: told(place, "draining"))
    (place.folder / "release").touch()
    ended = finish(run)
    assert ended.returncode == code, ended.stderr
    assert f"stopped by {number.name}" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(told(place, "chunk_committed")) == 1
    ended = place.run()
    assert ended.returncode == 0, ended.stderr
    assert set(asked_for(place).values()) == {1}
    assert_as_without(place, tmp_path)


def test_read_while_a_chunk_is_under_way(tmp_path: Path) -> None:
    """The chunk under way is finished first, then it is gone on with all rows."""
    place = make(tmp_path / "place")
    place.lay("t2", "wait_for_release")
    run = start(place)
    wait_for(lambda: "t2" in asked_for(place))
    go_on(place)
    wait_for(lambda: told(place, "head_left"))
    (place.folder / "release").touch()
    ended = finish(run)
    assert ended.returncode == 0, ended.stderr
    assert set(asked_for(place).values()) == {1}
    assert_as_without(place, tmp_path)


def test_warm_workers(tmp_path: Path) -> None:
    """One template serves the head and what follows."""
    place = make(tmp_path / "place", workers__start="warm")
    ended = ran(place)
    assert ended.returncode == 0, ended.stderr
    assert len(told(place, "template_started")) == 1
    assert_as_without(place, tmp_path)


def _none() -> tuple[str, ...]:
    return ()


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"ingest__head": "auto"}, _none),
        ({"ingest__head": 2}, _none),
        ({"outputs__out__where": "text <> 'u1'"}, _none),
        ({}, lambda: ("--max-rows", "20")),
        ({}, lambda: ("--slice", "1/2")),
        ({}, lambda: ("--from-scratch",)),
    ],
    ids=["small source", "less than a chunk", "where", "a trial", "a slice", "from scratch"],
)
def test_no_head(tmp_path: Path, changes: dict[str, Any], options: Callable[[], tuple[str, ...]]) -> None:
    """Where it is not worth it, or not known to be right, the source is read first."""
    place = make(tmp_path / "place", **changes)
    ended = place.run_here(*options())
    assert ended.returncode == 0, ended.stderr
    assert "while the rest is read" not in ended.stderr
    assert not list(place.folder.glob("work*/outputs/out/head*"))


def test_no_head_over_vectors_to_reuse(tmp_path: Path) -> None:
    """Where texts may have a vector already, all is read first: they are not encoded once more."""
    place = make(tmp_path / "place")
    assert place.run_here().returncode == 0
    more = {"source": str(place.source), "column": "text"}
    place.write_config("scripted:make", chunk__size=4, ingest__head=HEAD, outputs={"out": more, "more": more})
    before = len(place.calls())
    ended = place.run_here()
    assert ended.returncode == 0, ended.stderr
    assert len(place.calls()) == before
    assert len(told(place, "head_begun")) <= 1


def test_from_scratch_drops_a_head(tmp_path: Path) -> None:
    """A head that a killed run has left is discarded by --from-scratch as well."""
    place = make(tmp_path / "place")
    run = start(place)
    wait_for(lambda: is_done(place))
    kill(run)
    before = len(place.calls())
    ended = place.run("--from-scratch", "--yes")
    assert ended.returncode == 0, ended.stderr
    assert Counter(text for call in place.calls()[before:] for text in call) == dict.fromkeys(TEXTS, 1)
    assert_as_without(place, tmp_path)


def test_journal_of_the_head(tmp_path: Path) -> None:
    """The report of a run with a head is made, and knows all chunks."""
    place = make(tmp_path / "place")
    assert place.run_here().returncode == 0
    assert place.here("report", str(place.workdir)).returncode == 0
    state = json.loads(place.here("status", str(place.workdir), "--json").stdout)
    assert state["state"] == "complete"
    # A worker that was still starting when all was read is ended, and started again.
    assert {**state["attempts"], "interrupted": 0} == {"committed": 5, "interrupted": 0}


def test_all_texts_of_the_head_are_bad(tmp_path: Path) -> None:
    """The others may be good: the run goes on, as it does without a head, and tries each bad text once."""
    texts = ["b0", "b1", "b2", "b3", *(f"g{number}" for number in range(8))]
    place = ScriptedWorkplace.make(tmp_path / "place", texts, chunk__size=4, ingest__head=4, recovery__attempts=1)
    for text in texts[:4]:
        place.lay(text, "value_error!")
    ended = ran(place)
    assert ended.returncode == 3, ended.stderr
    tried = asked_for(place)
    right = expected(texts)
    right[:4] = np.nan
    np.testing.assert_array_equal(place.vectors(), right)
    assert [bad["row"] for bad in place.manifest()["quarantined"]] == [0, 1, 2, 3]
    assert {event["row"] for event in told(place, "quarantined")} == {0, 1, 2, 3}
    assert len(told(place, "quarantined")) == 4
    assert all(tried[text] == 1 for text in texts[4:])
    for text in texts[:4]:
        place.lift(text)
    assert place.here("retry", str(place.workdir)).returncode == 0
    assert place.run_here().returncode == 0
    np.testing.assert_array_equal(place.vectors(), expected(texts))


def test_a_bad_text_of_the_head_stands_in_many_rows_further_on(tmp_path: Path) -> None:
    """They count as all bad rows do, at this run and the next; `retry` makes the text pending again."""
    texts = ["x", *(f"g{number}" for number in range(11)), *["x"] * 50]
    changes = {"chunk__size": 4, "ingest__head": 8, "recovery__attempts": 1, "recovery__max_bad_rows": 10}
    place = ScriptedWorkplace.make(tmp_path / "place", texts, **changes)
    place.lay("x", "value_error!")
    for ended in (ran(place), ran(place)):
        assert ended.returncode == 78, ended.stderr
        assert "51 rows cannot be encoded, and recovery.max_bad_rows is 10" in ended.stderr
        assert "chunkvisor retry" in ended.stderr
    assert asked_for(place)["x"] <= 3  # not tried again by the second run
    place.lift("x")
    retried = place.here("retry", str(place.workdir))
    assert (retried.returncode, "1 text" in retried.stdout + retried.stderr) == (0, True), retried.stdout
    ended = ran(place)
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(place.vectors(), expected(texts))
    assert not (place.workdir / "outputs" / "out" / "head").exists()


def test_retry_while_there_is_but_a_head(tmp_path: Path) -> None:
    """A text that was bad in it is tried again."""
    texts = [f"g{number}" for number in range(12)]
    changes = {"chunk__size": 4, "ingest__head": 8, "recovery__attempts": 1, "recovery__max_bad_rows": 1}
    place = ScriptedWorkplace.make(tmp_path / "place", texts, **changes)
    for text in ("g1", "g2"):
        place.lay(text, "value_error!")
    assert ran(place).returncode == 78
    assert (place.workdir / "outputs" / "out" / "head").exists()
    for text in ("g1", "g2"):
        place.lift(text)
    retried = place.here("retry", str(place.workdir))
    assert (retried.returncode, "1 text" in retried.stdout + retried.stderr) == (0, True), retried.stdout
    ended = ran(place)
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(place.vectors(), expected(texts))


def test_no_room_while_the_head_is_encoded(tmp_path: Path) -> None:
    """It is left, and the source is read on, once; the end is the one that a run without a head has."""
    place = make(tmp_path / "place", recovery__wait_timeout=5)
    (place.folder / "no_room").touch()
    run = start(place)
    wait_for(lambda: run.poll() is not None or [each for each in told(place, "note") if "no more" in each["text"]])
    go_on(place)
    ended = finish(run)
    assert ended.returncode == 74, ended.stderr
    assert "does not fit" in ended.stderr
    assert "while the source of out is read" not in ended.stderr
    assert len(told(place, "head_begun")) == 1
    assert len(told(place, "staged")) == 1


def test_a_head_of_other_settings_does_not_choose_the_chunks(tmp_path: Path) -> None:
    """A size that an earlier head was cut by, for another speed, is not taken for a new one."""
    place = make(tmp_path / "place")
    run = start(place)
    wait_for(lambda: is_done(place))
    kill(run)
    go_on(place)
    ended = place.run("--set", "chunk.size=auto", "--set", "encode.truncate_dim=3")
    assert ended.returncode == 0, ended.stderr
    assert told(place, "output_opened")[-1]["chunk_size"] > 4


def test_a_chunk_of_the_head_that_was_set_aside_is_done_by_the_same_run(tmp_path: Path) -> None:
    """Its end does not say that something was left to the next run."""
    place = make(tmp_path / "place", recovery__attempts=1)
    place.lay("t5", "terminate")
    ended = ran(place)
    assert told(place, "chunk_set_aside"), ended.stderr
    assert ended.returncode == 0, ended.stderr
    assert "set aside" not in ended.stderr.splitlines()[-1]
    assert not [line for line in ended.stderr.splitlines() if "encoded in" in line and "set aside" in line]
