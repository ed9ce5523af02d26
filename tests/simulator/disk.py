"""A modelled disk: what the loop has written of each output, and what of it is lost when the parent dies."""

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from chunkvisor.heart.policy import Lesson
from chunkvisor_worker.contract.messages import Limits

MISSING, VECTOR, BAD = 0, 1, 2  # what a text has: nothing yet, its vector, or its quarantine record


class Output:
    """One output on the disk; it is the scheduler's `OutputProgress`."""

    def __init__(
        self, name: str, limits: Limits, bounds: list[tuple[int, int]], lengths: Sequence[int] = ()
    ) -> None:
        """`lengths` are the tokens of each text; by default they are alike."""
        self.name, self.limits, self.chunks = name, limits, len(bounds)
        self.texts = bounds[-1][1]
        self.bad_count = 0
        self.published = False  # whether its final file stands
        self.state = bytearray(self.texts)
        self._bounds = bounds
        self.new_attempt: Callable[..., Any]  # set by whoever plays
        self._lengths = lengths or [1] * self.texts
        self._pending = bytearray(b"\x01" * self.chunks)
        self.parts: dict[int, list[frozenset[int]]] = {}  # texts of the part files of each chunk

    # --- what only the loop asks an OutputRun for

    @property
    def left(self) -> int:
        return self._pending.count(1)

    workdir = Path("workdir")

    def gone(self, _error: OSError) -> None:
        return None

    def last_log(self, _chunk: int) -> None:
        return None

    def last_bad(self) -> None:
        return None

    def which_rows(self, _texts: Sequence[int]) -> str:
        return ""

    def place_of(self, text: int) -> tuple[int, str]:
        return text, ""

    # --- what is done

    @property
    def complete(self) -> bool:
        """Whether each text has a vector or a verdict."""
        return not any(self._pending)

    def bounds(self, chunk: int) -> tuple[int, int]:
        return self._bounds[chunk]

    def next_pending(self, start: int) -> int | None:
        found = self._pending.find(1, start)
        return None if found < 0 else found

    def missing(self, chunk: int) -> list[int]:
        if not self._pending[chunk]:
            return []
        return [text for text in range(*self._bounds[chunk]) if self.state[text] == MISSING]

    def known_good(self) -> int | None:
        text = self.state.find(VECTOR)
        return None if text < 0 else text

    def committed(self, chunk: int) -> bool:
        """Whether each text of the chunk is done."""
        return not self._pending[chunk]

    @property
    def progress(self) -> int:
        """A number that grows with whatever is done."""
        return self.texts - self.state.count(MISSING) + self.published

    def keep(self, chunk: int, texts: Iterable[int]) -> None:
        """Take over the vectors of these texts."""
        kept = frozenset(texts)
        for text in kept:
            self.state[text] = VECTOR
        self._settle(chunk)
        if len(kept) < self._bounds[chunk][1] - self._bounds[chunk][0]:
            self.parts.setdefault(chunk, []).append(kept)

    def quarantine(self, chunk: int, texts: Iterable[int]) -> None:
        """Note that these texts get no vector."""
        for text in texts:
            self.state[text] = BAD
            self.bad_count += 1
        self._settle(chunk)

    def discard(self, chunk: int) -> None:
        """Forget all of a damaged chunk."""
        first, last = self._bounds[chunk]
        self.bad_count -= self.state.count(BAD, first, last)
        self.state[first:last] = bytes(last - first)
        self.parts.pop(chunk, None)
        self._settle(chunk)

    def lose_part(self, chunk: int, part: frozenset[int]) -> None:
        """Forget a damaged part."""
        self.parts[chunk].remove(part)
        for text in part:
            if self.state[text] == VECTOR:
                self.state[text] = MISSING
        self._settle(chunk)

    def _settle(self, chunk: int) -> None:
        self._pending[chunk] = MISSING in self.state[slice(*self._bounds[chunk])]


class Disk:
    """All outputs, and the lessons."""

    def __init__(self, outputs: list[Output]) -> None:
        self.outputs = outputs
        self.lessons: dict[str, Lesson] = {}
        self._synced: dict[str, Lesson] = {}

    def get(self, kind: str) -> Lesson | None:
        """What batches on devices of the kind are to hold; see LessonFile."""
        return self.lessons.get(kind)

    def save(self, kind: str, rows: int, tokens: int | None) -> None:
        """Keep it."""
        self.lessons[kind] = Lesson(rows, tokens)

    def die(self, chance: random.Random) -> None:
        """Lose, one time of two, what was written since the death before: it was not synced."""
        if chance.random() < 0.5:
            self.lessons = dict(self._synced)
        self._synced = dict(self.lessons)

    @property
    def progress(self) -> int:
        """A number that grows with whatever is done."""
        return sum(output.progress for output in self.outputs)
