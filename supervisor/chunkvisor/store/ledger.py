"""What is done and known of one output, as its folder says: a new process reads the same.

A reuse plan, fixed before the first chunk, says which of its texts have a vector elsewhere, and where. Chunks are cut
out of the others; without a plan, that is all of them.
"""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chunkvisor.store.artifact import (
    BadVectorsError,
    chunk_key,
    inspect,
    pick_rows,
)
from chunkvisor.store.chunkfiles import ChunkFiles, Index, Part
from chunkvisor.store.identity import BadText, Fixed, Plan, read_fixed
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.records import (
    DamagedError,
    Stamp,
    digest_of,
    read_record,
    stamp_file,
    write_record,
)
from chunkvisor_worker.contract.files import (
    FileIn,
)
from chunkvisor_worker.contract.messages import Facts

_SHAPING = ("torch", "cuda", "transformers", "sentence-transformers")
"""Libraries whose versions may change the numbers in a vector."""

# --- chunks that are taken apart


class Parts:
    """Vectors and bad texts of a chunk that is being taken apart. Methods that change it raise OSError."""

    def __init__(self, files: ChunkFiles, chunk: int) -> None:
        self._files = files
        self._chunk = chunk
        self._index = files.read_index(chunk)

    @property
    def bad(self) -> tuple[BadText, ...]:
        """Its texts that fail alone."""
        return self._index.bad

    @property
    def begun(self) -> bool:
        """Whether anything is known of its texts."""
        return bool(self._index.parts or self.bad)

    def good_texts(self) -> list[int]:
        """Return the texts that have a vector, in order; parts are stored in any."""
        return sorted(text for part in self._index.parts for text in part.texts)

    def missing(self) -> list[int]:
        """Return the texts that have neither a vector nor a verdict, in order."""
        known = {*self.good_texts(), *(each.text for each in self.bad)}
        bounds = self._files.plan.bounds(self._chunk)
        return [text for text in range(*bounds) if text not in known]

    def add(self, first: int, vectors: Path, texts: Collection[int]) -> None:
        """Take over the vectors of these texts from a verified file, whose first row is that of text `first`."""
        added = sorted(set(texts).intersection(self.missing()))
        digest = self._files.add_vectors(self._chunk, first, vectors, added)
        self._save(replace(self._index, parts=(*self._index.parts, Part(tuple(added), digest))))

    def add_bad(self, *texts: BadText) -> None:
        """Note texts that fail alone, all or none."""
        self._save(replace(self._index, bad=(*self.bad, *texts)))

    def forgive(self) -> None:
        """Forget the bad texts: they are missing again."""
        if self.bad:
            self._save(replace(self._index, bad=()))

    def forget_vectors(self) -> None:
        """Forget the vectors: their texts are missing again."""
        self._save(replace(self._index, parts=()))

    def forget_damaged(self, dimension: int) -> bool:
        """Forget vectors that are not what was taken over; say whether there were any."""
        damaged = self._files.damaged(self._chunk, self._index.parts, dimension)
        if damaged:
            whole = tuple(part for part in self._index.parts if part not in damaged)
            self._save(replace(self._index, parts=whole))
        return bool(damaged)

    def _save(self, index: Index) -> None:
        self._files.write_index(self._chunk, index)
        self._index = index


# --- the reuse plan


@dataclass(frozen=True, slots=True)
class Place:
    """From where vectors were copied."""

    words: str
    """For people: the manifest has them."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of the libraries that computed it, if they are known."""
    texts: int = 0
    """Copied from there."""


@dataclass(frozen=True, slots=True)
class ReuseFiles:
    """Paths in the folder of a plan, which is in that of the chunks and goes with them."""

    folder: Path

    # int64, little-endian, of each text: its row among the copies; negative, ~n, if it is encoded as number n
    where = FileIn("where.bin")
    encoded = FileIn(
        "encoded.bin"
    )  # int64, little-endian: numbers of the texts that are encoded, in order
    copied = FileIn("copied.npy")  # the vectors that were copied
    tokens = FileIn(
        "tokens.bin"
    )  # int32 of each of them: tokens before the cut, 0 = whole, -1 = not counted
    record = FileIn("plan.json")


