"""The pages that people read, taken apart: blocks of code, inline code, headings, links."""

import functools
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

from harness import ROOT

PAGES = sorted(
    {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("benchmarks/diary/*.md")}
)
"""All of them; CHANGELOG.md and the diaries tell of their day."""
CURRENT = [page for page in PAGES if page.name != "CHANGELOG.md" and page.parent.name != "diary"]
"""Those that tell how it is now."""

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
].keys()
"""Names of the extras of the package."""

_BLOCK = re.compile(
    r"^(?:<!-- Not run: (?P<why>[^\n]+)\. -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.M | re.S,
)


class Block(NamedTuple):
    """A fenced block of code."""

    page: Path
    language: str
    text: str
    why_not: str
    """Why it is not run; empty where nothing is said of that."""

    @property
    def place(self) -> str:
        """For a message."""
        return f"{name_of(self.page)}: {self.text.splitlines()[0] if self.text else ''}"


def name_of(page: Path) -> str:
    """The path of a page in the repository."""
    return str(page.relative_to(ROOT))


@functools.cache
def text_of(page: Path) -> str:
    """A whole page."""
    return page.read_text("utf-8")


def blocks(page: Path, *languages: str) -> list[Block]:
    """The blocks of a page, of these languages if any are given."""
    found = [
        Block(page, match["language"], match["text"], match["why"] or "")
        for match in _BLOCK.finditer(text_of(page))
    ]
    return [block for block in found if not languages or block.language in languages]


@functools.cache
def prose(page: Path) -> str:
    """A page without its blocks."""
    return _BLOCK.sub("", text_of(page))


def inline_code(page: Path) -> list[str]:
    """What stands between backticks in the prose; an escaped bar of a table is a bar."""
    found = re.findall(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", prose(page))
    return [code.replace("\\|", "|").strip() for _, code in found]


def headings(page: Path) -> list[str]:
    """The headings of a page, as they are written."""
    return re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)


@functools.cache
def anchors(page: Path) -> set[str]:
    """The anchors that a page has both on GitHub and on the site, which make them in different
    ways.
    """
    names = [re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in headings(page)]
    both = [name for name in names if name.replace(" ", "-") == re.sub(r"[-\s]+", "-", name)]
    return {name.replace(" ", "-") for name in both if names.count(name) == 1}


def links(page: Path) -> list[str]:
    """The targets of all links and pictures of a page."""
    return re.findall(r"\]\(([^)\s]+)\)", prose(page))
