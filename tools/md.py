"""Lists and inline code in Markdown."""

import re
from collections.abc import Iterable


def listing(entries: Iterable[tuple[str, str]]) -> str:
    """A list with a name and what is said of it in each line; line breaks become spaces."""
    return "\n".join(
        f"- {_plain(name)}: {_plain(said)}" if said else f"- {_plain(name)}"
        for name, said in entries
    )


def code(text: str) -> str:
    """Inline code; with two backticks if the text holds one."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}"


def _plain(text: str) -> str:
    # Outside of inline code, <name> would be taken for HTML.
    parts = re.split(r"(`+[^`]*`+)", " ".join(text.split()))
    parts[::2] = [part.replace("<", "&lt;") for part in parts[::2]]
    return "".join(parts)
