"""docs/reference/commands.md from click: every command with its options and exit codes."""

import re

import click

from chunkvisor.cli import cli
from chunkvisor.errors import ExitCode
from md import code, table

EXITS: dict[str, tuple[ExitCode, ...]] = {
    "run": (
        ExitCode.COMPLETE,
        ExitCode.QUARANTINED,
        ExitCode.MACHINE,
        ExitCode.DISK,
        ExitCode.TRY_AGAIN,
        ExitCode.CONFIG,
        ExitCode.INTERRUPTED,
        ExitCode.TERMINATED,
    ),
    "plan": (
        ExitCode.COMPLETE,
        ExitCode.MACHINE,
        ExitCode.DISK,
        ExitCode.TRY_AGAIN,
        ExitCode.CONFIG,
        ExitCode.TERMINATED,
    ),
    "doctor": (
        ExitCode.COMPLETE,
        ExitCode.MACHINE,
        ExitCode.CONFIG,
    ),
    "drill": (
        ExitCode.COMPLETE,
        ExitCode.USAGE,
        ExitCode.TRY_AGAIN,
        ExitCode.CONFIG,
    ),
    "status": (
        ExitCode.COMPLETE,
        ExitCode.CONFIG,
    ),
    "report": (
        ExitCode.COMPLETE,
        ExitCode.DISK,
        ExitCode.CONFIG,
    ),
    "verify": (
        ExitCode.COMPLETE,
        ExitCode.DISK,
        ExitCode.CONFIG,
    ),
    "audit": (
        ExitCode.COMPLETE,
        ExitCode.QUARANTINED,
        ExitCode.MACHINE,
        ExitCode.CONFIG,
    ),
    "tune": (
        ExitCode.COMPLETE,
        ExitCode.QUARANTINED,
        ExitCode.MACHINE,
        ExitCode.CONFIG,
    ),
    "retry": (
        ExitCode.COMPLETE,
        ExitCode.DISK,
        ExitCode.TRY_AGAIN,
        ExitCode.CONFIG,
    ),
    "clean": (
        ExitCode.COMPLETE,
        ExitCode.TRY_AGAIN,
        ExitCode.CONFIG,
    ),
    "init": (
        ExitCode.COMPLETE,
        ExitCode.CONFIG,
    ),
    "explain": (
        ExitCode.COMPLETE,
        ExitCode.USAGE,
    ),
    "schema": (ExitCode.COMPLETE,),
}
EXITS["encode"] = EXITS["run"]
"""What each command ends with, beside 1, 2, 74 and 130, which any of them can."""


def commands() -> str:
    """Every command, in the order of `chunkvisor --help`."""
    context = click.Context(cli, info_name="chunkvisor")
    parts = []
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        parts.append(_command(command, click.Context(command, info_name=name, parent=context)))
    return "\n\n".join(parts)


def _command(command: click.Command, context: click.Context) -> str:
    words, _, example = (command.help or "").partition("Example: ")
    usage = f"chunkvisor {command.name} {' '.join(command.collect_usage_pieces(context))}"
    lines = [f"## {command.name}", "", _joined(words), "", f"```text\n{usage}\n```", ""]
    options = [each for each in command.params if isinstance(each, click.Option)]
    if options:
        lines += [table(("option", "meaning"), [(code(_spelled(each)), _said(each)) for each in options]), ""]
    lines += [f"Example: {code(_joined(example.splitlines()[0]))}", ""]
    ends = ", ".join(str(int(each)) for each in sorted(EXITS[str(command.name)]))
    return "\n".join([*lines, f"Exit codes: {ends}."])


def _spelled(option: click.Option) -> str:
    """Its names and what it takes. Not click's own words for it, which differ between releases."""
    names = ", ".join(sorted(option.opts, key=len))
    if option.is_flag:
        return names
    if isinstance(option.type, click.Choice):
        return f"{names} {{{','.join(map(str, option.type.choices))}}}"
    return f"{names} {option.metavar or option.type.name.upper()}"


def _said(option: click.Option) -> str:
    """What it does, with its default."""
    told = option.show_default or isinstance(option.type, click.Choice)
    more = [f"default: {option.default}"] * bool(told) + ["required"] * option.required
    return (option.help or "") + (f" ({'; '.join(more)})" if more else "")


def _joined(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("\b", "")).strip()
