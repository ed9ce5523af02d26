"""What is done and known of one output, as its folder says: a new process reads the same."""

import itertools
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from chunkvisor.decide.bisect import BadText
from chunkvisor.store.artifact import chunk_key
from chunkvisor.store.chunkfiles import chunk_files, remove_chunk
from chunkvisor.store.fixed import Plan, read_facts, read_fixed, read_other_versions, read_staged, write_facts
from chunkvisor.store.outputlayout import OutputLayout
from chunkvisor.store.parts import Parts, read_quarantine
from chunkvisor.store.reuse import work_of
from chunkvisor_worker.contract.files import AttemptFiles, make_folder, remove_folder, sync_folder
from chunkvisor_worker.contract.messages import Facts

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
