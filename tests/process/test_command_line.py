"""The command line as such: help and version everywhere, the nearest valid name, and completion by a real shell."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import pytest

import chunkvisor
import chunkvisor.cli
from chunkvisor.store.layout import Layout
from chunkvisor.testing import FAULTS
from harness import Workplace, finish

COMMANDS = chunkvisor.cli.cli.list_commands(click.Context(chunkvisor.cli.cli))

Complete = Callable[[str], list[str]]

PRESS_TAB = """
eval "$(_CHUNKVISOR_COMPLETE=bash_source chunkvisor)" || exit
compopt() { printf 'the shell: %s\\n' "$2"; }
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
$(complete -p chunkvisor | sed 's/.*-F \\([^ ]*\\).*/\\1/') chunkvisor
printf '%s\\n' "${COMPREPLY[@]}"
"""
"""What bash does when Tab is pressed after the last of its arguments; `compopt` works in interactive shells only."""


@pytest.fixture
def complete(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """What bash offers when Tab is pressed at the end of a line, in the folder of the workplace."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    program = workplace.folder / "bin" / "chunkvisor"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.join(workplace.command())} "$@"\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.chdir(workplace.folder)

    def offers(line: str) -> list[str]:
        words = line.split(" ")
        ended = subprocess.run(
            [bash, "--norc", "-c", PRESS_TAB, "bash", *words], capture_output=True, text=True, timeout=60, check=True
        )
        assert ended.stderr == ""
        return ended.stdout.split("\n")[:-1]

    return offers


def test_version(workplace: Workplace) -> None:
    """`--version` names the program and its version."""
    assert workplace.call("--version").stdout == f"chunkvisor, version {chunkvisor.__version__}\n"


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=" ".join)
def test_short_help(workplace: Workplace, command: Sequence[str]) -> None:
    """`-h` is help, whatever comes before it."""
    ended = finish(workplace.start(*command, "-h"))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"Usage: {' '.join(['chunkvisor', *command])} [OPTIONS]")


def test_the_list_of_commands_has_whole_sentences(workplace: Workplace) -> None:
    """What the list says of each command is not cut off."""
    _, commands = finish(workplace.start("-h")).stdout.split("Commands:\n")
    assert len(commands.splitlines()) == len(COMMANDS)
    assert "..." not in commands


