"""What is done and known of one output, as its folder says: a new process reads the same."""

import errno
import itertools
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from chunkvisor.decide.bisect import BadText, Part, missing, segments
from chunkvisor.store.artifact import BadVectorsError, chunk_key, inspect, npy_header, read_shape
from chunkvisor.store.identity import Plan, read_facts, read_fixed, read_other_versions, read_staged, write_facts
from chunkvisor.store.layout import CHUNKS_PER_FOLDER, OutputLayout, parse_chunk_name
from chunkvisor.store.records import read_if_whole, write_sealed
from chunkvisor.store.reuse import work_of
from chunkvisor_worker.contract.files import AttemptFiles, make_folder, remove_folder, sync_folder
from chunkvisor_worker.contract.messages import Facts


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


def chunk_files(layout: OutputLayout) -> Iterator[tuple[int, Path]]:
    """(number, file) of all committed chunks, in order; lists one folder of a thousand at a time.

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


def remove_chunk(layout: OutputLayout, number: int) -> None:
    """Remove whatever has the name of a file of that chunk. Raises OSError."""
    folder = layout.chunk(number, "").parent
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if (parse_chunk_name(path.name) or (None,))[0] == number:
            if path.is_dir() and not path.is_symlink():
                remove_folder(path)
            else:
                path.unlink()


def committed_chunks(layout: OutputLayout, plan: Plan) -> bytearray:
    """One byte a chunk: 1 where it has a file, by the names alone."""
    found = bytearray(plan.count)
    for folder in layout.chunks.iterdir() if layout.chunks.is_dir() else ():
        for name in os.listdir(folder) if folder.is_dir() else ():  # noqa: PTH208 - no Path for each
            if (parsed := parse_chunk_name(name)) and parsed[0] < len(found):
                found[parsed[0]] = 1
    return found


_HEADER_BYTES = 128
"""numpy pads the header of a 2-D float32 array to this length (numpy.lib.format, ARRAY_ALIGN)."""

_SHAPING = ("torch", "cuda", "transformers", "sentence-transformers")
"""Libraries whose versions may change the numbers in a vector."""


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
        self._committed = bytearray(self.plan.count)
        for number, path in self.chunk_files():
            if number < self.plan.count and not self._committed[number] and self._size_fits(number, path):
                self._committed[number] = 1
            else:
                self.discard(number)
        if self.facts is None and any(self._committed):
            # The facts were lost; the chunk that is computed again brings them back.
            self.discard(self._committed.rindex(1))
        self._load_quarantine()
        self.chunks_done, self.texts_done = self._committed.count(1), self.plan.texts_in(self._committed)

    def committed(self, chunk: int) -> bool:
        """Whether the chunk's vectors are in place."""
        return bool(self._committed[chunk])

    @property
    def left(self) -> int:
        """Number of chunks that are still to do."""
        return self.plan.count - self.chunks_done

    def parts(self, chunk: int) -> Parts:
        """What is known of a chunk that is being taken apart."""
        if chunk not in self._parts:
            self._parts[chunk] = Parts(self.layout, chunk, *self.plan.bounds(chunk), self.fingerprint)
        return self._parts[chunk]

    @property
    def bad_count(self) -> int:
        """Bad texts found so far, those of chunks not yet committed among them."""
        return len(self.bad) + sum(len(parts.bad) for parts in self._parts.values())

    def bad_texts(self) -> list[BadText]:
        """They, in order."""
        found = (*self.bad.values(), *(text for parts in self._parts.values() for text in parts.bad))
        return sorted(found, key=lambda bad: bad.text)

    def next_pending(self, start: int) -> int | None:
        """The first chunk from `start` on that is not committed; None where there is none."""
        found = self._committed.find(0, start)
        return None if found < 0 else found

    def known_good(self) -> tuple[int, int] | None:
        """(chunk, text) of a text that has a vector, in a chunk or in a part of one; None where there is none."""
        committed = (number for number in range(self.plan.count) if self._committed[number])
        chunks = itertools.chain(committed, list(self._parts))
        return next(((chunk, text) for chunk in chunks for text in self.good_texts(chunk)), None)

    def good_texts(self, chunk: int) -> Iterator[int]:
        """The texts of the chunk that have a vector."""
        if self._committed[chunk]:
            return (text for text in range(*self.plan.bounds(chunk)) if text not in self.bad)
        return self.parts(chunk).good_texts()

    def new_attempt(self, chunk: int) -> tuple[int, AttemptFiles]:
        """Make the folder of the chunk's next attempt; no other folder has its number. Raises OSError."""
        folder = self.layout.attempts_of(chunk)
        make_folder(folder, durable=False)
        number = max((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), default=0) + 1
        files = self.layout.attempt(chunk, number)
        files.folder.mkdir()
        return number, files

    def attempt_folders(self) -> Iterator[tuple[int, AttemptFiles]]:
        """(chunk, files) of every attempt that left a folder."""
        for chunk_folder in sorted(self.layout.attempts.iterdir()):
            if chunk_folder.name.isdecimal() and chunk_folder.is_dir():
                for folder in sorted(chunk_folder.iterdir()):
                    yield int(chunk_folder.name), AttemptFiles(folder)

    def taken_apart(self) -> list[int]:
        """Chunks of which parts are known; folders of chunks that are committed are removed."""
        found = []
        for path in sorted(self.layout.parts.iterdir()) if self.layout.parts.is_dir() else ():
            chunk = int(path.name) if path.name.isdecimal() else None
            if chunk is not None and chunk < self.plan.count and not self._committed[chunk]:
                found.append(chunk)
            else:
                remove_folder(path)
        return found

    def saved(self) -> dict[int, int]:
        """How many texts of each chunk that is not committed need no attempt any more, where there are some."""
        chunks = self.taken_apart()
        missing = {chunk: sum(stop - start for start, stop in self.parts(chunk).missing()) for chunk in chunks}
        return {chunk: self.plan.size(chunk) - missing[chunk] for chunk in chunks}

    def fix_facts(self, facts: Facts) -> None:
        """The first vectors fix the facts of the output. Raises OSError."""
        if self.facts is None:
            write_facts(self.layout, facts)
            self.facts = facts

    def note_versions(self, facts: Facts) -> list[str]:
        """Keep the versions that compute now; return how they differ from the first, in words. Raises OSError."""
        if self.facts is None or not (changed := _differences(self.facts.versions, facts.versions)):
            return []
        if facts.versions not in self.other_versions:
            others = [*self.other_versions, facts.versions]
            write_facts(self.layout, self.facts, others)
            self.other_versions = others
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
        parts.settle()
        vectors.replace(target)
        sync_folder(target.parent)
        self.bad.update({text.text: text for text in parts.bad})
        parts.remove()
        del self._parts[chunk]
        self._count(chunk, committed=True)

    def discard(self, chunk: int) -> None:
        """Remove what is committed of the chunk: it is pending again."""
        self.layout.quarantine_of(chunk).unlink(missing_ok=True)
        remove_chunk(self.layout, chunk)
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
        """(number, file) of committed chunks, in order."""
        return chunk_files(self.layout)

    def remove_chunks(self) -> None:
        """Remove the chunk files of a finished output. Raises OSError."""
        remove_folder(self.layout.chunks)

    def _load_quarantine(self) -> None:
        self.bad = {}
        for chunk, texts in read_quarantine(self.layout):
            start, stop = self.plan.bounds(chunk)
            if chunk >= self.plan.count or not self._committed[chunk]:
                self.layout.quarantine_of(chunk).unlink()
            elif texts is None or not all(start <= text.text < stop for text in texts):
                self.discard(chunk)
            else:
                self.bad.update({text.text: text for text in texts})

    def _size_fits(self, number: int, path: Path) -> bool:
        try:
            state = path.lstat()
        except FileNotFoundError:  # a second file of the same number took both with it
            return False
        if not stat.S_ISREG(state.st_mode):
            return False
        return self.facts is None or state.st_size == _HEADER_BYTES + 4 * self.plan.size(number) * self.facts.dimension


def _differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """In words: the libraries that shape vectors and are not the same in both."""
    pairs = [(name, before.get(name), now.get(name)) for name in _SHAPING]
    return [
        f"{name} {was or 'absent'} before, {is_now or 'absent'} now" for name, was, is_now in pairs if was != is_now
    ]


def ledger_of(layout: OutputLayout) -> Ledger | None:
    """The output's ledger, not loaded, or None where it was never begun. Raises DamagedError, OSError."""
    fixed, record = read_fixed(layout), read_staged(layout)
    if fixed is None or record is None:
        return None
    return Ledger(layout, *work_of(layout, fixed, record.staged))
