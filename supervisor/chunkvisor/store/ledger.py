"""What is done and known of one output, as its folder says: a new process reads the same."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from chunkvisor.store.artifact import (
    BadVectorsError,
    chunk_key,
    inspect,
)
from chunkvisor.store.chunkfiles import ChunkFiles, Index, Part
from chunkvisor.store.identity import BadText, Plan
from chunkvisor.store.layout import OutputLayout
from chunkvisor_worker.contract.messages import Facts

_SHAPING = ("torch", "cuda", "transformers", "sentence-transformers")
"""Libraries whose versions may change the numbers in a vector."""

# --- chunks that are taken apart


class Parts:
    """Vectors and bad texts of a chunk that is being taken apart.

    Methods that change it raise OSError.
    """

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

    def pending_texts(self) -> list[int]:
        """Return the texts that have neither a vector nor a verdict, in order."""
        known = {*self.good_texts(), *(each.text for each in self.bad)}
        bounds = self._files.plan.bounds(self._chunk)
        return [text for text in range(*bounds) if text not in known]

    def add_vectors(self, first: int, vectors: Path, texts: Collection[int]) -> None:
        """Take over the vectors of these texts from a verified file.

        Its first row is that of text `first`.
        """
        added = sorted(set(texts).intersection(self.pending_texts()))
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
        """Read the folder; what does not belong is removed, and so computed again.

        Raises OSError.
        """
        self._files.make_folders()
        record = self._files.read_facts()
        if record is not None:
            self.facts = record.facts
            self.other_versions = list(record.other_versions)
        self._committed = self._files.committed()
        self.bad = {}
        for chunk in self._files.taken_apart():
            if self._committed[chunk]:
                self._keep_bad_texts(chunk)
            else:
                self.parts(chunk)
        if self.facts is None:
            self._bring_back_facts()

    def _keep_bad_texts(self, chunk: int) -> None:
        """Keep of a committed chunk its bad texts.

        Without them, rows of NaN would count as damage.
        """
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
        """Count the texts that need no attempt any more, by chunk that is not committed."""
        return {
            chunk: self.plan.size(chunk) - len(self.parts(chunk).pending_texts())
            for chunk in self.taken_apart()
        }

    def fix_facts(self, facts: Facts) -> None:
        """Have the first vectors fix the facts of the output. Raises OSError."""
        if self.facts is None:
            self._files.write_facts(facts)
            self.facts = facts

    def note_versions(self, facts: Facts) -> list[str]:
        """Keep the versions that compute now; return how they differ from the first, in words.

        Raises OSError.
        """
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

        The first commit fixes the facts of the output, and is preceded by them: no chunk lies there
        without.
        """
        self.fix_facts(facts)
        self._files.publish(chunk, vectors, file_digest)
        self._keep_bad_texts(chunk)
        self._committed[chunk] = 1

    def commit_parts(self, chunk: int) -> bool:
        """Commit a chunk from its parts; False if some were damaged, whose texts are missing again.

        Each of its texts has a vector or a verdict, and the facts are known. Raises OSError.
        """
        assert self.facts is not None
        dimension = self.facts.dimension
        parts = self.parts(chunk)
        if parts.forget_damaged(dimension):
            return False
        vectors, digest = self._files.merge_parts(chunk, dimension, parts.good_texts())
        self.commit(chunk, vectors, digest, self.facts)
        return True

    def discard(self, chunk: int) -> None:
        """Remove what is committed of the chunk: it is pending again, but for its bad texts.

        Raises OSError.
        """
        self._files.discard(chunk)
        start, stop = self.plan.bounds(chunk)
        self.bad = {text: bad for text, bad in self.bad.items() if not start <= text < stop}
        self._committed[chunk] = 0
        self._parts[chunk] = Parts(self._files, chunk)

    def is_whole(self, chunk: int, path: Path) -> bool:
        """Say whether the file has the content that its name speaks of."""
        try:
            key = chunk_key(self.fingerprint, *self.plan.bounds(chunk), inspect(path).digest)
        except (BadVectorsError, OSError):
            return False
        return path.name.endswith(f"-{key}.npy")
