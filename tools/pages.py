"""Writes the parts of docs/ that the code knows: `python tools/pages.py`.

A test says when they are stale.

A part stands between two comments, `<!-- Generated: NAME -->` and `<!-- End -->`; all around it is
written by hand.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import commandpart
import configpart
import eventpart
import failurepart
import metricpart
import pythonpart

DOCS = Path(__file__).parents[1] / "docs"

PARTS: dict[str, Callable[[], str]] = {
    "commands": commandpart.commands,
    **configpart.PARTS,
    "events": eventpart.events,
    "metrics": metricpart.metrics,
    **pythonpart.PARTS,
    "outcomes": failurepart.outcomes,
}
"""Name of a part -> what makes its Markdown."""

_PART = re.compile(
    r"(?<=^<!-- Generated: )(.+?)( -->\n).*?(?=^<!-- End -->$)", re.MULTILINE | re.DOTALL
)


def parts_in(page: str) -> list[str]:
    """Names of the generated parts of a page."""
    return [match[1] for match in _PART.finditer(page)]


def renewed(page: str) -> str:
    """The page with all its generated parts written again.

    Raises KeyError for a part that nothing makes.
    """
    return _PART.sub(lambda match: f"{match[1]}{match[2]}\n{PARTS[match[1]]().strip()}\n\n", page)


def main() -> None:
    """Write what has changed, and say which pages."""
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text("utf-8")
        if (new := renewed(text)) != text:
            path.write_text(new, "utf-8")
            sys.stdout.write(f"{path.relative_to(DOCS.parent)}\n")


if __name__ == "__main__":
    main()
