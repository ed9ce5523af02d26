"""The request for one staged table: which sources, and which text each of their rows gives."""

import re
from dataclasses import dataclass

from chunkvisor.errors import config_error

DEFAULT_MEMORY_BYTES = 1 << 30

# Not string.Formatter: that splits a column name at ".", "[", "!" and ":".
_TOKEN = re.compile(r"(\{\{|\}\})|\{([^{}]*)\}|([{}])")


@dataclass(frozen=True, slots=True)
class IngestRequest:
    """What to stage, by exactly one of column, template and sql. Raises Halt (exit 78) for a malformed template."""

    sources: tuple[str, ...]
    """Absolute paths or glob patterns, in the order of their rows."""
    column: str | None = None
    """Name of the column that holds the text; a .txt file has one column, `text`."""
    template: str | None = None
    """Text with {column} in it; {{ and }} are literal braces."""
    sql: str | None = None
    """SQL expression over the columns, of type VARCHAR."""
    skip_blank: bool = False
    """Blank lines of a source are no rows."""
    where: str | None = None
    """SQL condition over the columns; rows for which it does not hold are left out."""
    columns: tuple[str, ...] = ()
    """Columns that are carried along."""
    max_rows: int | None = None
    """Rows from the start of the concatenated sources; None = all."""
    memory_limit_bytes: int = DEFAULT_MEMORY_BYTES
    """Of the child process, about."""

    @property
    def has_rows_table(self) -> bool:
        """Whether something is to be known of each row beside its text."""
        return self.numbers_rows or bool(self.columns)

    @property
    def numbers_rows(self) -> bool:
        """Whether rows have other numbers than in the sources."""
        return self.where is not None

    def __post_init__(self) -> None:
        if self.max_rows is not None and self.max_rows < 1:
            raise config_error(f"`max_rows` is {self.max_rows}; it must be at least 1.")
        if self.template is not None:
            parse_template(self.template)


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
