"""The reuse plan of an output: which of its texts have a vector elsewhere, and where; the others are encoded.

Fixed before the first chunk: chunks are cut out of the texts to be encoded. Without a plan, that is all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor.store.artifact import fill, pick_rows
from chunkvisor.store.identity import Fixed, Plan, Staged
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.records import DamagedError, Stamp, digest_of, read_record, stamp_file, write_record
from chunkvisor_worker.contract.files import FileIn

WHERE = np.dtype([("place", "<i4"), ("row", "<i8")])
"""Of each text: the number of its place, and the row there; of one that is encoded, `ENCODED` and its number there."""

ENCODED = -1

Where = npt.NDArray[np.void]


class PlaceKind(StrEnum):
    """Whose the vectors are until the final file is joined."""

    EARLIER = "earlier"
    """The final file of this output that is there until the new one is."""
    OUTPUT = "output"
    """The final file of another output of the workdir: a finished one, or one that the same run finishes first."""
    COPY = "copy"
    """They were copied, since what they come from may be gone by then."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where vectors are taken over from."""

    kind: PlaceKind
    words: str
    """For people: the manifest has them."""
    output: str = ""
    """Name of the other output."""
    source_digest: str = ""
    """Of its source."""
    final_digest: str = ""
    """Of its final, as its manifest has it; empty if it was not finished."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of the libraries that computed it, if they are known."""
    texts: int = 0
    """Taken from there."""


@dataclass(frozen=True, slots=True)
class ReuseFiles:
    """Paths in the folder of a plan."""

    folder: Path

    where = FileIn("where.bin")
    """`WHERE` of each text."""
    encoded = FileIn("encoded.bin")
    """int64, little-endian: numbers of the texts that are encoded, in order."""
    copied = FileIn("copied.npy")
    """The vectors that were copied."""
    record = FileIn("plan.json")


@dataclass(frozen=True, slots=True)
class _Record:
    texts: int
    encoded: int
    places: tuple[Place, ...]
    stamps: dict[str, Stamp]


@dataclass(frozen=True, slots=True)
class Reuse:
    """A plan on disk, open for reading."""

    folder: Path
    texts: int
    """Distinct texts of the output."""
    encoded: int
    """Those of them that are encoded."""
    places: tuple[Place, ...]
    key: str
    """Digest of the numbers of the texts that are encoded: chunks of another choice do not pass for those of this."""

    @property
    def taken(self) -> int:
        """Texts that are taken over."""
        return self.texts - self.encoded

    @property
    def takes_earlier(self) -> bool:
        """Whether some are of the final that was there before."""
        return any(each.texts and each.kind is PlaceKind.EARLIER for each in self.places)

    def where(self, start: int, stop: int) -> Where:
        """Return `WHERE` of the texts start..stop. Raises DamagedError, OSError."""
        return self._read(ReuseFiles(self.folder).where, WHERE, start, stop)

    def where_of(self, texts: npt.NDArray[np.int64]) -> Where:
        """Return the same of texts by number. Raises OSError, ValueError."""
        found: Where = pick_rows(ReuseFiles(self.folder).where, WHERE, 0, 1, texts)[:, 0]
        return found

    def texts_of(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the numbers of those that are encoded, from the one to the other. Raises DamagedError, OSError."""
        return self._read(ReuseFiles(self.folder).encoded, np.dtype("<i8"), start, stop).astype(np.int64)

    def _read(self, path: Path, dtype: np.dtype[Any], start: int, stop: int) -> npt.NDArray[Any]:
        data = np.empty(stop - start, dtype=dtype)
        with open(path, "rb") as file:
            if not fill(file.fileno(), data.view(np.uint8).data, start * dtype.itemsize):
                raise DamagedError(f"{path} is shorter than it was")
        return data


def read_reuse(layout: OutputLayout) -> Reuse | None:
    """Return the plan, or None if there is none, or it takes nothing over. Raises DamagedError, OSError."""
    files = ReuseFiles(layout.reuse)
    record = read_record(_Record, files.record)
    if record is None or not record.places:
        return None
    stamps = record.stamps
    whole = {files.where.name, files.encoded.name} <= stamps.keys()
    if not whole or not all(stamp.holds(files.folder / name) for name, stamp in stamps.items()):
        raise DamagedError(f"{files.folder}: its files are not what was written")
    return Reuse(files.folder, record.texts, record.encoded, record.places, stamps[files.encoded.name].digest)


def is_planned(layout: OutputLayout) -> bool:
    """Say whether there is a plan, of whatever contents."""
    return ReuseFiles(layout.reuse).record.exists()


def write_plan(folder: Path, texts: int, encoded: int, places: Sequence[Place]) -> None:
    """Write the record over the finished and synced files, which makes the folder a plan. Raises OSError."""
    files = ReuseFiles(folder)
    kept = (files.where, files.encoded, files.copied) if places else ()
    stamps = {path.name: stamp_file(path) for path in kept if path.exists()}
    write_record(files.record, _Record(texts, encoded, tuple(places), stamps))


def work_of(layout: OutputLayout, fixed: Fixed, staged: Staged) -> tuple[Plan, str]:
    """Return the chunks of an output, and the fingerprint that is in their names. Raises DamagedError, OSError."""
    return work_with(read_reuse(layout), fixed, staged)


def work_with(reuse: Reuse | None, fixed: Fixed, staged: Staged) -> tuple[Plan, str]:
    """Return the same, with the plan at hand."""
    if reuse is None:
        return Plan(staged.distinct, fixed.chunk_size), fixed.identity.fingerprint
    return Plan(reuse.encoded, fixed.chunk_size), digest_of([fixed.identity.fingerprint, reuse.key])
