"""Tables and inline code in Markdown."""

import re
from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells may hold any text, of which line breaks become spaces."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_cell(each) for each in line) + " |" for line in lines)


def code(text: str) -> str:
    """Inline code; with two backticks where the text holds one."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}"


def _cell(text: str) -> str:
    # Outside of inline code, <name> would be taken for HTML.
    parts = re.split(r"(`+[^`]*`+)", " ".join(text.split()).replace("|", "\\|"))
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)
