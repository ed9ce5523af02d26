"""Calls that are mistakes: closed and full streams, names too long, wrong encodings, addresses
instead of paths.
"""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from damaged import complete
from forking import COMMAND_LINE
from scripted_workplace import ScriptedWorkplace

TEXTS = ["t0", "t1", "t2"]
LONG = "x" * 300
ESCAPE = "\x1b[31mred\x07\x9b2J"


@pytest.fixture
def finished(tmp_path: Path) -> ScriptedWorkplace:
    """A complete workdir."""
    return complete(tmp_path / "place")


ENCODE = ["encode", "{source}", "--model", "m", "--encoder", "a:b", "--column", "text", "-o"]
SHELL = {
    "stdin closed, no answer given": ("run {config} --from-scratch <&-", 0),
    "stderr closed, an error": ("run nowhere.yaml 2>&-", 78),
    "all closed": ("status {work} <&- >&- 2>&-", 0),
    "stdout full": ("status {work} >/dev/full", 74),
    "stdout full, help": ("--help >/dev/full", 74),
    "stderr full": ("run {config} 2>/dev/full", 0),
    "nobody reads": ("status {work} | true; exit ${{PIPESTATUS[0]}}", 0),
    "no umlauts": ("status {umlaut}", 78),
    "folder deleted": (" ".join([*ENCODE, "o.npy"]), 78),
    "little memory": ("run {config} --from-scratch --yes", 69),
    "little memory, encode": (" ".join([*ENCODE, "o.npy"]), 69),
    "too little memory for numpy": ("verify {work}", 69),
}
# KiB of address space, where there is a limit: the text of the key before the comma -> KiB.
MEMORY = {"little memory": 204_800, "too little memory for numpy": 60_000}


@pytest.mark.soak
@pytest.mark.parametrize("which", SHELL)
def test_streams(finished: ScriptedWorkplace, tmp_path: Path, which: str) -> None:
    """Each ends with its own code and without a traceback, whatever becomes of its words."""
    line, code = SHELL[which]
    here = tmp_path / "here"
    here.mkdir()
    names = {
        "config": finished.config_path,
        "work": finished.workdir,
        "source": finished.source,
        "umlaut": "ümläut",
    }
    command = f"{shlex.join(COMMAND_LINE)} {line.format(**names)}"
    script = f"cd {here}; {'rmdir ../here;' if 'deleted' in which else ''} {command}"
    if which.partition(",")[0] in MEMORY:
        script = f"ulimit -v {MEMORY[which.partition(',')[0]]}; {script}"
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    plain = plain if which == "no umlauts" else {}
    ended = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        env=os.environ | plain,
        timeout=120,
        check=False,
    )
    assert ended.returncode == code, ended
    assert b"Traceback" not in ended.stderr + ended.stdout, ended
    assert b"Exception ignored" not in ended.stderr, ended


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", LONG],
        ["init", LONG],
        ["encode", f"{LONG}.csv", "--model", "m", "--column", "text", "-o", "o.npy"],
        [*ENCODE, f"{LONG}.npy"],
        [*ENCODE, ""],
        ["report", "{work}", "-o", LONG],
        ["run", "{config}", "--max-rows", "1" + "0" * 23],
        ["run", "{config}", "--set", f"workdir={LONG}"],
        ["run", "{config}", "--set", f"outputs.out.source={LONG}.csv"],
        [*ENCODE, "/proc/o.npy"],
        [*ENCODE, "o.npy", "--workdir", "/proc/w"],
        ["run", "{config}", "--set", "workdir=/proc/w"],
        ["audit", "{config}", "--write-expect", "/proc/e.jsonl"],
    ],
    ids=lambda arguments: " ".join(arguments)[:60],
)
def test_names(finished: ScriptedWorkplace, arguments: list[str]) -> None:
    """A name that no file can have, and a number that no table has, are refused in words."""
    names = {"config": finished.config_path, "work": finished.workdir, "source": finished.source}
    ended = finished.call(*[each.format(**names) for each in arguments], code=(2, 74, 78))
    assert ended.stderr.strip()


@pytest.mark.parametrize(
    "command",
    ["run {config} --from-scratch --yes", "doctor {config}", "plan {config}", "retry {work}"],
)
def test_without_proc(
    finished: ScriptedWorkplace, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where /proc is not mounted, as in some chroots, a command that needs it says so with 69."""
    monkeypatch.setattr("chunkvisor.child._PROC", Path("/proc/none"))
    names = {"config": finished.config_path, "work": finished.workdir}
    ended = finished.call(*command.format(**names).split(), code=69)
    assert "/proc is not mounted" in ended.stderr


def test_workdir_that_is_not_utf8(tmp_path: Path) -> None:
    """A run there is refused by name, since the source could not be read into it; nothing else
    minds.
    """
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff"))
    place = ScriptedWorkplace.make(folder, TEXTS, **{"outputs.out.source": "rows.jsonl"})
    ended = place.ends(78)
    assert "is not text in the encoding of this locale" in ended.stderr
    for command in ("status", "status --json", "verify", "report", "clean"):
        place.call(*command.split(), place.workdir, code=(0, 78))


def steers(text: str) -> bool:
    """Whether there is anything in it that a terminal would not show but do."""
    return any(not char.isprintable() and char not in "\n\t" for char in text)


def test_nothing_printed_steers_a_terminal(tmp_path: Path) -> None:
    """Escape sequences in a cell, in names of files and columns, and on the command line come out
    as marks.
    """
    folder = tmp_path / f"place{ESCAPE}"
    place = ScriptedWorkplace.make(folder, [f"bad{ESCAPE}", "t1"], recovery__attempts=1)
    place.lay(f"bad{ESCAPE}", "value_error!")
    config = str(place.config_path)
    calls = [
        *([command, config] for command in ["run", "status", "report", "verify", "retry", "plan"]),
        ["run", config, "--set", f"outputs.out.column={ESCAPE}"],
        ["run", config, "--set", f"{ESCAPE}=1"],
        ["run", ESCAPE],
        ["status", ESCAPE],
        ["init", str(folder)],
        [ESCAPE],
        ["run", f"--{ESCAPE}"],
        ["drill", config, "--fault", ESCAPE],
    ]
    for arguments in calls:
        ended = place.call(*arguments)
        assert not steers(ended.stdout + ended.stderr), (arguments, ended)
        assert "Traceback" not in ended.stderr, ended.stderr