@dataclass(frozen=True, slots=True)
class Reuse:
    """A plan on disk, open for reading; its methods raise DamagedError and OSError."""

    texts: int
    """Distinct texts of the output."""
    encoded: int
    """Those of them that are encoded."""
    places: tuple[Place, ...]
    stamps: dict[str, Stamp]
    folder: str = ""
    """Where its files are now."""

    @property
    def files(self) -> ReuseFiles:
        """Its paths."""
        return ReuseFiles(Path(self.folder))

    @property
    def taken(self) -> int:
        """Texts that are taken over."""
        return self.texts - self.encoded

    def where_of(self, texts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return where these texts are, by number; see `ReuseFiles.where`."""
        return self._pick(self.files.where, texts)

    def texts_of(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the numbers of those that are encoded, from the one to the other."""
        return self._pick(self.files.encoded, np.arange(start, stop))

    def _pick(self, path: Path, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        try:
            return pick_rows(path, "<i8", 0, 1, rows)[:, 0].astype(np.int64, copy=False)
        except ValueError as error:
            raise DamagedError(f"{path} is shorter than it was") from error


def read_reuse(layout: OutputLayout) -> Reuse | None:
    """Return the plan, or None if there is none, or it takes nothing over. Raises DamagedError, OSError."""
    reuse = read_record(Reuse, ReuseFiles(layout.reuse).record)
    if reuse is None or not reuse.places:
        return None
    if not all(stamp.holds(layout.reuse / name) for name, stamp in reuse.stamps.items()):
        raise DamagedError(f"{layout.reuse}: its files failed their integrity check")
    return replace(reuse, folder=str(layout.reuse))


def is_planned(layout: OutputLayout) -> bool:
    """Say whether there is a plan, of whatever contents."""
    return ReuseFiles(layout.reuse).record.exists()


def write_plan(folder: Path, texts: int, encoded: int, places: Sequence[Place]) -> None:
    """Sync the finished files, and write the record that makes the folder a plan. Raises OSError."""
    files = ReuseFiles(folder)
    stamps = dict[str, Stamp]()
    for path in filter(Path.exists, (files.where, files.encoded, files.copied, files.tokens)):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        stamps[path.name] = stamp_file(path)
    write_record(files.record, Reuse(texts, encoded, tuple(places), stamps))


def work_with(reuse: Reuse | None, fixed: Fixed) -> tuple[Plan, str]:
    """Return the chunks of an output, and the fingerprint in their names, which binds them to the choice of texts."""
    if reuse is None:
        return Plan(fixed.distinct, fixed.chunk_size), fixed.identity.fingerprint
    choice = reuse.stamps[reuse.files.encoded.name].digest
    return Plan(reuse.encoded, fixed.chunk_size), digest_of([fixed.identity.fingerprint, choice])


# --- what is committed


class Ledger:
    """Committed chunks, bad texts and model facts of one output."""

    def __init__(
        self,
        layout: OutputLayout,
        plan: Plan,
        fingerprint: str,
        files: ChunkFiles | None = None,
    ) -> None:
        """`files` are those of the layout; the simulator has others."""
        self.layout = layout
        self.plan = plan
        self.fingerprint = fingerprint
        self.facts: Facts | None = None
        """What the first worker found out about the model."""
        self.other_versions: list[dict[str, str]] = []
        """Of the libraries, that computed some of the texts after those of the facts."""
        self.bad: dict[int, BadText] = {}
        """Texts of committed chunks that have no vector, by number."""
        self._files = files or ChunkFiles(layout, plan, fingerprint)
        self._committed = bytearray(plan.count)
        self._parts: dict[int, Parts] = {}

    def load(self) -> None:
        """Read the folder; what does not belong is removed, and so computed again. Raises OSError."""
        self._files.make_folders()
        record = self._files.read_facts()
        if record is not None:
            self.facts = record.facts
            self.other_versions = list(record.other_versions)
        self._committed = self._files.committed()
        self.bad = {}
        for chunk in self._files.taken_apart():
            if self._committed[chunk]:
                self._settle(chunk)
            else:
                self.parts(chunk)
        if self.facts is None:
            self._bring_back_facts()

    def _settle(self, chunk: int) -> None:
        """Keep of a committed chunk its bad texts: without them, rows of NaN would count as damage."""
        bad = self.parts(chunk).bad
        self.bad.update({text.text: text for text in bad})
        self._files.remove_parts(chunk, keep_index=bool(bad))
        del self._parts[chunk]

    def _bring_back_facts(self) -> None:
        """Have one chunk that has vectors computed again: its worker says again what was lost."""
        good = self.known_good()
        if not good:
            return
        chunk = good[0] // self.plan.chunk_size
        if self._committed[chunk]:
            self.discard(chunk)
        else:
            self.parts(chunk).forget_vectors()

    def forgive_if_none_is_good(self) -> None:
        """Have all bad texts tried again if no text has a vector: it was not the texts.

        Raises OSError.
        """
        if self.bad_count == 0 or self.known_good():
            return
        for chunk in range(self.plan.count):
            if self._committed[chunk]:
                self.discard(chunk)
                self.parts(chunk).forgive()
        for parts in self._parts.values():
            parts.forgive()

    def committed(self, chunk: int) -> bool:
        """Say whether the chunk's vectors are in place."""
        return bool(self._committed[chunk])

    @property
    def chunks_done(self) -> int:
        """Number of committed chunks."""
        return self._committed.count(1)

    @property
    def texts_done(self) -> int:
        """Number of texts in them."""
        return self.plan.texts_in(self._committed)

    @property
    def left(self) -> int:
        """Number of chunks that are still to do."""
        return self.plan.count - self.chunks_done

    def parts(self, chunk: int) -> Parts:
        """Return what is known of a chunk that is being taken apart."""
        if chunk not in self._parts:
            self._parts[chunk] = Parts(self._files, chunk)
        return self._parts[chunk]

    @property
    def bad_count(self) -> int:
        """Bad texts found so far, those of chunks not yet committed among them."""
        return len(self.bad) + sum(len(parts.bad) for parts in self._parts.values())

    def bad_texts(self) -> list[BadText]:
        """Return them, in order."""
        found = (
            *self.bad.values(),
            *(text for parts in self._parts.values() for text in parts.bad),
        )
        return sorted(found, key=lambda bad: bad.text)

    def next_pending(self, start: int) -> int | None:
        """Return the first chunk from `start` on that is not committed, if there is one."""
        found = self._committed.find(0, start)
        return None if found < 0 else found

    def known_good(self) -> list[int]:
        """Return the texts of one chunk that have a vector, in order; none if no text has."""
        for chunk in (number for number, done in enumerate(self._committed) if done):
            good = [text for text in range(*self.plan.bounds(chunk)) if text not in self.bad]
            if good:
                return good
        return next(filter(None, (parts.good_texts() for parts in self._parts.values())), [])

    def taken_apart(self) -> list[int]:
        """Return the chunks that are not committed and of which parts are known."""
        return [chunk for chunk, parts in self._parts.items() if parts.begun]

    def saved(self) -> dict[int, int]:
        """Count the texts that need no attempt any more, by chunk that is not committed and has some."""
        return {
            chunk: self.plan.size(chunk) - len(self.parts(chunk).missing())
            for chunk in self.taken_apart()
        }

    def fix_facts(self, facts: Facts) -> None:
        """Have the first vectors fix the facts of the output. Raises OSError."""
        if self.facts is None:
            self._files.write_facts(facts)
            self.facts = facts

    def note_versions(self, facts: Facts) -> list[str]:
        """Keep the versions that compute now; return how they differ from the first, in words. Raises OSError."""
        before = self.facts.versions if self.facts is not None else facts.versions
        now = facts.versions
        changed = [
            f"{name} {before.get(name) or 'absent'} before, {now.get(name) or 'absent'} now"
            for name in _SHAPING
            if before.get(name) != now.get(name)
        ]
        if self.facts is not None and changed and now not in self.other_versions:
            self._files.write_facts(self.facts, [*self.other_versions, now])
            self.other_versions.append(now)
        return changed

    def commit(self, chunk: int, vectors: Path, file_digest: str, facts: Facts) -> None:
        """Publish verified vectors by one rename. Raises OSError.

        The first commit fixes the facts of the output, and is preceded by them: no chunk lies there without.
        """
        self.fix_facts(facts)
        self._files.publish(chunk, vectors, file_digest)
        self._settle(chunk)
        self._committed[chunk] = 1

    def compose(self, chunk: int) -> bool:
        """Commit a chunk from its parts; False if some were damaged, whose texts are missing again.

        Each of its texts has a vector or a verdict, and the facts are known. Raises OSError.
        """
        assert self.facts is not None
        dimension = self.facts.dimension
        parts = self.parts(chunk)
        if parts.forget_damaged(dimension):
            return False
        vectors, digest = self._files.compose(chunk, dimension, parts.good_texts())
        self.commit(chunk, vectors, digest, self.facts)
        return True

    def discard(self, chunk: int) -> None:
        """Remove what is committed of the chunk: it is pending again, but for its bad texts. Raises OSError."""
        self._files.discard(chunk)
        start, stop = self.plan.bounds(chunk)
        self.bad = {text: bad for text, bad in self.bad.items() if not start <= text < stop}
        self._committed[chunk] = 0

    def is_whole(self, chunk: int, path: Path) -> bool:
        """Say whether the file has the content that its name speaks of."""
        try:
            key = chunk_key(self.fingerprint, *self.plan.bounds(chunk), inspect(path).digest)
        except (BadVectorsError, OSError):
            return False
        return path.name.endswith(f"-{key}.npy")


def ledger_of(layout: OutputLayout) -> Ledger | None:
    """Return the output's ledger, not loaded, or None if it was never begun. Raises DamagedError, OSError."""
    fixed = read_fixed(layout)
    return Ledger(layout, *work_with(read_reuse(layout), fixed)) if fixed is not None else None
