"""Events of an output: its source is read, it is opened, its chunks are joined."""

from dataclasses import dataclass
from typing import ClassVar

from chunkvisor.events.event import Event, Severity


@dataclass(frozen=True, slots=True)
class Staging(Event):
    """Its source is being read."""

    words: ClassVar[str] = "{output}: reading its source"

    output: str


@dataclass(frozen=True, slots=True)
class Staged(Event):
    """Its source has been read."""

    words: ClassVar[str] = "{output}: {rows:,} rows, {distinct:,} distinct texts"

    output: str
    rows: int
    distinct: int


@dataclass(frozen=True, slots=True)
class OutputOpened(Event):
    """There is work to do for it; of a slice, the figures are those of its share."""

    words: ClassVar[str] = "{output}: {chunks:,} chunks of {chunk_size:,} texts, {chunks_done:,} done before"

    output: str
    rows: int
    distinct: int
    """Different texts."""
    chunks: int
    chunk_size: int = 0
    chunks_done: int = 0
    texts_done: int = 0


@dataclass(frozen=True, slots=True)
class OutputAlreadyComplete(Event):
    """An earlier run has made its final file."""

    words: ClassVar[str] = "{output}: complete already, {rows:,} rows x {dimension}, {path}"

    output: str
    rows: int
    dimension: int = 0
    path: str = ""


@dataclass(frozen=True, slots=True)
class Assembling(Event):
    """Its chunks are being joined."""

    words: ClassVar[str] = "{output}: joining {chunks:,} chunks"

    output: str
    chunks: int = 0


@dataclass(frozen=True, slots=True)
class WaitingToJoin(Event):
    """There is no room for its final file."""

    words: ClassVar[str] = "{output}: waiting for disk space: {reason}"
    severity: ClassVar[Severity] = Severity.CARE

    output: str
    reason: str


@dataclass(frozen=True, slots=True)
class OutputComplete(Event):
    """It has its final file."""

    words: ClassVar[str] = "{output}: complete, {rows:,} rows x {dimension}, {path}"

    output: str
    rows: int
    dimension: int = 0
    path: str = ""
