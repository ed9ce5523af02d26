"""A modelled disk: what the driver has written of each output, and what of it is lost when the supervisor dies."""

import random
from collections.abc import Collection, Iterable, Sequence

from chunkvisor.decide.lessons import Lesson
from chunkvisor_worker.contract.messages import Limits

MISSING, VECTOR, BAD = 0, 1, 2
"""What a text has: nothing yet, its vector, or its quarantine record."""


class Output:
    """One output on the disk; it is the scheduler's `Progress`."""

    def __init__(self, name: str, limits: Limits, bounds: list[tuple[int, int]], lengths: Sequence[int] = ()) -> None:
        """`lengths` are the tokens of each text; by default they are alike."""
        self.name = name
        self.limits = limits
        self.chunks = len(bounds)
        self.texts = bounds[-1][1]
        self.left = self.chunks
        self.has_facts = False
        self.whole = True
        self.last_bad = None
        self.bad_count = 0
        self.published = False
        """Whether its final file stands."""
        self.state = bytearray(self.texts)
        self._bounds = bounds
        self._lengths = lengths or [1] * self.texts
        self._committed = bytearray(self.chunks)
        self._begun: set[int] = set()
        """Chunks of which anything is known but that they are missing."""
        self._cuts: dict[int, set[int]] = {}
        self._unsynced: set[tuple[int, int]] = set()
        """(chunk, cut) that a death may forget."""
        self.parts: dict[int, list[frozenset[int]]] = {}
        """Texts of the part files of each chunk that is not committed."""

    @property
    def complete(self) -> bool:
        """See Progress."""
        return not self.left

    def bounds(self, chunk: int) -> tuple[int, int]:
        """See Progress."""
        return self._bounds[chunk]

    def next_pending(self, start: int) -> int | None:
        """See Progress."""
        found = self._committed.find(0, start)
        return None if found < 0 else found

    def missing(self, chunk: int) -> list[tuple[int, int]]:
        """See Progress."""
        if self._committed[chunk]:
            return []
        first, last = self._bounds[chunk]
        if chunk not in self._begun:
            return [(first, last)]
        cuts, found, start = self._cuts.get(chunk, ()), [], None
        for text in range(first, last):
            if self.state[text] != MISSING or (start is not None and text in cuts):
                if start is not None:
                    found.append((start, text))
                start = None if self.state[text] != MISSING else text
            elif start is None:
                start = text
        if start is not None:
            found.append((start, last))
        return found

    def cuts(self, chunk: int) -> Collection[int]:
        """See Progress."""
        return self._cuts.get(chunk, ())

    def bad_rows(self) -> int:
        """See Progress: here each text has one row."""
        return self.bad_count

    def rows_of(self, text: int) -> int:
        """See Progress."""
        return 1

    def shortest(self, chunk: int, without: Collection[int]) -> int | None:
        """See Progress."""
        texts = (text for gap in self.missing(chunk) for text in range(*gap) if text not in without)
        return min(texts, key=lambda text: self._lengths[text], default=None)

    def known_good(self) -> tuple[int, int] | None:
        """See Progress."""
        text = self.state.find(VECTOR)
        if text < 0:
            return None
        return next(n for n, (first, last) in enumerate(self._bounds) if first <= text < last), text

    def committed(self, chunk: int) -> bool:
        """Whether the chunk's file stands."""
        return bool(self._committed[chunk])

    @property
    def progress(self) -> int:
        """Rises with everything that a later run need not do again."""
        return self.texts - self.state.count(MISSING) + self.chunks - self.left + self.published + len(self._cuts)

    # --- what the driver writes

    def keep(self, chunk: int, start: int, stop: int, holes: Iterable[int], *, failed: bool = False) -> None:
        """Store the vectors of a range but for the texts in `holes`: as a chunk if it is all of one, else as a part."""
        left_out = set(holes)
        kept = frozenset(range(start, stop)).difference(left_out) if left_out else frozenset(range(start, stop))
        for text in kept:
            self.state[text] = VECTOR
        self.has_facts = True
        if (start, stop) == self._bounds[chunk] and not left_out and not failed:
            self._commit(chunk)
        else:
            self._begin(chunk)
            self.parts.setdefault(chunk, []).append(kept)

    def quarantine(self, chunk: int, text: int) -> None:
        """Note that the text has no vector."""
        self._begin(chunk)
        self.state[text] = BAD
        self.bad_count += 1

    def cut(self, chunk: int, at: int) -> None:
        """Note where the chunk is taken apart; that is not synced."""
        self._begun.add(chunk)
        self._cuts.setdefault(chunk, set()).add(at)
        self._unsynced.add((chunk, at))

    def compose(self, chunk: int) -> None:
        """Commit a chunk of which all is known."""
        self._commit(chunk)

    def discard(self, chunk: int) -> None:
        """Forget a committed chunk, its quarantine records included."""
        first, last = self._bounds[chunk]
        self.bad_count -= self.state.count(BAD, first, last)
        self.state[first:last] = bytes(last - first)
        if self._committed[chunk]:
            self._committed[chunk] = 0
            self.left += 1

    def lose_part(self, chunk: int, part: frozenset[int]) -> None:
        """A part turns out damaged: its texts are missing again."""
        self.parts[chunk].remove(part)
        for text in part:
            if self.state[text] == VECTOR:
                self.state[text] = MISSING

    def die(self, chance: random.Random) -> None:
        """The supervisor is gone: of what was not synced, some is forgotten."""
        for chunk, at in sorted(self._unsynced):
            if chunk in self._cuts and chance.random() < 0.5:
                self._cuts[chunk].discard(at)
        self._unsynced.clear()

    def _begin(self, chunk: int) -> None:
        self._begun.add(chunk)
        if self._unsynced:
            self._unsynced = {each for each in self._unsynced if each[0] != chunk}  # one file holds all of a chunk

    def _commit(self, chunk: int) -> None:
        if not self._committed[chunk]:
            self._committed[chunk] = 1
            self.left -= 1
        self._begun.discard(chunk)
        self._cuts.pop(chunk, None)
        self.parts.pop(chunk, None)


class Disk:
    """All outputs, and the lessons of earlier runs."""

    def __init__(self, outputs: list[Output]) -> None:
        self.outputs = outputs
        self.lessons: dict[str, tuple[Lesson, ...]] = {}
        self._synced: dict[str, tuple[Lesson, ...]] = {}

    def save_lessons(self, kind: str, lessons: tuple[Lesson, ...]) -> None:
        """They are replaced by a rename, and not synced."""
        self.lessons[kind] = lessons

    def die(self, chance: random.Random) -> None:
        """The supervisor is gone."""
        for output in self.outputs:
            output.die(chance)
        if chance.random() < 0.5:
            self.lessons = dict(self._synced)
        self._synced = dict(self.lessons)

    @property
    def progress(self) -> int:
        """Rises with everything that a later run need not do again."""
        return sum(output.progress for output in self.outputs)
