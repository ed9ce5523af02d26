"""What is done and known of one output, as its folder says: a new process reads the same."""

import errno
import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chunkvisor.store.artifact import BadVectorsError, chunk_key, inspect, npy_header, read_shape
from chunkvisor.store.identity import (
    BadText,
    Plan,
    read_facts,
    read_fixed,
    read_other_versions,
    read_staged,
    write_facts,
)
from chunkvisor.store.layout import CHUNKS_PER_FOLDER, OutputLayout, parse_chunk_name
from chunkvisor.store.records import read_if_whole, write_record
from chunkvisor.store.reuse import work_of
from chunkvisor_worker.contract.files import AttemptFiles, make_folder, remove_folder, sync_folder
from chunkvisor_worker.contract.messages import Facts

_HEADER_BYTES = 128
"""numpy pads the header of a 2-D float32 array to this length (numpy.lib.format, ARRAY_ALIGN)."""

_SHAPING = ("torch", "cuda", "transformers", "sentence-transformers")
"""Libraries whose versions may change the numbers in a vector."""

_MISSING, _BAD = -1, -2
"""In the place of a part's number."""


@dataclass(frozen=True, slots=True)
class Part:
    """Vectors of texts start..stop, but for the holes."""

    start: int
    stop: int
    digest: str
    """Checksum of the part's file."""
    holes: tuple[int, ...] = ()
    """Texts of the range whose vectors are not good."""


@dataclass(frozen=True, slots=True)
class _Index:
    fingerprint: str
    parts: tuple[Part, ...]
    bad: tuple[BadText, ...]


@dataclass(frozen=True, slots=True)
class _Quarantine:
    texts: tuple[BadText, ...]


