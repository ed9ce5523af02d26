"""The disk of a life, in memory: the files under the real ledger, and what of them is lost when the
parent dies.
"""

import errno
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from chunkvisor.core.output import OutputRun
from chunkvisor.core.policy import BatchLimit
from chunkvisor.outputs.forms import Form
from chunkvisor.store.chunkfiles import ChunkFiles, Index, Part
from chunkvisor.store.identity import FactsRecord, Plan
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.ledger import Ledger
from chunkvisor_worker.contract.messages import EncodeSpec, Facts, Limits, ModelSpec, Spec

MISSING, VECTOR, BAD = 0, 1, 2  # what a text has: nothing yet, its vector, or its quarantine record
DIMENSION = 4
FACTS = Facts(DIMENSION)
DAMAGED = -1  # in the place of a vector that is not what was written
_JOB = Spec("", "", 0, 1, 0, 0, "", "cuda", ModelSpec(""), EncodeSpec())

Vectors = dict[int, int]
"""A file of vectors: by text, a number that stands for its vector. A right one is the text's own
number."""


class MemoryFiles(ChunkFiles):
    """In the place of an output's files; see ChunkFiles."""

    def __init__(self, name: str, plan: Plan, on_write: Callable[[], None]) -> None:
        """`on_write` is called before each write: it may raise OSError, or end the parent."""
        super().__init__(OutputLayout(Path("/nowhere"), name), plan, "print")
        self._on_write = on_write
        self.taken = 0  # texts that have their vectors from another output
        self.facts: FactsRecord | None = None
        self.chunks: dict[int, Vectors] = {}
        self.indexes: dict[int, Index] = {}
        self.rows: dict[int, Vectors] = {}  # of chunks that are taken apart
        self.state = bytearray(plan.distinct)
        """For each text MISSING, VECTOR or BAD, as the files say."""

    def _settle(self, chunk: int) -> None:
        """Update `state` for the texts of a chunk."""
        index = self.indexes.get(chunk)
        start, stop = self.plan.bounds(chunk)
        self.state[start:stop] = bytes(stop - start)
        if index is not None:
            for bad in index.bad:
                self.state[bad.text] = BAD
        if chunk in self.chunks:
            for text in self.chunks[chunk]:
                self.state[text] = VECTOR
        elif index is not None:
            rows = self.rows.get(chunk, {})
            for part in index.parts:
                for text in part.texts:
                    if text in rows:
                        self.state[text] = VECTOR

    # --- see ChunkFiles

    def make_folders(self) -> None:
        pass

    def read_facts(self) -> FactsRecord | None:
        return self.facts

    def write_facts(self, facts: Facts, other_versions: Sequence[dict[str, str]] = ()) -> None:
        self._on_write()
        self.facts = FactsRecord(facts, tuple(other_versions))

    def committed(self) -> bytearray:
        found = bytearray(self.plan.count)
        for chunk in self.chunks:
            found[chunk] = 1
        return found

    def publish(self, chunk: int, vectors: Path, digest: str) -> None:
        self._on_write()
        written = cast("Vectors", vectors)
        start, stop = self.plan.bounds(chunk)
        self.chunks[chunk] = {text: written[text] for text in range(start, stop) if text in written}
        self._settle(chunk)

    def discard(self, chunk: int) -> None:
        self._on_write()
        self.chunks.pop(chunk, None)
        self._settle(chunk)

    def taken_apart(self) -> list[int]:
        return sorted(self.indexes)

    def read_index(self, chunk: int) -> Index:
        index = self.indexes.get(chunk, Index(self.fingerprint))
        return index if chunk in self.rows else replace(index, parts=())

    def write_index(self, chunk: int, index: Index) -> None:
        self._on_write()
        self.indexes[chunk] = index
        self._settle(chunk)

    def add_vectors(self, chunk: int, first: int, vectors: Path, texts: Sequence[int]) -> str:
        self._on_write()
        written = cast("Vectors", vectors)
        found = {text: written[text] for text in texts}
        self.rows.setdefault(chunk, {}).update(found)
        return str(list(found.values()))

    def damaged(self, chunk: int, parts: Sequence[Part], dimension: int) -> list[Part]:
        rows = self.rows.get(chunk, {})
        return [
            part for part in parts if str([rows.get(text) for text in part.texts]) != part.digest
        ]

    def merge_parts(self, chunk: int, dimension: int, good: Sequence[int]) -> tuple[Path, str]:
        self._on_write()
        rows = self.rows.setdefault(chunk, {})
        return cast("Path", {text: rows[text] for text in good}), "digest"

    def remove_parts(self, chunk: int, *, keep_index: bool) -> None:
        self.rows.pop(chunk, None)
        if not keep_index:
            self.indexes.pop(chunk, None)
        self._settle(chunk)

    # --- what befalls them

    def damage_part(self, chunk: int, part: int = 0) -> None:
        """Change a vector of a part behind the ledger's back."""
        text = self.indexes[chunk].parts[part].texts[0]
        self.rows[chunk][text] = DAMAGED


