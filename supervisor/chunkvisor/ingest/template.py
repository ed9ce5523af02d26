"""Templates: a text with {column} in it, as a list of literals and columns."""

import re
from dataclasses import dataclass

from chunkvisor.errors import config_error

# Not string.Formatter: that splits a column name at ".", "[", "!" and ":".
_TOKEN = re.compile(r"(\{\{|\}\})|\{([^{}]*)\}|([{}])")


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of literal text, or the column that fills the place."""

    literal: str = ""
    column: str | None = None


def parse_template(template: str) -> tuple[Part, ...]:
    """The template's parts in order, at least one of them a column. Raises Halt (exit 78) for a malformed one."""
    parts: list[Part] = []
    literal, end = "", 0
    for token in _TOKEN.finditer(template):
        literal += template[end : token.start()]
        end = token.end()
        doubled, column, stray = token.groups()
        if stray:
            raise config_error(
                f"The template has a stray {stray} at character {token.start() + 1}: {template!r}.",
                remedy="Write {column} for a column, and {{ or }} for a literal brace.",
            )
        if doubled:
            literal += doubled[0]
        elif not column:
            raise config_error(f"The template has {{}} without a column name: {template!r}.")
        else:
            parts += [Part(literal=literal)] * bool(literal) + [Part(column=column)]
            literal = ""
    literal += template[end:]
    parts += [Part(literal=literal)] * bool(literal)
    if not any(part.column for part in parts):
        raise config_error(
            f"The template names no column: {template!r}.",
            why="Every row would have the same text.",
            remedy="Write {column} where a column's value belongs.",
        )
    return tuple(parts)
