"""docs/reference/commands.md from click: every command with its options and exit codes."""

import re
from collections.abc import Iterator

import click

from chunkvisor.cli import cli
from md import code

EXITS: dict[str, tuple[int, ...]] = {
    "run": (0, 3, 69, 74, 75, 78, 130, 143),
    "plan": (0, 69, 74, 75, 78, 143),
    "doctor": (0, 69, 78),
    "drill": (0, 2, 75, 78),
    "status": (0, 78),
    "report": (0, 74, 78),
    "verify": (0, 74, 78),
    "audit": (0, 3, 69, 78),
    "tune": (0, 3, 69, 78),
    "retry": (0, 69, 74, 75, 78),
    "clean": (0, 69, 75, 78),
    "init": (0, 78),
    "explain": (0, 2),
}
RANGE = re.compile(r"; 1<=x<=\d+| \[1<=x<=\d+\]| \[x>=0\]")
EXITS["encode"] = EXITS["run"]
"""What each command ends with, except 1, 2, 74 and 130, which any of them can."""


def commands() -> str:
    """Every command, in the order of `chunkvisor --help`."""
    context = click.Context(cli, info_name="chunkvisor", **cli.context_settings)
    parts = []
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        parts.append(_command(command, click.Context(command, info_name=name, parent=context)))
    return "\n\n".join(parts)


def _command(command: click.Command, context: click.Context) -> str:
    usage = f"chunkvisor {command.name} {' '.join(command.collect_usage_pieces(context))}"
    # the page says so once
    told = _joined(command.help or "").replace(" You may give the config instead of WORKDIR.", "")
    lines = [f"## {command.name}", "", f"{code(usage)}: {told}", ""]
    options = [*_options(command, context)]
    lines += [*options, ""] if options else []
    ends = ", ".join(map(str, EXITS[str(command.name)]))
    return "\n".join([*lines, f"Exit codes: {ends}."])


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield a line for each option."""
    for option in command.params:
        record = option.get_help_record(context)
        if isinstance(option, click.Option) and record:
            yield f"- {code(record[0])}: {RANGE.sub('', _joined(record[1]))}"


def _joined(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("\b", "")).strip()
