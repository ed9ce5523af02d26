"""Rows of a final in parquet by number: unpacked once into an array in a file without a name, which goes with its user.

A table is read by groups of rows. To take rows from all over it, each group would be read again and again.
"""

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

from chunkvisor.assemble.finalfiles import FinalPart
from chunkvisor.assemble.formats import FORMATS
from chunkvisor.assemble.numbers import Numbers
from chunkvisor.config.choices import FinalDtype, FinalFormat
from chunkvisor.store.artifact import npy_header


@dataclass(frozen=True, slots=True)
class Scratch:
    """Where tables are unpacked."""

    folder: Path
    """Of our own workdir: it takes the disk space of the vectors for as long as they are read."""
    on_block: Callable[[], None] = lambda: None
    """Called now and then; it may raise to stop."""


class Unpacked:
    """The parts of one final that were asked for."""

    def __init__(self, dimension: int, scratch: Scratch) -> None:
        self._numbers = Numbers(FinalDtype.FLOAT32, dimension)
        self._scratch = scratch
        self._descriptors: dict[Path, int] = {}

    def path_of(self, part: FinalPart) -> Path:
        """The .npy of a part, float32; it is there as long as this object is. Raises OSError, BadVectorsError."""
        if part.path not in self._descriptors:
            with TemporaryFile(dir=self._scratch.folder) as file:
                file.write(npy_header(part.rows, self._numbers.width))
                for block, _ in FORMATS[FinalFormat.PARQUET].read(part.path, part.rows, self._numbers, None):
                    file.write(np.ascontiguousarray(block).data)
                    self._scratch.on_block()
                file.flush()
                self._descriptors[part.path] = kept = os.dup(file.fileno())
            weakref.finalize(self, os.close, kept)
        return Path(f"/proc/self/fd/{self._descriptors[part.path]}")
