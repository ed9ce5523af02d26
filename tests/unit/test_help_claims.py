"""What `--help` says is so: every option, key, fault and exit code that it tells is the program's."""

import re
import shlex

import click
import pytest

from chunkvisor.cli import cli
from chunkvisor.commands.explain import names
from chunkvisor.testing import FAULTS
from commandpart import EXITS
from configpart import keys

GROUP = click.Context(cli, info_name="chunkvisor")
VERBS = cli.list_commands(GROUP)


@pytest.mark.parametrize("verb", VERBS)
def test_what_help_says(verb: str) -> None:
    """Options, exit codes and keys that it names are there, and its example is taken by the parser."""
    command = cli.get_command(GROUP, verb)
    assert command is not None
    words = " ".join(command.get_help(click.Context(command, info_name=verb, parent=GROUP)).split())
    own = {name for each in command.params for name in each.opts} | {"--help"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", words)) <= own
    codes = {int(code) for code in re.findall(r"exit code,? (?:which )?(?:is )?(\d+)", words)}
    codes |= {int(code) for code in re.findall(r"and (\d+) where", words)}
    assert codes <= set(EXITS[verb])
    assert set(re.findall(r"e\.g\. ([\w.]+)=", words)) <= set(keys())

    example = (command.epilog or "").partition("Example: ")[2].splitlines()[0]
    first, *arguments = shlex.split(re.split(r" (?:&&|>>?) ", example)[0])
    assert (first, arguments.pop(0)) == ("chunkvisor", verb)
    given = command.make_context(verb, arguments, parent=GROUP, resilient_parsing=False).params
    assert {override.partition("=")[0] for override in given.get("overrides") or ()} <= set(keys())
    assert set(given.get("names") or ()) <= {fault.name for fault in FAULTS}
    assert verb != "explain" or given["name"] in names()
