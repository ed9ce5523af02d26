"""The chunks of one output that are being taken apart, and the texts that were found bad, on disk.

Where a chunk is cut, `bisect` decides.
"""

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from chunkvisor.decide.bisect import BadText, Part, missing, segments
from chunkvisor.store.artifact import BadVectorsError, chunk_key, inspect, npy_header, read_shape
from chunkvisor.store.outputlayout import OutputLayout
from chunkvisor.store.seal import read_if_whole, write_sealed
from chunkvisor_worker.contract.files import make_folder, remove_folder, sync_folder


@dataclass(frozen=True, slots=True)
class _Index:
    fingerprint: str
    parts: tuple[Part, ...]
    bad: tuple[BadText, ...]


@dataclass(frozen=True, slots=True)
class _Quarantine:
    texts: tuple[BadText, ...]


class Parts:
    """Parts and bad texts of one chunk; a damaged index, or a missing part, counts as none."""

    def __init__(self, layout: OutputLayout, chunk: int, start: int, stop: int, fingerprint: str) -> None:
        self._layout = layout
        self._chunk = chunk
        self._bounds = (start, stop)
        self._fingerprint = fingerprint
        self._durable = False
        """Whether the folder's name is sure to be on the disk."""
        self._parts, self.bad = self._load()

    @property
    def begun(self) -> bool:
        """Whether anything is known of its texts."""
        return bool(self._parts or self.bad)

    def missing(self) -> list[tuple[int, int]]:
        """Ranges of texts that have neither vectors nor a verdict."""
        return missing(*self._bounds, self._parts, self.bad)

    def good_texts(self) -> Iterator[int]:
        """The texts that have a vector."""
        bad = {text.text for text in self.bad}
        for part in self._parts:
            without = bad.union(part.holes)
            yield from (text for text in range(part.start, part.stop) if text not in without)

    def add(self, start: int, stop: int, vectors: Path, digest: str, holes: tuple[int, ...] = ()) -> None:
        """Take over verified vectors of texts start..stop, but for the holes. Raises OSError.

        The index is written first: a part that it names and that is not there counts as none, and one that is there
        without it would be lost, with the chunk of which `retry` makes a part.
        """
        part = Part(start, stop, digest, holes)
        self._make_folder()
        with open(vectors, "rb") as file:
            os.fsync(file.fileno())
        self._parts.append(part)
        try:
            self._save()
            vectors.replace(self._path(part))
            sync_folder(self._layout.parts_of(self._chunk))
        except OSError:
            self._parts.remove(part)
            raise

    def add_bad(self, text: BadText) -> None:
        """Note a text that fails alone. Raises OSError, and then it is missing still."""
        self._make_folder()
        self.bad.append(text)
        try:
            self._save()
        except OSError:
            self.bad.remove(text)
            raise

    def take(self, other: "Parts", bad: Sequence[BadText]) -> None:
        """Take over what another folder has of the same texts, and these that are bad. Raises OSError."""
        for part in list(other._parts):
            self.add(part.start, part.stop, other._path(part), part.digest, part.holes)
        for text in (*other.bad, *bad):
            if text not in self.bad:
                self.add_bad(text)

    def forgive(self) -> None:
        """Forget the bad texts: they are missing again. Raises OSError."""
        self.bad = []
        self._save()

    def compose(self, dimension: int) -> tuple[Path, str]:
        """Join everything into one file of the chunk's vectors, NaN for the bad texts; (file, its checksum).

        It is not synced: whoever commits it does that.
        Raises OSError; EIO where a part is not what was taken over, and then forgets it.
        """
        start, stop = self._bounds
        target = self._layout.parts_of(self._chunk) / "composed.npy"
        for part in list(self._parts):
            try:
                whole = inspect(self._path(part)).digest == part.digest
            except (BadVectorsError, OSError):
                whole = False
            if not whole:
                self._parts.remove(part)
                self._save()
                raise OSError(errno.EIO, f"{self._path(part)} is damaged")
        with open(target, "wb") as out:
            out.write(npy_header(stop - start, dimension))
            for segment in segments(start, stop, self._parts, self.bad):
                if segment.part is None:
                    out.write(np.full((segment.stop - segment.start, dimension), np.nan, dtype="<f4").tobytes())
                    continue
                with open(self._path(segment.part), "rb") as source:
                    source.seek(read_shape(source).offset_bytes + 4 * dimension * (segment.start - segment.part.start))
                    for _ in range(segment.start, segment.stop):
                        out.write(source.read(4 * dimension))
        return target, inspect(target).digest

    def settle(self) -> None:
        """Write the record of the bad texts, which has to be there before the chunk is committed. Raises OSError."""
        if self.bad:
            write_quarantine(self._layout, self._chunk, self.bad)

    def remove(self) -> None:
        """Remove the parts of a chunk that is committed, or is begun anew."""
        remove_folder(self._layout.parts_of(self._chunk))
        self._durable = False
        self._parts, self.bad = [], []

    def _make_folder(self) -> None:
        if not self._durable:
            for folder in (self._layout.parts, self._layout.parts_of(self._chunk)):
                make_folder(folder)
            self._durable = True

    def _path(self, part: Part) -> Path:
        key = chunk_key(self._fingerprint, part.start, part.stop, part.digest)
        return self._layout.parts_of(self._chunk) / f"{part.start}-{part.stop}-{key}.npy"

    @property
    def _index(self) -> Path:
        return self._layout.parts_of(self._chunk) / "index.json"

    def _save(self) -> None:
        index = _Index(self._fingerprint, tuple(self._parts), tuple(self.bad))
        write_sealed(self._index, asdict(index))

    def _load(self) -> tuple[list[Part], list[BadText]]:
        index = read_if_whole(_Index, self._index)
        start, stop = self._bounds
        if index is None or index.fingerprint != self._fingerprint:
            return [], []
        if not all(start <= text.text < stop for text in index.bad):
            return [], []
        return [part for part in index.parts if self._path(part).exists()], list(index.bad)


def write_quarantine(layout: OutputLayout, chunk: int, texts: Sequence[BadText]) -> None:
    """Write the record of the texts of a committed chunk that have no vector. Raises OSError."""
    make_folder(layout.quarantine)
    write_sealed(layout.quarantine_of(chunk), asdict(_Quarantine(tuple(texts))))


def read_quarantine(layout: OutputLayout) -> Iterator[tuple[int, list[BadText] | None]]:
    """(chunk, its bad texts) of every record; None for a damaged record."""
    if not layout.quarantine.is_dir():
        return
    for path in sorted(layout.quarantine.iterdir()):
        if path.suffix == ".json" and path.stem.isdecimal():
            record = read_if_whole(_Quarantine, path)
            yield int(path.stem), list(record.texts) if record is not None else None
