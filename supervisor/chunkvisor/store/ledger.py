"""What is done of one output: committed chunks, parts of others, and bad texts.

Each change is on the disk before it is in memory, so that a new process reads the same.
"""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from chunkvisor.store.chunkfiles import ChunkFiles, Index, Part
from chunkvisor.store.identity import BadText, Plan
from chunkvisor.store.layout import OutputLayout
from chunkvisor_worker.contract.messages import Facts

_SHAPING = ("torch", "cuda", "transformers", "sentence-transformers")
"""Libraries whose versions may change the numbers in a vector."""


class Parts:
    """The texts of one chunk that an attempt at the whole did not complete.

    Such a chunk is taken apart: some texts have a vector already, others are tried in smaller
    groups, and a text that fails in a batch by itself is bad. Methods that change it raise OSError.
    """

    def __init__(self, files: ChunkFiles, chunk: int) -> None:
        self._files = files
        self._chunk = chunk
        self._index = files.read_index(chunk)

    @property
    def bad(self) -> tuple[BadText, ...]:
        """Its texts that get no vector."""
        return self._index.bad

    @property
    def begun(self) -> bool:
        """Whether any of its texts has a vector or is bad."""
        return bool(self._index.parts or self.bad)

    def good_texts(self) -> list[int]:
        """Return the texts that have a vector, in order."""
        return sorted(itertools.chain(*(part.texts for part in self._index.parts)))

    def pending_texts(self) -> list[int]:
        """Return the texts that have neither a vector nor a verdict, in order."""
        known = {*self.good_texts(), *(each.text for each in self.bad)}
        bounds = self._files.plan.bounds(self._chunk)
        return [text for text in range(*bounds) if text not in known]

    def add_vectors(self, first: int, vectors: Path, texts: Collection[int]) -> None:
        """Copy the vectors of these texts from a verified file, whose first row is text `first`.

        Texts that have a vector or a verdict already are left out.
        """
        added = sorted(set(texts).intersection(self.pending_texts()))
        if not added:  # all were stored, and what followed has failed
            return
        digest = self._files.add_vectors(self._chunk, first, vectors, added)
        self._save(replace(self._index, parts=(*self._index.parts, Part(tuple(added), digest))))

    def add_bad(self, *texts: BadText) -> None:
        """Keep that these texts get no vector, all by one write."""
        self._save(replace(self._index, bad=(*self.bad, *texts)))

    def forgive(self) -> None:
        """Forget the bad texts: they are pending again."""
        if self.bad:
            self._save(replace(self._index, bad=()))

    def forget_vectors(self) -> None:
        """Forget the vectors: their texts are pending again."""
        self._save(replace(self._index, parts=()))

    def forget_damaged(self, dimension: int) -> bool:
        """Forget vectors whose digest does not match; say whether there were any."""
        damaged = self._files.damaged(self._chunk, self._index.parts, dimension)
        if damaged:
            whole = tuple(part for part in self._index.parts if part not in damaged)
            self._save(replace(self._index, parts=whole))
        return bool(damaged)

    def _save(self, index: Index) -> None:
        self._files.write_index(self._chunk, index)
        self._index = index


