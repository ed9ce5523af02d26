"""What the pages have from the program is what the program says now: `python tools/pages.py` writes it."""

import click
import pytest

import pages
from chunkvisor.cli import cli
from chunkvisor.errors import ExitCode
from commandpart import EXITS
from configpart import keys
from docpages import text_of
from harness import ROOT


def test_no_page_is_stale() -> None:
    """Each generated part is as `python tools/pages.py` writes it, and each that can be made is in one page."""
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed (extra: metrics)")
    texts = {page: text_of(page) for page in (ROOT / "docs").rglob("*.md")}
    stale = [str(page.relative_to(ROOT)) for page, text in texts.items() if pages.renewed(text) != text]
    assert stale == [], "run `python tools/pages.py`, and commit what it writes"
    assert sorted(name for text in texts.values() for name in pages.parts_in(text)) == sorted(pages.PARTS)


def test_exit_codes_are_told_of_every_command() -> None:
    """The table behind the page has each command, and codes that exist."""
    assert set(EXITS) == set(cli.list_commands(click.Context(cli)))
    assert {code for ends in EXITS.values() for code in ends} <= set(ExitCode)
    assert all(ExitCode.COMPLETE in ends for ends in EXITS.values())


def test_every_key_says_what_it_means() -> None:
    """Each key of the config has a sentence, which editors show, too."""
    assert [key for key, field in keys().items() if not field.description and "." in key] == []
