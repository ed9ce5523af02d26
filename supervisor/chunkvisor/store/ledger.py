"""What is done and known of one output, as its folder says: a new process reads the same.

A reuse plan, fixed before the first chunk, says which of its texts have a vector elsewhere, and where. Chunks are cut
out of the others; without a plan, that is all of them.
"""

import errno
import functools
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from chunkvisor.store.artifact import (
    BadVectorsError,
    chunk_key,
    inspect,
    npy_header,
    pick_rows,
    read_shape,
)
from chunkvisor.store.identity import BadText, FactsRecord, Fixed, Plan, read_fixed, write_facts
from chunkvisor.store.layout import CHUNKS_PER_FOLDER, DIGEST_LENGTH, OutputLayout
from chunkvisor.store.records import (
    DamagedError,
    Stamp,
    digest_of,
    read_if_whole,
    read_record,
    stamp_file,
    write_record,
)
from chunkvisor_worker.contract.files import (
    AttemptFiles,
    FileIn,
    make_folder,
    remove_folder,
    sync_folder,
    write_blocks,
)
from chunkvisor_worker.contract.messages import Facts

_CHUNK_NAME = re.compile(rf"(\d{{6,}})-[0-9a-f]{{{DIGEST_LENGTH}}}\.npy")
_SHAPING = ("torch", "cuda", "transformers", "sentence-transformers")
"""Libraries whose versions may change the numbers in a vector."""

# --- chunks that are taken apart


@dataclass(frozen=True, slots=True)
class _Part:
    texts: tuple[int, ...]
    digest: str
    """Of their vectors, one after the other: xxh3-128."""


@dataclass(frozen=True, slots=True)
class _Index:
    fingerprint: str
    parts: tuple[_Part, ...] = ()
    bad: tuple[BadText, ...] = ()


class Parts:
    """Vectors and bad texts of a chunk that is being taken apart; a damaged index, or a missing file, counts as none.

    The vectors are in a file of the whole chunk, each in its row, NaN in the others; the index says which are there.
    """

    def __init__(
        self, layout: OutputLayout, chunk: int, start: int, stop: int, fingerprint: str
    ) -> None:
        self._folder = layout.parts / f"{chunk:06d}"
        self._path, self._index_path = self._folder / "vectors.npy", self._folder / "index.json"
        self._start, self._stop = start, stop
        index = read_if_whole(_Index, self._index_path)
        if index is None or index.fingerprint != fingerprint:
            index = _Index(fingerprint)
        self._index = index if self._path.exists() else replace(index, parts=())

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
        """Return the texts that have neither a vector nor a verdict."""
        known = {*self.good_texts(), *(each.text for each in self.bad)}
        return [text for text in range(self._start, self._stop) if text not in known]

    def add(self, first: int, vectors: Path, texts: Collection[int]) -> None:
        """Take over the vectors of these texts from a verified file, whose first row is that of text `first`.

        Raises OSError.
        """
        texts = np.array(sorted(set(texts).intersection(self.missing())), dtype=np.int64)
        with open(vectors, "rb") as file:
            shape = read_shape(file)
        found = pick_rows(vectors, "<f4", shape.offset_bytes, shape.dimension, texts - first)
        rows = self._rows(shape.dimension)
        rows[texts - self._start] = found
        self._make_folder()
        write_blocks(self._path, [npy_header(*rows.shape), rows.tobytes()])
        part = _Part(tuple(texts.tolist()), xxhash.xxh3_128_hexdigest(found.data))
        self._save(replace(self._index, parts=(*self._index.parts, part)))

    def add_bad(self, *texts: BadText) -> None:
        """Note texts that fail alone, all or none. Raises OSError, and then they are still missing."""
        self._make_folder()
        self._save(replace(self._index, bad=(*self.bad, *texts)))

    def forgive(self) -> None:
        """Forget the bad texts: they are missing again. Raises OSError."""
        if self.bad:
            self._save(replace(self._index, bad=()))

    def forget_vectors(self) -> None:
        """Forget the vectors: their texts are missing again. Raises OSError."""
        self._save(replace(self._index, parts=()))

    def compose(self, dimension: int) -> tuple[Path, str]:
        """Return the file of the chunk's vectors, NaN for the bad texts, and its checksum, for `Ledger.commit`.

        Raises OSError; EIO if vectors are not what was taken over, and then forgets these.
        """
        rows = self._rows(dimension)
        for part in self._index.parts:
            if (
                xxhash.xxh3_128_hexdigest(rows[np.array(part.texts) - self._start].data)
                != part.digest
            ):
                self._save(
                    replace(
                        self._index,
                        parts=tuple(each for each in self._index.parts if each is not part),
                    )
                )
                raise OSError(errno.EIO, f"{self._path} is damaged")
        if not self._index.parts:  # every text is bad
            write_blocks(self._path, [npy_header(*rows.shape), rows.tobytes()])
        return self._path, inspect(self._path).digest

    def remove(self) -> None:
        """Remove the vectors of a chunk that is committed; without its bad texts, rows of NaN would count as damage."""
        if self.bad:
            self._path.unlink(missing_ok=True)
        else:
            remove_folder(self._folder)

    def _rows(self, dimension: int) -> npt.NDArray[np.float32]:
        count = self._stop - self._start
        try:
            return pick_rows(
                self._path, "<f4", len(npy_header(count, dimension)), dimension, np.arange(count)
            )
        except (
            FileNotFoundError,
            ValueError,
        ):  # there are none, or the file is shorter than it was
            return np.full((count, dimension), np.nan, dtype="<f4")

    def _make_folder(self) -> None:
        for folder in (self._folder.parent, self._folder):
            make_folder(folder)

    def _save(self, index: _Index) -> None:
        write_record(self._index_path, index)
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
    files, stamps = ReuseFiles(folder), dict[str, Stamp]()
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


