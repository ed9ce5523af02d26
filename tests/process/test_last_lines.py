"""What the last lines of a run say is so: its log, its rows, what is kept, and the command that is
typed again.
"""

import shlex
import sys
from pathlib import Path

import pytest

from chunkvisor.cli.run import command_line
from harness import kill, local_engine_only, wait_for
from scripted_workplace import ScriptedWorkplace

pytestmark = local_engine_only

TEXTS = [f"t{number}" for number in range(12)]
KEPT = "finished work is kept"


@pytest.fixture
def place(tmp_path: Path) -> ScriptedWorkplace:
    """Twelve texts in three chunks; a fault is taken for a text's doing at once."""
    return ScriptedWorkplace.make(tmp_path, TEXTS, chunk__size=4, recovery__attempts=1)


@pytest.mark.parametrize(("fault", "empty"), [("kill_worker!", True), ("crash!", False)])
def test_an_empty_log_is_said_to_be_so(place: ScriptedWorkplace, fault: str, empty: bool) -> None:
    """What is killed leaves a log of no bytes, a segmentation fault the stack; the line tells one
    from the other.
    """
    place.lay("t5", fault)
    ended = place.ends(78, "--set", "recovery.on_bad_row=fail")
    (log,) = [line for line in ended.stderr.splitlines() if line.startswith("  log: ")]
    path, _, note = log.removeprefix("  log: ").partition(" (")
    assert (Path(path).stat().st_size == 0, note) == (
        empty,
        "empty: nothing was written into it)" if empty else "",
    )


def test_the_command_to_type_again_is_whole(place: ScriptedWorkplace) -> None:
    """It comes with its folder, also after a 78 found on the way; whoever was refused before has
    just typed it.
    """
    place.lay("t5", "value_error!")
    command = f"the command, to run it again: cd {Path.cwd()} && chunkvisor run {place.config_path}"
    failed = place.ends(78, "--set", "recovery.on_bad_row=fail")
    assert command in failed.stderr
    assert f"how far it is: chunkvisor status {place.workdir}\n" in failed.stderr
    assert command in place.ends(3).stderr
    refused = place.ends(
        78, "--set", "outputs.out.column=txt", "--set", f"workdir={place.folder / 'other'}"
    )
    assert "to run it again" not in refused.stderr
    assert "how the run went" not in refused.stderr


def test_status_has_the_command(place: ScriptedWorkplace) -> None:
    """Whoever finds a stopped run need not know how it was begun; secrets are left out, and so is a
    fresh start.
    """
    place.lay("t5", "value_error!")
    secrets = ("--set", "env.TOKEN=hf_secret", "--set=env.A=hf_secret")
    place.ends(78, *secrets, "--set", "recovery.on_bad_row=fail", "--from-scratch", "--yes")
    given = shlex.join(
        ["--set", "env.TOKEN=…", "--set=env.A=…", "--set", "recovery.on_bad_row=fail"]
    )
    command = f"cd {Path.cwd()} && chunkvisor run {place.config_path} {given}"
    assert f"  the command: {command}\n" in place.does("status").stdout
    assert place.status()["command"] == command
    assert "hf_secret" not in (place.hidden / "events.jsonl").read_text()


@pytest.mark.parametrize(
    ("called", "program"),
    [
        ("chunkvisor", "chunkvisor"),
        ("/venv/bin/chunkvisor", "/venv/bin/chunkvisor"),
        ("-c", f"{sys.executable} -m chunkvisor"),
    ],
)
def test_the_command_is_found_from_any_shell(
    called: str, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is named as it was called, with its folder: outside a virtual environment no
    shell knows its name.
    """
    monkeypatch.setattr(sys, "argv", [called, "run"])
    assert command_line("status", "a b") == f"{program} status 'a b'"


def test_nothing_is_kept_where_nothing_was_finished(place: ScriptedWorkplace) -> None:
    """A run that ends, or is killed, before its first vector does not speak of finished work;
    afterwards it does.
    """
    place.lay("t0", "wait_for_release")
    run = place.begin_to(1)
    kill(run)
    assert KEPT not in place.does("status").stdout
    place.lay("t0", "wait")
    run = place.begin_to(2)
    ended = place.stop(run)
    assert ended.returncode == 143, ended.stderr
    assert "Run the same command again to continue.\n" in ended.stderr
    place.lay("t4", "wait")
    run = place.begin_to(4)
    wait_for(lambda: place.named("chunk_committed"))
    kill(run)
    killed = f"its process was killed, the machine went down, or the disk was full; {KEPT}\n"
    assert f"stopped: {killed}" in place.does("status").stdout


def test_a_stopped_run_names_the_rows_that_it_gave_up(place: ScriptedWorkplace) -> None:
    """Row, file and line in its last words and in the status, which counts them as every view does."""
    place.lay("t1", "nan!")
    place.lay("t8", "wait")
    run = place.begin()
    wait_for(lambda: place.calls() and "t8" in place.calls()[-1])
    ended = place.stop(run)
    place_of_row = f"out row 1 ({place.source}:2)"
    assert f"without a vector so far: {place_of_row}" in ended.stderr
    stopped = place.progress()
    assert stopped["quarantined"] == 1
    screen = place.does("status").stdout
    done = f"{stopped['rows_done']} of 12 rows, {stopped['chunks_done']} of 3 chunks"
    assert f"{done}, 1 row without a vector\n" in screen
    assert place_of_row in screen
    place.does("report")
    assert f"{place.source}:2" in (place.workdir / "report.html").read_text()