def test_a_config_in_place_of_its_workdir(workplace: Workplace) -> None:
    """Commands that take a workdir take the config as well, and do the same; a file that is none is refused by name."""
    workplace.write_source(["one", "two"])
    workplace.write_config("good:make")
    assert workplace.run().returncode == 0
    (workplace.folder / "broken.yaml").write_text("outputs: [")
    for command in ("status", "verify", "report", "retry", "clean"):
        by_config, by_folder = (
            workplace.call(command, str(path)) for path in (workplace.config_path, workplace.workdir)
        )
        assert by_config.returncode == by_folder.returncode == 0, by_config.stderr
        assert command == "clean" or by_config.stdout == by_folder.stdout
        ended = workplace.call(command, str(workplace.folder / "broken.yaml"))
        assert ended.returncode == 78
        assert "broken.yaml:1:" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["rnu", "config.yaml"], "there is no command rnu; did you mean run?"),
        (["stat", "work"], "did you mean status?"),
        (["xyzzy"], "there are: run, encode, "),
        (["run", "config.yaml", "--max-row", "3"], "--max-rows"),
        (["run", "config.yaml", "--resume"], "continues by itself"),
        (["encode", "rows.csv", "--model", "m", "-o", "out.npy", "--update"], "`chunkvisor run CONFIG --update`"),
        (["run", "config.yaml", "--dry-run"], "chunkvisor plan CONFIG"),
        (["status", "work", "--jsn"], "--json"),
        (["drill", "config.yaml", "--fault", "segfalt"], "did you mean segfault?"),
        (["completion", "bash"], "completion is gone: eval"),
        (["run", "config.yaml", "--slice", "1/2"], "--slice: give each source file"),
    ],
    ids=" ".join,
)
def test_wrong_name_gives_the_nearest(workplace: Workplace, arguments: list[str], hint: str) -> None:
    """A command, an option or a word that does not exist is a usage error, which names what may have been meant."""
    ended = workplace.call(*arguments)
    assert ended.returncode == 2
    assert hint in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_workdir_that_is_not_given(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A usage error names the workdirs that are near, or the configs, the newest first, and shows what to type."""
    monkeypatch.chdir(workplace.folder)
    ended = workplace.call("status")
    assert ended.returncode == 2
    assert "Missing argument WORKDIR: the folder of a run" in ended.stderr
    assert "Example: chunkvisor status cache/embeddings" in ended.stderr
    for number, name in enumerate(("cache/old", "new folder", ".hidden", "far/too/deep")):
        folder = Layout(workplace.folder / name)
        folder.mark.parent.mkdir(parents=True)
        folder.mark.touch()
        folder.events.touch()
        os.utime(folder.events, (number, number))
        (workplace.folder / f"{number}.yaml").touch()
        os.utime(workplace.folder / f"{number}.yaml", (number, number))
    for command in ("status", "report", "verify", "retry", "clean"):
        ended = workplace.call(command)
        assert ended.returncode == 2
        assert "; here are: new folder, cache/old. " in ended.stderr
        assert f"Example: chunkvisor {command} 'new folder'" in ended.stderr
    for command in ("run", "plan", "drill", "tune", "audit"):
        ended = workplace.call(command)
        assert ended.returncode == 2
        assert f"; here are: 3.yaml, 2.yaml, 1.yaml, 0.yaml. Example: chunkvisor {command} 3.yaml" in ended.stderr


def test_a_source_in_the_place_of_a_config(workplace: Workplace) -> None:
    """Whoever runs a CSV file is told of `encode`, with the line to type."""
    (workplace.folder / "papers.csv").write_text("title\none\n")
    ended = workplace.call("run", str(workplace.folder / "papers.csv"))
    assert ended.returncode == 78
    assert f"chunkvisor encode {workplace.folder / 'papers.csv'} --column NAME" in ended.stderr


@pytest.mark.parametrize("source", ["gone.csv", "rows.csv"])
def test_the_sources_are_looked_at_before_the_hub(workplace: Workplace, source: str) -> None:
    """A source or a column that is not there is named at once, however long the hub and the download would take."""
    (workplace.folder / "rows.csv").write_text("title\none\n")
    config = workplace.folder / "hub.yaml"
    output = f"outputs: {{out: {{source: {source}, column: text}}}}"
    config.write_text(f"workdir: w\ndevice: cpu\nmodel: {{name: nobody/has-this}}\n{output}\n")
    ended = workplace.call("run", str(config))
    assert ended.returncode == 78, ended.stderr
    assert source in ended.stderr
    assert "asking the model hub" not in ended.stderr
    assert not (workplace.folder / "w" / "fetch").exists()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("chunkvisor dr", ["drill"]),
        ("chunkvisor run --max", ["--max-rows"]),
        ("chunkvisor run conf", ["config.yaml"]),
        ("chunkvisor run other/", ["other/a.yaml", "other/b.yml"]),
        ("chunkvisor run o", ["the shell: default", ""]),  # it knows files and folders best
        ("chunkvisor status w", ["the shell: default", ""]),
        ("chunkvisor run config.yaml --set recovery.m", ["recovery.min_batch_size=", "recovery.max_bad_rows="]),
        ("chunkvisor plan config.yaml --set device", ["device="]),
        ("chunkvisor drill config.yaml --fault seg", ["segfault"]),
        ("chunkvisor drill config.yaml --fault ", [fault.name for fault in FAULTS]),
    ],
)
def test_bash_completes(workplace: Workplace, complete: Complete, line: str, offered: list[str]) -> None:
    """A real bash offers commands, options, config files, keys of the config and names of faults."""
    workplace.write_config("good:make")
    (workplace.folder / "other").mkdir()
    for name in ("a.yaml", "b.yml", "c.txt"):
        (workplace.folder / "other" / name).touch()

    assert complete(line) == offered


def test_completion_of_a_folder_that_is_not_there(complete: Complete, tmp_path: Path) -> None:
    """A path that leads nowhere is left to the shell, without a word."""
    assert complete(f"chunkvisor run {tmp_path}/nowhere/c") == ["the shell: default", ""]
