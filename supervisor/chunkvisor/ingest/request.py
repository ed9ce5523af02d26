"""The request for one staged table: which sources, and which text each of their rows gives."""

from dataclasses import dataclass

from chunkvisor.errors import config_error
from chunkvisor.ingest.template import parse_template

DEFAULT_MEMORY_BYTES = 1 << 30


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
    max_rows: int | None = None
    """Rows from the start of the concatenated sources; None = all."""
    memory_limit_bytes: int = DEFAULT_MEMORY_BYTES
    """Of the child process, about."""

    def __post_init__(self) -> None:
        if self.max_rows is not None and self.max_rows < 1:
            raise config_error(f"`max_rows` is {self.max_rows}; it must be at least 1.")
        if self.template is not None:
            parse_template(self.template)
