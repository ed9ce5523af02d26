"""Tables and inline code in Markdown."""

import re
from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells may hold any text, of which line breaks become spaces. No bar inside of code."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_cell(each) for each in line) + " |" for line in lines)


def code(text: str) -> str:
    """Inline code; with two backticks where the text holds one."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}"


def _cell(text: str) -> str:
    # Outside of inline code, <name> would be taken for HTML. Inside, a bar is seen with its backslash on the site.
    parts = re.split(r"(`+[^`]*`+)", " ".join(text.split()))
    assert not any("|" in part for part in parts[1::2]), text
    parts[::2] = [part.replace("|", "\\|").replace("<", "&lt;") for part in parts[::2]]
    return "".join(parts)