def chunk_files(layout: OutputLayout) -> Iterator[tuple[int, Path]]:
    """Give (number, file) of all committed chunks, in order, listing one folder of a thousand at a time.

    Raises OSError.
    """
    names = os.listdir(layout.chunks) if layout.chunks.is_dir() else ()  # noqa: PTH208 - no Path for each
    for number in sorted(int(name) for name in names if name.isdecimal()):
        folder = layout.chunk(number * CHUNKS_PER_FOLDER, "").parent
        for name in sorted(os.listdir(folder)):  # noqa: PTH208 - likewise
            if match := _CHUNK_NAME.fullmatch(name):
                yield int(match[1]), folder / name


def committed_chunks(layout: OutputLayout, plan: Plan) -> bytearray:
    """Return one byte a chunk: 1 if it has a file, by the names alone; whoever reads a file checks its digest."""
    found = bytearray(plan.count)
    for number, _ in chunk_files(layout):
        if number < plan.count:
            found[number] = 1
    return found


class Ledger:
    """Committed chunks, bad texts and model facts of one output."""

    def __init__(self, layout: OutputLayout, plan: Plan, fingerprint: str) -> None:
        self.layout = layout
        self.plan = plan
        self.fingerprint = fingerprint
        self.facts: Facts | None = None
        """What the first worker found out about the model."""
        self.other_versions: list[dict[str, str]] = []
        """Of the libraries, that computed some of the texts after those of the facts."""
        self._make_folder = functools.cache(make_folder)  # once for each, with its sync
        self._committed = bytearray(plan.count)
        self._parts: dict[int, Parts] = {}
        self.bad: dict[int, BadText] = {}
        """Texts of committed chunks that have no vector, by number."""

    def load(self) -> None:
        """Read the folder; what does not belong is removed, and so computed again. Raises OSError."""
        make_folder(self.layout.attempts, durable=False)
        make_folder(self.layout.chunks)
        if (record := read_if_whole(FactsRecord, self.layout.facts)) is not None:
            self.facts, self.other_versions = record.facts, list(record.other_versions)
        self._committed = committed_chunks(self.layout, self.plan)
        self.bad = {}
        # Names will do, which spares a Path for each.
        names = os.listdir(self.layout.parts) if self.layout.parts.is_dir() else ()  # noqa: PTH208
        numbers = sorted(int(name) for name in names if name.isdecimal())
        for chunk in numbers:
            if chunk >= self.plan.count:
                continue
            parts = self.parts(chunk)
            if self._committed[chunk]:
                self.bad.update({text.text: text for text in parts.bad})
                parts.remove()
                del self._parts[chunk]
        if self.facts is None:
            self._bring_back_facts()

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
            self._parts[chunk] = Parts(
                self.layout, chunk, *self.plan.bounds(chunk), self.fingerprint
            )
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

    def new_attempt(self, chunk: int) -> tuple[int, AttemptFiles]:
        """Make the folder of the chunk's next attempt; no other folder has its number. Raises OSError."""
        folder = self.layout.attempts_of(chunk)
        make_folder(folder, durable=False)
        number = (
            max((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), default=0)
            + 1
        )
        files = self.layout.attempt(chunk, number)
        files.folder.mkdir()
        return number, files

    def attempt_folders(self) -> Iterator[tuple[int, AttemptFiles]]:
        """Give (chunk, files) of every attempt that left a folder."""
        for folder in sorted(self.layout.attempts.glob("*/*")):
            if folder.parent.name.isdecimal():
                yield int(folder.parent.name), AttemptFiles(folder)

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
            write_facts(self.layout, facts)
            self.facts = facts

    def note_versions(self, facts: Facts) -> list[str]:
        """Keep the versions that compute now; return how they differ from the first, in words. Raises OSError."""
        before, now = (
            self.facts.versions if self.facts is not None else facts.versions,
            facts.versions,
        )
        changed = [
            f"{name} {before.get(name) or 'absent'} before, {now.get(name) or 'absent'} now"
            for name in _SHAPING
            if before.get(name) != now.get(name)
        ]
        if self.facts is not None and changed and now not in self.other_versions:
            write_facts(self.layout, self.facts, [*self.other_versions, now])
            self.other_versions.append(now)
        return changed

    def commit(self, chunk: int, vectors: Path, file_digest: str, facts: Facts) -> None:
        """Publish verified vectors by one rename. Raises OSError.

        The first commit fixes the facts of the output, and is preceded by them: no chunk lies there without.
        """
        self.fix_facts(facts)
        target = self.layout.chunk(
            chunk, chunk_key(self.fingerprint, *self.plan.bounds(chunk), file_digest)
        )
        self._make_folder(target.parent)
        with open(vectors, "rb") as file:
            os.fsync(file.fileno())
        parts = self.parts(chunk)
        vectors.replace(target)
        sync_folder(target.parent)
        self.bad.update({text.text: text for text in parts.bad})
        parts.remove()
        del self._parts[chunk]
        self._committed[chunk] = 1

    def discard(self, chunk: int) -> None:
        """Remove what is committed of the chunk: it is pending again, but for its bad texts. Raises OSError."""
        folder = self.layout.chunk(chunk, "").parent
        for path in folder.glob(f"{chunk:06d}-*"):
            path.unlink()
        if folder.exists():
            sync_folder(
                folder
            )  # or a power cut would bring back a chunk whose bad texts `retry` forgives
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