class Parts:
    """Parts and bad texts of a chunk that is being taken apart; a damaged index, or a missing part, counts as none."""

    def __init__(self, layout: OutputLayout, chunk: int, start: int, stop: int, fingerprint: str) -> None:
        self._folder = layout.parts_of(chunk)
        self._bounds = (start, stop)
        self._fingerprint = fingerprint
        self._parts: list[Part] = []
        self.bad: list[BadText] = []
        self._durable = False
        """Whether the folder's name is sure to be on the disk."""
        index = read_if_whole(_Index, self._index)
        bad = index.bad if index is not None else ()
        if index is not None and index.fingerprint == fingerprint and all(start <= each.text < stop for each in bad):
            self._parts = [part for part in index.parts if self._path(part).exists()]
            self.bad = list(bad)

    @property
    def begun(self) -> bool:
        """Whether anything is known of its texts."""
        return bool(self._parts or self.bad)

    def missing(self) -> list[tuple[int, int]]:
        """Return the ranges of texts that have neither vectors nor a verdict."""
        return [(first, stop) for first, stop, origin in self._runs() if origin == _MISSING]

    def good_texts(self) -> list[int]:
        """Return the texts that have a vector."""
        return [text for first, stop, origin in self._runs() if origin >= 0 for text in range(first, stop)]

    def _runs(self) -> Iterator[tuple[int, int, int]]:
        """Give (first, stop, number of the part) of neighboring texts; a later part goes before an earlier one."""
        start, stop = self._bounds
        origins = np.full(stop - start, _MISSING)
        for number, part in enumerate(self._parts):
            texts = np.arange(max(start, part.start), min(stop, part.stop))
            origins[texts[~np.isin(texts, part.holes)] - start] = number
        origins[[each.text - start for each in self.bad]] = _BAD
        for first, end in itertools.pairwise([0, *(np.flatnonzero(np.diff(origins)) + 1).tolist(), len(origins)]):
            yield start + first, start + end, int(origins[first])

    def add(self, start: int, stop: int, vectors: Path, digest: str, holes: tuple[int, ...] = ()) -> None:
        """Take over verified vectors of texts start..stop, but for the holes. Raises OSError."""
        part = Part(start, stop, digest, holes)
        self._make_folder()
        with open(vectors, "rb") as file:
            os.fsync(file.fileno())
        self._parts.append(part)
        try:
            # The index goes first: a part that it names and that is not there counts as none, and one that is there
            # without it would be lost, with the chunk of which `retry` makes a part.
            self._save()
            vectors.replace(self._path(part))
            sync_folder(self._folder)
        except OSError:
            self._parts.remove(part)
            raise

    def add_bad(self, text: BadText) -> None:
        """Note a text that fails alone. Raises OSError, and then it is still missing."""
        self._make_folder()
        self.bad.append(text)
        try:
            self._save()
        except OSError:
            self.bad.remove(text)
            raise

    def forgive(self) -> None:
        """Forget the bad texts: they are missing again. Raises OSError."""
        self.bad = []
        self._save()

    def compose(self, dimension: int) -> tuple[Path, str]:
        """Join everything into one file of the chunk's vectors, NaN for the bad texts; (file, its checksum).

        It is not synced: whoever commits it does that.
        Raises OSError; EIO if a part is not what was taken over, and then forgets it.
        """
        for part in list(self._parts):
            try:
                whole = inspect(self._path(part)).digest == part.digest
            except (BadVectorsError, OSError):
                whole = False
            if not whole:
                self._parts.remove(part)
                self._save()
                raise OSError(errno.EIO, f"{self._path(part)} is damaged")
        target, (start, stop) = self._folder / "composed.npy", self._bounds
        with open(target, "wb") as out:
            out.write(npy_header(stop - start, dimension))
            for first, end, origin in self._runs():
                assert origin != _MISSING
                if origin == _BAD:
                    out.write(np.full((end - first, dimension), np.nan, dtype="<f4").tobytes())
                    continue
                part = self._parts[origin]
                with open(self._path(part), "rb") as source:
                    source.seek(read_shape(source).offset_bytes + 4 * dimension * (first - part.start))
                    for _ in range(first, end):
                        out.write(source.read(4 * dimension))
        return target, inspect(target).digest

    def remove(self) -> None:
        """Remove the parts of a chunk that is committed."""
        remove_folder(self._folder)
        self._durable = False
        self._parts, self.bad = [], []

    def _make_folder(self) -> None:
        if not self._durable:
            for folder in (self._folder.parent, self._folder):
                make_folder(folder)
            self._durable = True

    def _path(self, part: Part) -> Path:
        key = chunk_key(self._fingerprint, part.start, part.stop, part.digest)
        return self._folder / f"{part.start}-{part.stop}-{key}.npy"

    @property
    def _index(self) -> Path:
        return self._folder / "index.json"

    def _save(self) -> None:
        write_record(self._index, _Index(self._fingerprint, tuple(self._parts), tuple(self.bad)))


def write_quarantine(layout: OutputLayout, chunk: int, texts: Sequence[BadText]) -> None:
    """Write the record of the texts of a committed chunk that have no vector. Raises OSError."""
    make_folder(layout.quarantine)
    write_record(layout.quarantine_of(chunk), _Quarantine(tuple(texts)))


def read_quarantine(layout: OutputLayout) -> Iterator[tuple[int, list[BadText] | None]]:
    """Give (chunk, its bad texts) of every record; None for a damaged record."""
    for path in sorted(layout.quarantine.glob("*.json")):
        if path.stem.isdecimal():
            record = read_if_whole(_Quarantine, path)
            yield int(path.stem), list(record.texts) if record is not None else None


def chunk_files(layout: OutputLayout) -> Iterator[tuple[int, Path]]:
    """Give (number, file) of all committed chunks, in order, listing one folder of a thousand at a time.

    Raises OSError.
    """
    if not layout.chunks.is_dir():
        return
    for number in sorted({int(path.name) for path in layout.chunks.iterdir() if path.name.isdecimal()}):
        folder = layout.chunk(number * CHUNKS_PER_FOLDER, "").parent
        for name in sorted(os.listdir(folder)) if folder.is_dir() else ():  # noqa: PTH208 - no Path for each
            parsed = parse_chunk_name(name)
            if parsed and parsed[0] // CHUNKS_PER_FOLDER == number:
                yield parsed[0], folder / name


