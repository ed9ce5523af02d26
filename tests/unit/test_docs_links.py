"""Every link between the pages leads somewhere, on GitHub and on the site; no page is out of reach."""

import re
from pathlib import Path

import yaml

from docpages import PAGES, anchors, links, name_of, prose
from harness import ROOT


def test_every_link_leads_somewhere() -> None:
    """A relative link names a file that is there, and a heading that is in it."""
    wrong = []
    for page in [*PAGES, *ROOT.glob("tests/*/README.md")]:
        for target in links(page):
            name, _, anchor = target.partition("#")
            file = page.parent / name if name else page
            if "://" in target:
                continue
            if not file.exists() or (anchor and anchor not in anchors(file)):
                wrong.append(f"{name_of(page)}: {target}")
    assert wrong == []


def test_no_name_is_lost_as_html() -> None:
    """Outside of code a page has no tags: `<output>` without backticks would not be seen."""
    found = [(name_of(page), re.findall(r"<[a-z/][^>]*>", re.sub(r"`[^`]*`", "", prose(page)))) for page in PAGES]
    assert [each for each in found if each[1]] == []


def test_every_page_is_in_the_menu() -> None:
    """mkdocs.yml lists every page of docs/ once, and no other."""
    menu = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"[\w/-]+\.md", str(yaml.safe_load("nav:\n" + menu)))
    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))


def test_every_page_is_found_from_the_first() -> None:
    """From docs/index.md one comes to every page of docs/ by links."""
    start, found = ROOT / "docs" / "index.md", set[Path]()
    waiting = [start]
    while waiting:
        page = waiting.pop()
        if page in found or page.suffix != ".md":
            continue
        found.add(page)
        targets = [target.partition("#")[0] for target in links(page) if "://" not in target]
        waiting += [(page.parent / target).resolve() for target in targets if target]
    assert set((ROOT / "docs").rglob("*.md")) <= found