class Ledger:
    """Committed chunks, bad texts and model facts of one output."""

    def __init__(
        self,
        layout: OutputLayout,
        plan: Plan,
        fingerprint: str,
        files: ChunkFiles | None = None,
    ) -> None:
        """`files` replace those of the layout; the simulator gives files in memory."""
        self.layout = layout
        self.plan = plan
        self.fingerprint = fingerprint
        self.facts: Facts | None = None
        """What the first worker found out about the model."""
        self.other_versions: list[dict[str, str]] = []
        """Versions of libraries that computed some of the texts, other than those in the facts."""
        self.bad: dict[int, BadText] = {}
        """Texts of committed chunks that have no vector, by their number."""
        self.files = files or ChunkFiles(layout, plan, fingerprint)
        self._committed = bytearray(plan.count)
        self._parts: dict[int, Parts] = {}

    def load(self) -> None:
        """Read the folder, and remove what cannot be used: it is computed again. Raises OSError."""
        self.files.make_folders()
        record = self.files.read_facts()
        if record:
            self.facts = record.facts
            self.other_versions = list(record.other_versions)
        self._committed = self.files.committed()
        self.bad = {}
        for chunk in self.files.taken_apart():
            if self._committed[chunk]:
                self._keep_bad_texts(chunk)
            else:
                self.parts(chunk)
        if not self.facts:
            self._bring_back_facts()

    def _keep_bad_texts(self, chunk: int) -> None:
        """Remove the parts of a committed chunk, except its bad texts: their rows are NaN."""
        bad = self.parts(chunk).bad
        self.bad.update({text.text: text for text in bad})
        self.files.remove_parts(chunk, keep_index=bool(bad))
        del self._parts[chunk]

    def _bring_back_facts(self) -> None:
        """Make one chunk with vectors pending, so that a worker reports the lost model facts."""
        good = self.known_good()
        if not good:
            return
        chunk = good[0] // self.plan.chunk_size
        if self._committed[chunk]:
            self.discard(chunk)
        else:
            self.parts(chunk).forget_vectors()

    def forgive_if_none_is_good(self) -> None:
        """Make all bad texts pending if no text has a vector: then the texts were not the cause.

        Raises OSError.
        """
        if self.bad_count == 0 or self.known_good():
            return
        for chunk in range(self.plan.count):
            if self._committed[chunk]:
                self.discard(chunk)  # its bad texts are among the parts again
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
    def chunks_left(self) -> int:
        """Number of chunks that are still to do."""
        return self.plan.count - self.chunks_done

    def pending_texts(self, chunk: int) -> Sequence[int]:
        """Return the texts of the chunk that have neither a vector nor a verdict, in order."""
        if self.committed(chunk):
            return ()
        if chunk not in self._parts:
            return range(*self.plan.bounds(chunk))
        return self._parts[chunk].pending_texts()

    def parts(self, chunk: int) -> Parts:
        """Return what is known of the texts of a chunk that is not committed."""
        if chunk not in self._parts:
            self._parts[chunk] = Parts(self.files, chunk)
        return self._parts[chunk]

    @property
    def bad_count(self) -> int:
        """Number of bad texts, in committed chunks and in others."""
        return len(self.bad) + sum(len(parts.bad) for parts in self._parts.values())

    def bad_texts(self) -> list[BadText]:
        """Return the bad texts, in committed chunks and in others, in order."""
        found = itertools.chain(self.bad.values(), *(parts.bad for parts in self._parts.values()))
        return sorted(found, key=lambda bad: bad.text)

    def next_pending(self, start: int) -> int | None:
        """Return the first chunk from `start` on that is not committed, if there is one."""
        found = self._committed.find(0, start)
        return None if found < 0 else found

    def known_good(self) -> list[int]:
        """Return the texts of one chunk that have a vector, in order; empty if no text has one."""
        for chunk in (number for number, done in enumerate(self._committed) if done):
            good = [text for text in range(*self.plan.bounds(chunk)) if text not in self.bad]
            if good:
                return good
        return next(filter(None, (parts.good_texts() for parts in self._parts.values())), [])

    def taken_apart(self) -> list[int]:
        """Return the chunks that are not committed and have a text with a vector or a verdict."""
        return [chunk for chunk, parts in self._parts.items() if parts.begun]

    def saved(self) -> dict[int, int]:
        """Count the texts with a vector or a verdict in each chunk that is not committed."""
        return {
            chunk: self.plan.size(chunk) - len(self.parts(chunk).pending_texts())
            for chunk in self.taken_apart()
        }

    def fix_facts(self, facts: Facts) -> None:
        """Keep the model facts that came with the first vectors of the output. Raises OSError."""
        if not self.facts:
            self.files.write_facts(facts)
            self.facts = facts

    def note_versions(self, facts: Facts) -> list[str]:
        """Keep the versions of these facts; return how they differ from the first ones, in words.

        Raises OSError.
        """
        now = facts.versions
        before = self.facts.versions if self.facts else now
        changed = [
            f"{name} {before.get(name) or 'absent'} before, {now.get(name) or 'absent'} now"
            for name in _SHAPING
            if before.get(name) != now.get(name)
        ]
        if self.facts and changed and now not in self.other_versions:
            self.files.write_facts(self.facts, [*self.other_versions, now])
            self.other_versions.append(now)
        return changed

    def commit(self, chunk: int, vectors: Path, file_digest: str, facts: Facts) -> None:
        """Publish verified vectors by one rename. Raises OSError.

        The model facts are written before the first chunk: there are never chunks without facts.
        """
        self.fix_facts(facts)
        self.files.publish(chunk, vectors, file_digest)
        self._keep_bad_texts(chunk)
        self._committed[chunk] = 1

    def commit_parts(self, chunk: int) -> bool:
        """Commit a chunk from its parts; False if some were damaged: their texts are pending again.

        Each of its texts has a vector or a verdict, and the facts are known. Raises OSError.
        """
        assert self.facts
        dimension = self.facts.dimension
        parts = self.parts(chunk)
        if parts.forget_damaged(dimension):
            return False
        vectors, digest = self.files.merge_parts(chunk, dimension, parts.good_texts())
        self.commit(chunk, vectors, digest, self.facts)
        return True

    def discard(self, chunk: int) -> None:
        """Remove the chunk's file: its texts are pending again, except the bad ones.

        Raises OSError.
        """
        self.files.discard(chunk)
        start, stop = self.plan.bounds(chunk)
        self.bad = {text: bad for text, bad in self.bad.items() if not start <= text < stop}
        self._committed[chunk] = 0
        self._parts[chunk] = Parts(self.files, chunk)
