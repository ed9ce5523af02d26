"""The files of an output's chunks: model facts, committed chunks, and parts of chunks.

The ledger reads and writes them through `ChunkFiles` alone, which the simulator replaces by files
in memory.
"""

import functools
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import numpy as np
import xxhash

from chunkvisor.store.artifact import (
    HEADER_BYTES,
    BadVectorsError,
    Vectors,
    chunk_key,
    inspect,
    npy_header,
    pick_rows,
    read_shape,
)
from chunkvisor.store.identity import BadText, FactsRecord, Plan, write_facts
from chunkvisor.store.layout import CHUNKS_PER_FOLDER, DIGEST_LENGTH, OutputLayout, numbers_in
from chunkvisor.store.records import read_if_whole, write_record
from chunkvisor_worker.contract.files import make_folder, remove_folder, sync, write_atomic
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import Facts

_CHUNK_NAME = re.compile(rf"(\d{{6,}})-[0-9a-f]{{{DIGEST_LENGTH}}}\.npy")


@frozen
class Part:
    """Texts of a chunk whose vectors were stored by one write."""

    texts: tuple[int, ...]
    digest: str
    """Of their vectors, one after the other: xxh3-128."""


@frozen
class Index:
    """Which texts of a chunk have a vector in its parts, and which are bad.

    There is one for each chunk that an attempt at the whole did not complete.
    """

    fingerprint: str
    parts: tuple[Part, ...] = ()
    bad: tuple[BadText, ...] = ()


def _chunk_names(layout: OutputLayout) -> Iterator[tuple[int, Path, str]]:
    """Give (number, folder, name) of the files of all committed chunks, in order. Raises OSError.

    One folder of a thousand is listed at a time.
    """
    for number in numbers_in(layout.chunks):
        folder = layout.chunk(number * CHUNKS_PER_FOLDER, "").parent
        for name in sorted(os.listdir(folder)):  # noqa: PTH208 - no Path for each
            match = _CHUNK_NAME.fullmatch(name)
            if match:
                yield int(match[1]), folder, name


def chunk_files(layout: OutputLayout) -> Iterator[tuple[int, Path]]:
    """Give (number, file) of all committed chunks, in order. Raises OSError."""
    return ((number, folder / name) for number, folder, name in _chunk_names(layout))


def committed_chunks(layout: OutputLayout, plan: Plan) -> bytearray:
    """Return one byte a chunk: 1 if one file has its number, 2 if several have it, else 0.

    No file is opened: its digest is checked when it is read.
    """
    found = bytearray(plan.count)
    for number, _, _ in _chunk_names(layout):
        if number < plan.count:
            found[number] = 2 if found[number] else 1
    return found


