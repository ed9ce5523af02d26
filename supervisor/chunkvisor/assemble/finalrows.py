"""Reads rows of a finished output by number, from arrays or tables; checks that they are what was written."""

import hashlib
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor.assemble.badrows import every_row
from chunkvisor.assemble.form import FinalPart, form_of
from chunkvisor.assemble.formats import FORMATS
from chunkvisor.assemble.manifest import recorded_parts
from chunkvisor.assemble.numbers import Numbers
from chunkvisor.config.choices import FinalDtype, FinalFormat
from chunkvisor.store.artifact import BLOCK_BYTES, BadVectorsError, Vectors, npy_header, read_shape
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.pickrows import expect_rows, pick_rows


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


Rows = npt.NDArray[np.int64]


class FinalRows:
    """The rows of the final that a manifest describes; it is float32."""

    def __init__(self, layout: OutputLayout, manifest: dict[str, Any], scratch: Scratch) -> None:
        """Raises DamagedError where it cannot be told which rows have no vector."""
        self.dimension = int(manifest["dimension"])
        self.without = np.array([each["row"] for each in every_row(layout, manifest)], dtype=np.int64)
        """Rows without a vector."""
        self._parts = recorded_parts(layout, manifest)
        self._starts = np.array([part.start for part, _ in self._parts])
        in_tables = form_of(manifest).format is FinalFormat.PARQUET
        self._unpacked = Unpacked(self.dimension, scratch) if in_tables else None

    def problem(self, on_block: Callable[[], None]) -> str | None:
        """What is wrong with the files, in words; None where they have the digests of the manifest.

        Reads them. Calls `on_block` now and then; it may raise to stop.
        """
        for part, recorded in self._parts:
            try:
                with open(part.path, "rb") as file:
                    if self._unpacked is None:
                        shape = read_shape(file)
                        if (shape.rows, shape.dimension) != (part.rows, self.dimension):
                            return f"{part.path} holds {shape.rows} x {shape.dimension}"
                        file.seek(0)
                    digest = hashlib.sha256()
                    while block := file.read(BLOCK_BYTES):
                        digest.update(block)
                        on_block()
            except (BadVectorsError, OSError) as error:
                return f"{part.path}: {error}"
            if digest.hexdigest() != recorded:
                return f"{part.path} has another digest than its manifest says"
        return None

    def read(self, rows: Rows) -> Vectors:
        """Rows by number, in that order; shape (len(rows), dimension). Raises OSError; ValueError for no such row."""
        if len(self._parts) == 1:
            return self._read(self._parts[0][0], rows)
        found = np.empty((len(rows), self.dimension), dtype="<f4")
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        for owner in np.unique(owners):
            part, hits = self._parts[owner][0], owners == owner
            found[hits] = self._read(part, rows[hits] - part.start)
        return found

    def _read(self, part: FinalPart, rows: Rows) -> Vectors:
        """By their numbers in the part."""
        try:
            path = part.path if self._unpacked is None else self._unpacked.path_of(part)
        except BadVectorsError as error:
            raise ValueError(f"{part.path} {error}") from error
        offset_bytes = len(npy_header(part.rows, self.dimension))
        expect_rows(path, offset_bytes, 4 * self.dimension, rows)
        found: Vectors = pick_rows(path, "<f4", offset_bytes, self.dimension, rows)
        return found
