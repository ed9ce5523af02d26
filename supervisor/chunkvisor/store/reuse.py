"""The reuse plan: for which texts of an output a vector was copied from elsewhere.

It is fixed before the first chunk. All other texts are encoded, and numbered from 0 for that:
chunks are made of them.
"""

from collections.abc import Sequence
from dataclasses import field, replace
from pathlib import Path

import numpy as np

from chunkvisor.store.artifact import Numbers, pick_numbers
from chunkvisor.store.identity import Fixed, Plan, read_fixed
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.ledger import Ledger
from chunkvisor.store.records import (
    DamagedError,
    Stamp,
    digest_of,
    read_record,
    stamp_file,
    write_record,
)
from chunkvisor_worker.contract.files import PathIn, sync
from chunkvisor_worker.contract.frozen import frozen


@frozen
class Place:
    """A place from which vectors were copied, such as "output titles"."""

    words: str
    """For people: the manifest has them."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of the libraries that computed them, if they are known."""
    texts: int = 0
    """Number of vectors copied from there."""


@frozen
class ReuseFiles:
    """Files of a plan; their folder lies in that of the chunks, and is removed with it."""

    folder: Path

    # int64 for each text: its row in `copied`, or ~n (negative) if it is encoded as number n
    where = PathIn("where.bin")
    # int64: numbers of the texts that are encoded, in order
    encoded = PathIn("encoded.bin")
    copied = PathIn("copied.npy")  # the vectors that were copied
    # int32 for each of them: tokens before the cut, 0 = not cut, -1 = not counted
    tokens = PathIn("tokens.bin")
    record = PathIn("plan.json")


@frozen
class Reuse:
    """A plan on the disk; methods that read its files raise DamagedError, OSError."""

    texts: int
    """Distinct texts of the output."""
    encoded: int
    """How many of them are encoded."""
    places: tuple[Place, ...]
    stamps: dict[str, Stamp]
    folder: str = ""
    """Of its files; set when it is read."""

    @property
    def files(self) -> ReuseFiles:
        """Paths of its files."""
        return ReuseFiles(Path(self.folder))

    @property
    def texts_copied(self) -> int:
        """How many texts have a copied vector."""
        return self.texts - self.encoded

    def where_of(self, texts: Numbers) -> Numbers:
        """Return where the vectors of these texts are, by number; see `ReuseFiles.where`."""
        return pick_numbers(self.files.where, texts)

    def encoded_texts(self, start: int, stop: int) -> Numbers:
        """Return the table's numbers of the texts that are encoded as start..stop."""
        return pick_numbers(self.files.encoded, np.arange(start, stop))


def read_reuse(layout: OutputLayout) -> Reuse | None:
    """Return the plan; None if there is none, or no vector was copied.

    Raises DamagedError, OSError.
    """
    reuse = read_record(Reuse, ReuseFiles(layout.reuse).record)
    if not reuse or not reuse.places:
        return None
    if not all(stamp.holds(layout.reuse / name) for name, stamp in reuse.stamps.items()):
        raise DamagedError(f"{layout.reuse}: its files failed their integrity check")
    return replace(reuse, folder=str(layout.reuse))


def is_planned(layout: OutputLayout) -> bool:
    """Say whether there is a plan, also one without copies."""
    return ReuseFiles(layout.reuse).record.exists()


def write_plan(folder: Path, texts: int, encoded: int, places: Sequence[Place]) -> None:
    """Sync the finished files, and write the record that makes the folder a plan.

    Raises OSError.
    """
    files = ReuseFiles(folder)
    stamps = {}
    for path in filter(Path.exists, (files.where, files.encoded, files.copied, files.tokens)):
        sync(path)
        stamps[path.name] = stamp_file(path)
    write_record(files.record, Reuse(texts, encoded, tuple(places), stamps))


def plan_and_fingerprint(reuse: Reuse | None, fixed: Fixed) -> tuple[Plan, str]:
    """Return the chunks of an output, and the fingerprint that goes into their names."""
    if not reuse:
        return Plan(fixed.distinct, fixed.chunk_size), fixed.identity.fingerprint
    choice = reuse.stamps[reuse.files.encoded.name].digest
    return Plan(reuse.encoded, fixed.chunk_size), digest_of([fixed.identity.fingerprint, choice])


def ledger_of(layout: OutputLayout) -> Ledger | None:
    """Return the output's ledger, not yet loaded; None if the output was never begun.

    Raises DamagedError, OSError.
    """
    fixed = read_fixed(layout)
    return Ledger(layout, *plan_and_fingerprint(read_reuse(layout), fixed)) if fixed else None