def committed_chunks(layout: OutputLayout, plan: Plan) -> bytearray:
    """Return one byte a chunk: 1 if it has a file, by the names alone."""
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
        self._committed = bytearray(plan.count)
        self._parts: dict[int, Parts] = {}
        self._durable: set[Path] = set()
        """Folders of chunks whose names are sure to be on the disk."""
        self.chunks_done = 0
        """Committed chunks; counted as they come, since to count a byte a chunk for each commit takes its time."""
        self.texts_done = 0
        self.bad: dict[int, BadText] = {}
        """Texts of committed chunks that have no vector, by number."""

    def load(self) -> None:
        """Read the folder; whatever is damaged or does not belong is removed, and so computed again.

        Raises OSError.
        """
        make_folder(self.layout.attempts, durable=False)
        make_folder(self.layout.chunks)
        self.facts, self.other_versions = read_facts(self.layout), read_other_versions(self.layout)
        self._committed, self.bad = bytearray(self.plan.count), {}
        for number, path in self.chunk_files():
            if number < self.plan.count and not self._committed[number] and self._size_fits(number, path):
                self._committed[number] = 1
            else:
                self.discard(number)
        if self.facts is None and any(self._committed):
            # The facts were lost; the chunk that is computed again brings them back.
            self.discard(self._committed.rindex(1))
        for chunk, texts in read_quarantine(self.layout):
            start, stop = self.plan.bounds(chunk)
            if chunk >= self.plan.count or not self._committed[chunk]:
                self.layout.quarantine_of(chunk).unlink()
            elif texts is None or not all(start <= text.text < stop for text in texts):
                self.discard(chunk)
            else:
                self.bad.update({text.text: text for text in texts})
        self.chunks_done, self.texts_done = self._committed.count(1), self.plan.texts_in(self._committed)

    def _size_fits(self, number: int, path: Path) -> bool:
        try:
            state = path.lstat()
        except FileNotFoundError:  # a second file of the same number took both with it
            return False
        size_bytes = _HEADER_BYTES + 4 * self.plan.size(number) * (self.facts.dimension if self.facts else 0)
        return stat.S_ISREG(state.st_mode) and (self.facts is None or state.st_size == size_bytes)

    def committed(self, chunk: int) -> bool:
        """Say whether the chunk's vectors are in place."""
        return bool(self._committed[chunk])

    @property
    def left(self) -> int:
        """Number of chunks that are still to do."""
        return self.plan.count - self.chunks_done

    def parts(self, chunk: int) -> Parts:
        """Return what is known of a chunk that is being taken apart."""
        if chunk not in self._parts:
            self._parts[chunk] = Parts(self.layout, chunk, *self.plan.bounds(chunk), self.fingerprint)
        return self._parts[chunk]

    @property
    def bad_count(self) -> int:
        """Bad texts found so far, those of chunks not yet committed among them."""
        return len(self.bad) + sum(len(parts.bad) for parts in self._parts.values())

    def bad_texts(self) -> list[BadText]:
        """Return them, in order."""
        found = (*self.bad.values(), *(text for parts in self._parts.values() for text in parts.bad))
        return sorted(found, key=lambda bad: bad.text)

    def next_pending(self, start: int) -> int | None:
        """Return the first chunk from `start` on that is not committed, if there is one."""
        found = self._committed.find(0, start)
        return None if found < 0 else found

    def known_good(self) -> list[int]:
        """Return the texts of one chunk that have a vector; none if no text has."""
        for chunk in itertools.chain(range(self.plan.count) if self.chunks_done else (), list(self._parts)):
            if self._committed[chunk]:
                good = [text for text in range(*self.plan.bounds(chunk)) if text not in self.bad]
            else:
                good = self._parts[chunk].good_texts() if chunk in self._parts else []
            if good:
                return good
        return []

    def new_attempt(self, chunk: int) -> tuple[int, AttemptFiles]:
        """Make the folder of the chunk's next attempt; no other folder has its number. Raises OSError."""
        folder = self.layout.attempts_of(chunk)
        make_folder(folder, durable=False)
        number = max((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), default=0) + 1
        files = self.layout.attempt(chunk, number)
        files.folder.mkdir()
        return number, files

    def attempt_folders(self) -> Iterator[tuple[int, AttemptFiles]]:
        """Give (chunk, files) of every attempt that left a folder."""
        for folder in sorted(self.layout.attempts.glob("*/*")):
            if folder.parent.name.isdecimal():
                yield int(folder.parent.name), AttemptFiles(folder)

    def taken_apart(self) -> list[int]:
        """Return the chunks of which parts are known; folders of chunks that are committed are removed."""
        found = []
        for path in sorted(self.layout.parts.iterdir()) if self.layout.parts.is_dir() else ():
            chunk = int(path.name) if path.name.isdecimal() else self.plan.count
            if chunk < self.plan.count and not self._committed[chunk]:
                found.append(chunk)
            else:
                remove_folder(path)
        return found

    def saved(self) -> dict[int, int]:
        """Count the texts that need no attempt any more, by chunk that is not committed and has some."""
        missing = {chunk: self.parts(chunk).missing() for chunk in self.taken_apart()}
        return {
            chunk: self.plan.size(chunk) - sum(stop - start for start, stop in each) for chunk, each in missing.items()
        }

    def fix_facts(self, facts: Facts) -> None:
        """Have the first vectors fix the facts of the output. Raises OSError."""
        if self.facts is None:
            write_facts(self.layout, facts)
            self.facts = facts

    def note_versions(self, facts: Facts) -> list[str]:
        """Keep the versions that compute now; return how they differ from the first, in words. Raises OSError."""
        before, now = self.facts.versions if self.facts is not None else facts.versions, facts.versions
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
        start, stop = self.plan.bounds(chunk)
        target = self.layout.chunk(chunk, chunk_key(self.fingerprint, start, stop, file_digest))
        if target.parent not in self._durable:
            make_folder(target.parent)
            self._durable.add(target.parent)
        with open(vectors, "rb") as file:
            os.fsync(file.fileno())
        parts = self.parts(chunk)
        if parts.bad:  # without this record, rows of NaN would count as damage
            write_quarantine(self.layout, chunk, parts.bad)
        vectors.replace(target)
        sync_folder(target.parent)
        self.bad.update({text.text: text for text in parts.bad})
        parts.remove()
        del self._parts[chunk]
        self._count(chunk, committed=True)

    def discard(self, chunk: int) -> None:
        """Remove what is committed of the chunk: it is pending again. Raises OSError."""
        self.layout.quarantine_of(chunk).unlink(missing_ok=True)
        for path in self.layout.chunk(chunk, "").parent.glob(f"{chunk:06d}-*"):
            if path.is_dir():
                remove_folder(path)
            else:
                path.unlink()
        if chunk < self.plan.count:
            start, stop = self.plan.bounds(chunk)
            self.bad = {text: bad for text, bad in self.bad.items() if not start <= text < stop}
            self._count(chunk, committed=False)

    def _count(self, chunk: int, *, committed: bool) -> None:
        change = committed - self._committed[chunk]
        self._committed[chunk] = committed
        self.chunks_done += change
        self.texts_done += change * self.plan.size(chunk)

    def chunk_files(self) -> Iterator[tuple[int, Path]]:
        """Give (number, file) of committed chunks, in order."""
        return chunk_files(self.layout)


def ledger_of(layout: OutputLayout) -> Ledger | None:
    """Return the output's ledger, not loaded, or None if it was never begun. Raises DamagedError, OSError."""
    fixed, record = read_fixed(layout), read_staged(layout)
    if fixed is None or record is None:
        return None
    return Ledger(layout, *work_of(layout, fixed, record.staged))