class ChunkFiles:
    """The chunk files of one output. Methods that write raise OSError."""

    def __init__(self, layout: OutputLayout, plan: Plan, fingerprint: str) -> None:
        self.layout = layout
        self.plan = plan
        self.fingerprint = fingerprint
        self._make_folder = functools.cache(make_folder)  # each folder is made and synced once

    def make_folders(self) -> None:
        """Make the folders that every run needs."""
        self.layout.attempts.mkdir(exist_ok=True)
        make_folder(self.layout.chunks)

    def read_facts(self) -> FactsRecord | None:
        """Return what is known of the model; None if there is no record, or it is damaged."""
        return read_if_whole(FactsRecord, self.layout.facts)

    def write_facts(self, facts: Facts, other_versions: Sequence[dict[str, str]] = ()) -> None:
        """Replace the record of the model."""
        write_facts(self.layout, facts, other_versions)

    # --- committed chunks

    def committed(self) -> bytearray:
        """Return one byte a chunk: 1 if it has a file.

        A chunk may have several, after a copy of the workdir was restored over it: the first that
        is whole stays, and the others are removed.
        """
        found = committed_chunks(self.layout, self.plan)
        if 2 not in found:
            return found
        for _, files in itertools.groupby(chunk_files(self.layout), key=itemgetter(0)):
            paths = list(files)
            if len(paths) > 1:
                whole = next((file for file in paths if self.is_whole(*file)), None)
                for file in paths:
                    if file != whole:
                        file[1].unlink()
        return committed_chunks(self.layout, self.plan)

    def is_whole(self, chunk: int, path: Path) -> bool:
        """Say whether the content of the chunk's file matches the digest in its name."""
        try:
            return self.is_name_of(chunk, path, inspect(path).digest)
        except (BadVectorsError, OSError):
            return False

    def is_name_of(self, chunk: int, path: Path, digest: str) -> bool:
        """Say whether the file has the name that the chunk gets with this xxh3-128 digest, hex."""
        key = chunk_key(self.fingerprint, *self.plan.bounds(chunk), digest)
        return path.name == self.layout.chunk(chunk, key).name

    def publish(self, chunk: int, vectors: Path, digest: str) -> None:
        """Commit the file as the chunk's by one rename; its name has the digest of its content."""
        key = chunk_key(self.fingerprint, *self.plan.bounds(chunk), digest)
        target = self.layout.chunk(chunk, key)
        self._make_folder(target.parent)
        if not target.exists():  # else an earlier try has failed after the rename
            sync(vectors)
            vectors.replace(target)
        sync(target.parent)

    def discard(self, chunk: int) -> None:
        """Remove the chunk's file."""
        folder = self.layout.chunk(chunk, "").parent
        for path in folder.glob(f"{chunk:06d}-*"):
            path.unlink()
        if folder.exists():
            # Else a power cut could bring back the chunk, whose bad texts `retry` makes pending.
            sync(folder)

    # --- parts of chunks: a file of the whole chunk, NaN where a vector is missing, and an index

    def taken_apart(self) -> list[int]:
        """List the chunks that have an index, in order."""
        return [chunk for chunk in numbers_in(self.layout.parts) if chunk < self.plan.count]

    def read_index(self, chunk: int) -> Index:
        """Return the index; an empty one if it is missing, damaged or of other settings."""
        index = read_if_whole(Index, self._index(chunk))
        if not index or index.fingerprint != self.fingerprint:
            return Index(self.fingerprint)
        if not self._vectors(chunk).exists():
            return replace(index, parts=())
        return index

    def write_index(self, chunk: int, index: Index) -> None:
        """Replace the index."""
        self._make_parts_folder(chunk)
        write_record(self._index(chunk), index)

    def add_vectors(self, chunk: int, first: int, vectors: Path, texts: Sequence[int]) -> str:
        """Copy the vectors of these texts from a verified file; return their digest.

        The first row of the file is that of text `first`.
        """
        start, _ = self.plan.bounds(chunk)
        numbers = np.array(texts, dtype=np.int64)
        with open(vectors, "rb") as file:
            shape = read_shape(file)
        found = pick_rows(vectors, "<f4", shape.offset_bytes, shape.dimension, numbers - first)
        rows = self._rows(chunk, shape.dimension)
        rows[numbers - start] = found
        self._write_rows(chunk, rows)
        return xxhash.xxh3_128_hexdigest(found.data)

    def damaged(self, chunk: int, parts: Sequence[Part], dimension: int) -> list[Part]:
        """List the parts whose vectors do not match their digest."""
        start, _ = self.plan.bounds(chunk)
        rows = self._rows(chunk, dimension)
        found = []
        for part in parts:
            numbers = np.array(part.texts, dtype=np.int64)
            if xxhash.xxh3_128_hexdigest(rows[numbers - start].data) != part.digest:
                found.append(part)
        return found

    def merge_parts(self, chunk: int, dimension: int, good: Sequence[int]) -> tuple[Path, str]:
        """Return (file, digest) of the whole chunk, for `publish`.

        The texts in `good` have their vectors, all others NaN.
        """
        start, _ = self.plan.bounds(chunk)
        path = self._vectors(chunk)
        rows = self._rows(chunk, dimension)
        without = np.ones(len(rows), dtype=bool)
        without[np.array(good, dtype=np.int64) - start] = False
        # The file may still have the vector of a text whose part was damaged and forgotten.
        if not path.exists() or not np.isnan(rows[without]).all():
            rows[without] = np.nan
            self._write_rows(chunk, rows)
        return path, inspect(path).digest

    def remove_parts(self, chunk: int, *, keep_index: bool) -> None:
        """Remove the vectors, and the index as well unless `keep_index`."""
        if keep_index:
            self._vectors(chunk).unlink(missing_ok=True)
        else:
            remove_folder(self._index(chunk).parent)

    def _index(self, chunk: int) -> Path:
        return self.layout.parts / f"{chunk:06d}" / "index.json"

    def _vectors(self, chunk: int) -> Path:
        return self.layout.parts / f"{chunk:06d}" / "vectors.npy"

    def _make_parts_folder(self, chunk: int) -> None:
        folder = self._index(chunk).parent
        make_folder(folder.parent)
        make_folder(folder)

    def _write_rows(self, chunk: int, rows: Vectors) -> None:
        self._make_parts_folder(chunk)
        write_atomic(self._vectors(chunk), [npy_header(*rows.shape), rows.tobytes()])

    def _rows(self, chunk: int, dimension: int) -> Vectors:
        count = self.plan.size(chunk)
        try:
            return pick_rows(self._vectors(chunk), "<f4", HEADER_BYTES, dimension, np.arange(count))
        except (FileNotFoundError, ValueError):  # there is no file, or it is too short
            return np.full((count, dimension), np.nan, dtype="<f4")
