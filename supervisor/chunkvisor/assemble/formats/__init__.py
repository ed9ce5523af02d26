"""The formats of finals: one module each, and this table of them; everything else goes by the table.

May import what `assemble` may; `assemble` imports it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from chunkvisor.assemble.formats import npy, parquet
from chunkvisor.assemble.numbers import Numbers, Positions, Stored
from chunkvisor.config.choices import FinalFormat
from chunkvisor.store.artifact import Hash


class PartWriter(Protocol):
    """A new file of a final, as a context; it is synced and read back while it grows, see `checkedfile`."""

    def __enter__(self) -> "PartWriter":
        """Itself."""

    def __exit__(self, *error: object) -> None:
        """Close it, complete or not."""

    def write(self, rows: Stored, missing: Positions) -> None:
        """Append rows; `missing` are the positions of those without a vector. Raises OSError."""

    def finish(self) -> str:
        """Write what is left, and return the sha256 of the file, hex. Raises OSError."""


@dataclass(frozen=True, slots=True)
class Format:
    """What is to be known of a format."""

    suffix: str
    """Of its files, without the dot."""
    create: Callable[[Path, int, Numbers, int, Path | None], PartWriter]
    """Begins a file for that number of rows; then the number of the first, and the rows table. Raises OSError."""
    read: Callable[[Path, int, Numbers, Hash | None], Iterator[tuple[Stored, Positions | None]]]
    """All rows in blocks, and which of each have no vector (None = cannot be told); the digest gets each byte.

    Raises BadVectorsError where the file is not what it should be, OSError."""
    package: str | None = None
    """What it needs to be installed."""
    extra: str = ""
    """The extra of ours that has it."""

    @property
    def can_be_read(self) -> bool:
        """Whether what it needs is installed."""
        return self.package is None or find_spec(self.package) is not None


FORMATS = {
    FinalFormat.NPY: Format("npy", npy.create, npy.read),
    FinalFormat.PARQUET: Format("parquet", parquet.create, parquet.read, "pyarrow", "parquet"),
}
