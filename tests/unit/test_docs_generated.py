"""What stands behind the generated pages is whole; tests/unit/test_hygiene.py says when a page is stale."""

import click

from chunkvisor.cli import cli
from chunkvisor.errors import ExitCode
from commandpart import EXITS
from configpart import keys


def test_exit_codes_are_told_of_every_command() -> None:
    """The table behind the page has each command, and codes that exist."""
    assert set(EXITS) == set(cli.list_commands(click.Context(cli)))
    assert {code for ends in EXITS.values() for code in ends} <= set(ExitCode)
    assert all(ExitCode.COMPLETE in ends for ends in EXITS.values())


def test_every_key_says_what_it_means() -> None:
    """Each key of the config has a sentence, which editors show, too."""
    assert [key for key, field in keys().items() if not field.description and "." in key] == []
