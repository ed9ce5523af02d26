"""What holds for the whole program: who imports whom, what the supervisor never loads, who may read the files."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import chunkvisor.cli
from harness import ROOT

SUPERVISOR, WORKER = ROOT / "supervisor" / "chunkvisor", ROOT / "worker" / "chunkvisor_worker"
HEAVY = ("torch", "transformers", "sentence_transformers", "tokenizers", "duckdb", "ray")
"""None of these may come into the supervisor's process."""

ROOMS = (
    *("cli", "testing", "api", "commands", "supervise", "observe", "events", "assemble", "ingest", "engine", "devices"),
    *("store", "decide", "config", "child", "errors", "units", "version"),
)
"""The rooms, and the modules beside them, from top to bottom."""


def imported(path: Path) -> Iterator[str]:
    """Modules that a file imports anywhere in it, function bodies included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files_of(package: Path) -> list[Path]:
    """Its Python files; there are some."""
    files = sorted(package.rglob("*.py"))
    assert files
    return files


@pytest.mark.parametrize("path", files_of(SUPERVISOR), ids=lambda path: str(path.relative_to(SUPERVISOR)))
def test_supervisor_knows_only_the_contract(path: Path) -> None:
    """Of the worker the supervisor imports nothing but `contract`; and no heavy library but in a child."""
    allowed = {"duckdb"} if path.parent.name == "ingest" else set()
    if path.parent.name == "ray" and path.name in ("bridge.py", "agentproxy.py", "survey.py"):
        allowed = {"ray"}
    for name in imported(path):
        assert not f"{name}.".startswith("chunkvisor_worker.") or f"{name}.".startswith("chunkvisor_worker.contract.")
        assert name.partition(".")[0] not in set(HEAVY) - allowed


@pytest.mark.parametrize("path", files_of(SUPERVISOR), ids=lambda path: str(path.relative_to(SUPERVISOR)))
def test_room_imports_only_what_stands_below_it(path: Path) -> None:
    """Every module is in a room of the list, and imports that room and those below; none imports the package itself."""
    room = path.relative_to(SUPERVISOR).with_suffix("").parts[0]
    if room == "__init__":
        return
    below = ROOMS[ROOMS.index(room) :]
    for name in imported(path):
        package, _, inside = name.partition(".")
        assert package != "chunkvisor" or inside.partition(".")[0] in below, f"{room} imports {name}: not below it"


@pytest.mark.parametrize("path", files_of(WORKER), ids=lambda path: str(path.relative_to(WORKER)))
def test_worker_does_not_know_the_supervisor(path: Path) -> None:
    """The worker imports nothing of the supervisor; its contract needs the standard library and itself alone."""
    for name in imported(path):
        top = name.partition(".")[0]
        assert top != "chunkvisor"
        if (WORKER / "contract") in path.parents:
            assert top in sys.stdlib_module_names or f"{name}.".startswith("chunkvisor_worker.contract.")


@pytest.mark.parametrize("name", chunkvisor.cli.cli.list_commands(click.Context(chunkvisor.cli.cli)))
def test_command_is_listed_and_has_an_example(name: str) -> None:
    """`--help` lists the command, its own help has an example of it, and every option says what it does."""
    context = click.Context(chunkvisor.cli.cli, info_name="chunkvisor")
    command = chunkvisor.cli.cli.get_command(context, name)
    assert command is not None
    assert command.name == name
    listed = [line.split()[0] for line in chunkvisor.cli.cli.get_help(context).splitlines() if line.strip()]
    assert name in listed
    help_text = command.get_help(click.Context(command, info_name=name, parent=context))
    assert f"\n  Example: chunkvisor {name}" in help_text
    for option in command.params:
        assert not isinstance(option, click.Option) or option.help, option.name
