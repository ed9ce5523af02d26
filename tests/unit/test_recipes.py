"""What CONTRIBUTING's recipes say is to be touched: whoever forgets a part of it fails here or
in mypy.
"""

import ast
import re
from pathlib import Path

from chunkvisor.commands import doctor
from chunkvisor.events.event import KINDS
from chunkvisor.sources.resolve import COMPRESSIONS, FORMATS
from harness import ROOT

SUPERVISOR = ROOT / "supervisor" / "chunkvisor"


def used(path: Path) -> set[str]:
    """Names that a file does something with, other than import them."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return attributes | {node.id for node in nodes if isinstance(node, ast.Name)}


def test_every_event_is_told() -> None:
    """Each class of events is used outside of `events`, by others than those who only show events."""
    told = set[str]()
    for file in SUPERVISOR.rglob("*.py"):
        if file.relative_to(SUPERVISOR).parts[0] not in ("events", "show"):
            told |= used(file)
    assert {kind.__name__ for kind in KINDS.values()} <= told


def test_every_source_format_is_on_its_page() -> None:
    """The page on sources has each suffix; tests/unit/sources/test_read.py reads them."""
    page = (ROOT / "docs" / "how-to" / "sources.md").read_text("utf-8")
    assert [suffix for suffix in (*FORMATS, *COMPRESSIONS) if f"`{suffix}`" not in page] == []


def test_the_doctors_page_has_every_check() -> None:
    """docs/reference/checks.md lists each check of the doctor, and no other."""
    source = Path(doctor.__file__).read_text()
    page = (ROOT / "docs" / "reference" / "checks.md").read_text("utf-8")
    page = page.partition("### The checks\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^- `([\w-]+)`:", page, re.MULTILINE))
    assert {name for name in listed if f'"{name}"' not in source} == set()
    assert set(re.findall(r'Finding\(\s*"([\w-]+)"', source)) - listed == set()
