"""What `--help` says is so: every default, name, option, key and exit code that it tells is the program's."""

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
VERBS = {name: cli.get_command(GROUP, name) for name in cli.list_commands(GROUP)}


def command(verb: str) -> click.Command:
    """The command of that name."""
    found = VERBS[verb]
    assert found is not None
    return found


def said(verb: str) -> str:
    """All words of its help, on one line."""
    words = command(verb).get_help(click.Context(command(verb), info_name=verb, parent=GROUP))
    return " ".join(words.split())


@pytest.mark.parametrize("verb", VERBS)
def test_options_and_exit_codes(verb: str) -> None:
    """Options that a help names are the command's own, and exit codes are among those that its page lists."""
    own = {name for each in command(verb).params for name in each.opts} | {"--help"}
    words = said(verb).replace("yaml-language-server", "")
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", words)) <= own
    codes = {int(code) for code in re.findall(r"exit code,? (?:which )?(?:is )?(\d+)", words)}
    codes |= {int(code) for code in re.findall(r"and (\d+) where", words)}
    assert codes <= set(EXITS[verb])


@pytest.mark.parametrize("verb", VERBS)
def test_the_example_is_a_call(verb: str) -> None:
    """The example of each help is taken by the parser, and names keys, faults and entries that are there."""
    example = (command(verb).help or "").partition("Example: ")[2].splitlines()[0]
    first, *arguments = shlex.split(re.split(r" (?:&&|>>?) ", example)[0])
    assert (first, arguments.pop(0)) == ("chunkvisor", verb)
    context = command(verb).make_context(verb, arguments, parent=GROUP, resilient_parsing=False)
    for override in context.params.get("overrides") or ():
        assert override.partition("=")[0] in keys()
    assert set(context.params.get("names") or ()) <= {fault.name for fault in FAULTS}
    assert verb != "explain" or context.params["name"] in names()


@pytest.mark.parametrize("verb", [verb for verb in VERBS if "e.g. " in said(verb)])
def test_keys_that_are_named(verb: str) -> None:
    """`e.g. chunk.size=200` is a key of the config."""
    assert set(re.findall(r"e\.g\. ([\w.]+)=", said(verb))) <= set(keys())