class _Table:
    """In the place of the staged texts: a text is as many characters long as it has tokens."""

    rows = 1
    distinct = 1

    def __init__(self, lengths: Sequence[int], taken: int) -> None:
        self._lengths = lengths
        self.reuse = taken or None

    def each_text(self, start: int, stop: int) -> Iterator[str]:
        return ("x" * self._lengths[text] for text in range(start, stop))

    def texts(self, start: int, stop: int) -> list[str]:
        return list(self.each_text(start, stop))

    def first_row(self, start: int, stop: int) -> range:
        return range(start, stop)

    def row_counts(self, texts: Sequence[int]) -> list[int]:
        return [1 for _ in texts]

    def places_of(self, rows: Sequence[int]) -> list[str]:
        return [f"row {row}" for row in rows]

    def reused_texts(self, _most: int) -> list[str]:
        return ["x"] * (self.reuse or 0)


class _Model:
    """In the place of the model's source: it never changes."""

    def check_unchanged(self) -> None:
        pass


class Output(OutputRun):
    """The real one, over files in memory; whoever plays sets what starts and ends attempts and
    joins.
    """

    new_attempt: Callable[..., Any]
    attempts_left: Callable[[], list[Any]] = staticmethod(list)
    join: Callable[[Callable[[], None]], dict[str, Any]]

    def __init__(self, files: MemoryFiles, limits: Limits, lengths: Sequence[int]) -> None:
        """Open an output as a run does when it begins, with what the files have."""
        ledger = Ledger(files.layout, files.plan, files.fingerprint, files)
        ledger.load()
        if not files.taken:
            ledger.forgive_if_none_is_good()
        table = cast("Any", _Table(lengths, files.taken))
        super().__init__(ledger, table, _JOB, limits, self._finish, Form(), cast("Any", _Model()))
        self.files = files

    def become(self, planned: OutputRun) -> None:
        super().become(planned)
        self.files = cast("Output", planned).files

    def _finish(self, on_wait: Callable[[], None]) -> dict[str, Any]:
        return self.join(on_wait)

    @property
    def state(self) -> bytearray:
        """What each text has."""
        return self.files.state

    @property
    def complete(self) -> bool:
        """Whether each text has a vector or a verdict."""
        return MISSING not in self.files.state

    def rows_of(self, text: int) -> int:
        return 1

    def left_behind(self) -> Iterator[Any]:
        return iter(self.attempts_left())

    def newest_log(self, chunk: int) -> None:
        return None

    def gone(self, error: OSError) -> None:
        return None


class Disk:
    """All that outlives the parent: files of outputs, final files, lessons about memory."""

    def __init__(self, plans: Sequence[Plan], on_write: Callable[[], None]) -> None:
        self.on_write = on_write
        self.shared_is_planned = False
        self.files = [
            MemoryFiles(f"out{number}", plan, on_write) for number, plan in enumerate(plans)
        ]
        self.outputs: list[Output] = []  # those of the current run
        self.published = set[int]()
        self.lessons: dict[str, BatchLimit] = {}
        self._synced: dict[str, BatchLimit] = {}

    def get(self, kind: str) -> BatchLimit | None:
        """What batches on devices of the kind are to hold; see LessonFile."""
        return self.lessons.get(kind)

    def save(self, kind: str, rows: int, tokens: int | None) -> None:
        """Keep it."""
        self.lessons[kind] = BatchLimit(rows, tokens)

    def die(self, chance: random.Random) -> None:
        """Lose, every other time, the lessons since the last death: they were not synced."""
        if chance.random() < 0.5:
            self.lessons = dict(self._synced)
        self._synced = dict(self.lessons)

    def plan_shared(self, kept: int, chunk_size: int) -> None:
        """Fix the plan of the second output: that many of its texts have no vector elsewhere."""
        self.on_write()
        guessed = self.files[1].plan
        planned = MemoryFiles("out1", Plan(kept, chunk_size), self.on_write)
        planned.taken = guessed.distinct - kept
        if planned.taken:
            planned.facts = FactsRecord(FACTS)  # those of the vectors that are copied
        self.files[1] = planned
        self.shared_is_planned = True

    @property
    def progress(self) -> int:
        """A number that grows with whatever is done, and lasts."""
        done = 0
        for files in self.files:
            # The next run forgives bad texts if no text has a vector.
            if VECTOR in files.state or files.taken:
                done += len(files.state) - files.state.count(MISSING)
        return done + len(self.published) + self.shared_is_planned


def full() -> OSError:
    """The error of a full disk."""
    return OSError(errno.ENOSPC, "no space left on device")
