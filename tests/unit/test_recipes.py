"""What CONTRIBUTING's recipes say is to be touched: whoever forgets a part of it fails here, in
mypy, or beside it.
"""

import ast
import re
from pathlib import Path

import pytest

from chunkvisor.commands import doctor
from chunkvisor.events.event import KINDS
from chunkvisor.sources.resolve import IngestRequest, SourceFormat, resolve
from chunkvisor.sources.stage import stage
from chunkvisor.sources.table import StagedTable
from harness import ROOT
from ingest_files import write_texts

SUPERVISOR = ROOT / "supervisor" / "chunkvisor"
TEXTS = ["one", "two"]


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


@pytest.mark.parametrize("format_", sorted(SourceFormat))
def test_every_source_format_is_read(tmp_path: Path, format_: SourceFormat) -> None:
    """A file of the format is staged, and the page on sources has its suffix."""
    write_texts(tmp_path / f"a.{format_}", TEXTS)
    (tmp_path / "table").mkdir()
    stage(IngestRequest((str(tmp_path / f"a.{format_}"),), column="text"), tmp_path / "table")
    assert StagedTable.open(tmp_path / "table").texts(0, 2) == TEXTS
    (file,) = resolve([str(tmp_path / f"a.{format_}")])
    assert file.format is format_
    assert f"`.{format_}`" in (ROOT / "docs" / "how-to" / "sources.md").read_text("utf-8")


def test_the_doctors_page_has_every_check() -> None:
    """docs/reference/checks.md lists each check of the doctor, and no other."""
    source = Path(doctor.__file__).read_text()
    page = (ROOT / "docs" / "reference" / "checks.md").read_text("utf-8")
    page = page.partition("### The checks\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^- `([\w-]+)`:", page, re.MULTILINE))
    assert {name for name in listed if f'"{name}"' not in source} == set()
    assert set(re.findall(r'Finding\(\s*"([\w-]+)"', source)) - listed == set()
