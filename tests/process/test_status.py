"""`chunkvisor status`: reads the folder alone, during a run, after it, and after it was killed."""

import json
from pathlib import Path

import pytest

from chunkvisor.show.status import SCHEMA
from chunkvisor.store.layout import Layout
from harness import Workplace, kill, wait_for
from scripted_workplace import ScriptedWorkplace

TEXTS = ["t0", "t1", "t0", "t2", "t3", "t3"]


@pytest.fixture
def place(tmp_path: Path) -> ScriptedWorkplace:
    """Two chunks; the second waits for ever."""
    place = ScriptedWorkplace.make(tmp_path, TEXTS, chunk__size=2, recovery__attempts=1)
    place.lay("t2", "wait!")
    return place


def test_live_killed_stopped_complete(place: ScriptedWorkplace) -> None:
    """A run is `running` while it lives, `stopped` once it is killed or told to stop, and
    `complete` at the end.
    """
    process = place.begin_to(2)
    wait_for(lambda: place.status()["attempts"])
    live = place.status()
    assert live["state"] == "running"
    assert live["pid"] == process.pid
    assert live["outputs"]["out"] == {
        "rows": 6,
        "rows_done": 3,  # half of the distinct texts
        "chunks": 2,
        "chunks_done": 1,
        "quarantined": 0,
        "complete": False,
        "distinct_texts": 4,
        "reasons": [],
        "file": "",
        "listed_in": "",
        "truncated": None,
    }
    assert live["attempts"] == {"committed": 1}
    assert live["rows_per_s"] > 0
    assert live["eta_s"] >= 0
    assert (
        place.does("verify")
        .stdout.splitlines()[1]
        .startswith("out is not complete: about 3 of 6 rows, 1 of 2 chunks")
    )
    assert (live["schema"], live["devices"]["CPU"]["texts"]) == (SCHEMA, 2)
    kill(process)
    killed = place.status()
    assert killed == {**live, "state": "stopped", "eta_s": None, "rows_per_s": killed["rows_per_s"]}
    assert place.does("verify").stdout.splitlines() == [
        "1 file checked: it is intact",
        "out is not complete: about 3 of 6 rows, 1 of 2 chunks; run the same command again to "
        "continue",
    ]
    told = json.loads(place.does("verify", "--json").stdout)
    assert (told["ok"], told["complete"], told["files"]) == (True, False, 1)
    assert told["unfinished"]["out"]["rows_done"] == 3

    process = place.begin_to(3)
    assert place.status()["state"] == "running"
    place.stop(process)
    assert place.status()["state"] == "stopped"

    place.lift("t2")
    place.ends(0)
    complete = place.status()
    assert complete["state"] == "complete"
    assert complete["eta_s"] is None
    assert complete["outputs"]["out"]["rows_done"] == complete["outputs"]["out"]["rows"] == 6
    assert complete["outputs"]["out"]["chunks_done"] == 2
    place.does("clean")
    assert place.status()["outputs"] == complete["outputs"]
    assert place.status()["state"] == "complete"


def test_halted(place: ScriptedWorkplace) -> None:
    """A run that gave up is `halted`, and status repeats its last words; outputs of other configs
    do not matter.
    """
    place.lay("t2", "damage!")
    place.ends(75)
    halted = place.status()
    assert (halted["state"], halted["attempts"]) == ("halted", {"committed": 1, "crashed": 1})
    words = place.does("status").stdout
    assert words.startswith("halted\n")
    assert "out: 50 %, about 3 of 6 rows, 1 of 2 chunks" in words
    assert "out chunk 1 failed in every try" in words
    assert "worker.log" in words
    place.write_config(
        "scripted:make", outputs={"other": {"source": "rows.jsonl", "template": "x{text}"}}
    )
    place.ends(0)
    now = place.status()
    assert (now["state"], now["outputs"]["out"]["complete"]) == ("complete", False)


def test_a_run_on_another_host(place: ScriptedWorkplace) -> None:
    """It cannot be asked whether it lives: `status` says where it was, and how long ago it last
    told of anything.
    """
    process = place.begin_to(2)
    kill(process)
    lock = Layout(place.workdir).lock
    lock.write_text(json.dumps({**json.loads(lock.read_text()), "host": "elsewhere"}))
    found = place.status()
    assert (found["state"], found["host"]) == ("running", "elsewhere")
    assert place.does("status").stdout.startswith(
        f"running (pid {process.pid} on elsewhere, last sign of life "
    )


@pytest.mark.parametrize("command", ["status", "verify", "clean", "retry", "report", "audit"])
def test_a_path_without_a_name_is_no_workdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Any folder that is not a workdir is answered in words, whatever the command, and stays as it
    is.
    """
    monkeypatch.chdir(tmp_path)
    ended = ScriptedWorkplace(tmp_path).call(command, ".", code=78)
    assert ". is not a workdir of chunkvisor" in ended.stderr
    assert not list(tmp_path.iterdir())


def test_combined_files_are_named(tmp_path: Path) -> None:
    """A finished file of `combine` is in status and its JSON."""
    place = Workplace(tmp_path)
    place.write_source(["a", "b"])
    output = {"source": "rows.jsonl", "column": "text"}
    place.write_config(
        "good:make", outputs={"one": output, "two": output}, combine={"both": ["one", "two"]}
    )
    place.ends(0)
    assert "both: combined, complete" in place.does("status").stdout
    assert place.status()["combined"] == {"both": str(place.workdir / "both.npy")}
