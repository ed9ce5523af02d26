"""docs/reference/commands.md from click: every command with its options and exit codes."""

import re
from collections.abc import Mapping

import click

from chunkvisor.cli import cli
from chunkvisor.errors import ExitCode
from md import code, table

EXITS: dict[str, Mapping[ExitCode, str]] = {
    "run": {
        ExitCode.COMPLETE: "complete",
        ExitCode.QUARANTINED: "finished; some rows have no vector",
        ExitCode.MACHINE: "this machine cannot do it: GPU, driver, hardware",
        ExitCode.DISK: "the disk is full, failing or read-only",
        ExitCode.TRY_AGAIN: "a passing cause; the same command goes on",
        ExitCode.CONFIG: "the config, the model or the input is wrong",
        ExitCode.INTERRUPTED: "stopped by SIGINT",
        ExitCode.TERMINATED: "stopped by SIGTERM",
    },
    "plan": {
        ExitCode.COMPLETE: "the plan is shown",
        ExitCode.MACHINE: "the sources cannot be read on this machine",
        ExitCode.DISK: "no room for the temporary folder",
        ExitCode.TRY_AGAIN: "the reader of the sources was killed",
        ExitCode.CONFIG: "the config or a source is wrong",
        ExitCode.TERMINATED: "stopped by SIGTERM",
    },
    "doctor": {
        ExitCode.COMPLETE: "no fault",
        ExitCode.MACHINE: "a fault of the machine",
        ExitCode.CONFIG: "a fault of the config or its model",
    },
    "drill": {
        ExitCode.COMPLETE: "the run recovered from every fault",
        ExitCode.USAGE: "there is no fault of that name",
        ExitCode.TRY_AGAIN: "it did not recover from all of them",
        ExitCode.CONFIG: "the config is wrong; or another code of `run`, of the undisturbed run",
    },
    "status": {ExitCode.COMPLETE: "the state is shown", ExitCode.CONFIG: "no workdir there"},
    "report": {
        ExitCode.COMPLETE: "the page is written",
        ExitCode.DISK: "the page cannot be written",
        ExitCode.CONFIG: "no workdir there",
    },
    "verify": {
        ExitCode.COMPLETE: "every file is as it was written",
        ExitCode.DISK: "a file is damaged or missing",
        ExitCode.CONFIG: "no workdir there, or nothing to check yet",
    },
    "audit": {
        ExitCode.COMPLETE: "the vectors are the same",
        ExitCode.QUARANTINED: "some vectors differ",
        ExitCode.MACHINE: "this machine cannot encode",
        ExitCode.CONFIG: "no workdir, no finished output, or the model cannot be loaded",
    },
    "tune": {
        ExitCode.COMPLETE: "a setting is recommended",
        ExitCode.QUARANTINED: "no setting is near enough to float32",
        ExitCode.MACHINE: "this machine cannot encode",
        ExitCode.CONFIG: "the config is wrong, or the encoder is a plug-in",
    },
    "retry": {
        ExitCode.COMPLETE: "the rows are pending again, or there were none",
        ExitCode.DISK: "a record is damaged",
        ExitCode.TRY_AGAIN: "a run is at work there",
        ExitCode.CONFIG: "no workdir there",
    },
    "clean": {
        ExitCode.COMPLETE: "done",
        ExitCode.TRY_AGAIN: "a run is at work there",
        ExitCode.CONFIG: "no workdir there",
    },
    "init": {ExitCode.COMPLETE: "the config is written", ExitCode.CONFIG: "the file is there already"},
    "explain": {ExitCode.COMPLETE: "the entry is shown", ExitCode.USAGE: "there is no such entry"},
    "schema": {ExitCode.COMPLETE: "the schema is shown"},
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
    ends = "; ".join(f"**{int(each)}** {said}" for each, said in sorted(EXITS[str(command.name)].items()))
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
