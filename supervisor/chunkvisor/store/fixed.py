"""What the first run of an output fixes: its identity, its source, its cut into chunks and the facts of its model.

A run that finds others refuses.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from chunkvisor.store.identity import Identity, from_json
from chunkvisor.store.outputlayout import OutputLayout
from chunkvisor.store.seal import DamagedError, read_if_whole, read_record, write_sealed
from chunkvisor_worker.contract.files import make_folder
from chunkvisor_worker.contract.messages import Facts


@dataclass(frozen=True, slots=True)
class Plan:
    """Chunks of one output, numbered from 0; fixed by the output's first run."""

    distinct: int
    """Distinct texts."""
    chunk_size: int
    """Distinct texts in a chunk; the last may have fewer."""

    @property
    def count(self) -> int:
        """Number of chunks."""
        return -(-self.distinct // self.chunk_size)

    def bounds(self, chunk: int) -> tuple[int, int]:
        """(first text, one past the last) of the chunk."""
        return chunk * self.chunk_size, min(self.distinct, (chunk + 1) * self.chunk_size)

    def texts_in(self, chosen: bytearray) -> int:
        """Texts in the chunks that are chosen: one byte a chunk, 1 or 0."""
        count = chosen.count(1)
        lacking = self.count * self.chunk_size - self.distinct if count and chosen[-1] else 0
        return count * self.chunk_size - lacking

    def size(self, chunk: int) -> int:
        """Texts in the chunk."""
        start, stop = self.bounds(chunk)
        return stop - start


@dataclass(frozen=True, slots=True)
class Fixed:
    """The record."""

    identity: Identity
    chunk_size: int
    """Distinct texts in a chunk."""
    generation: int = 1
    """Rises by one with each update."""


@dataclass(frozen=True, slots=True)
class _FixedRecord:
    identity: dict[str, Any]
    chunk_size: int
    generation: int = 1


@dataclass(frozen=True, slots=True)
class Staged:
    """What the source was found to hold. Raises ValueError for numbers that no source has."""

    rows: int
    distinct: int
    """Distinct texts."""
    digest: str
    """Of the texts and their order."""
    files: tuple[str, ...]
    carried: str | None = None
    """Digest of the rows table, where columns are carried along or rows are left out."""

    def __post_init__(self) -> None:
        if not 0 < self.distinct <= self.rows:
            raise ValueError(self)


@dataclass(frozen=True, slots=True)
class StagedRecord:
    """The staged source, and the request that it answers."""

    asked: dict[str, Any]
    """All that it depends on."""
    staged: Staged


@dataclass(frozen=True, slots=True)
class _FactsRecord:
    facts: Facts
    other_versions: tuple[dict[str, str], ...] = ()
    """Of libraries, that computed some of the texts after those of the facts."""


def make_state(layout: OutputLayout) -> None:
    """Make the output's state folder where it is missing. Raises OSError."""
    for folder in (layout.state.parent, layout.state):
        make_folder(folder)


def read_fixed(layout: OutputLayout) -> Fixed | None:
    """The record, or None where the output was never begun. Raises DamagedError where it is damaged, OSError."""
    record = read_record(_FixedRecord, layout.identity)
    if record is None:
        return None
    identity = from_json(record.identity)
    if identity is None or record.chunk_size < 1:
        raise DamagedError(str(layout.identity))
    return Fixed(identity, record.chunk_size, record.generation)


def write_fixed(layout: OutputLayout, fixed: Fixed) -> None:
    """Write the record. Raises OSError."""
    record = _FixedRecord(fixed.identity.values, fixed.chunk_size, fixed.generation)
    write_sealed(layout.identity, asdict(record))


def read_staged(layout: OutputLayout) -> StagedRecord | None:
    """The record, or None where there is none. Raises DamagedError where it is damaged, OSError."""
    return read_record(StagedRecord, layout.staged)


def write_staged(layout: OutputLayout, record: StagedRecord) -> None:
    """Write the record. Raises OSError."""
    write_sealed(layout.staged, asdict(record))


def read_facts(layout: OutputLayout) -> Facts | None:
    """The facts, or None where they are not known, or not any more."""
    record = read_if_whole(_FactsRecord, layout.facts)
    return record.facts if record is not None and record.facts.dimension > 0 else None


def read_other_versions(layout: OutputLayout) -> list[dict[str, str]]:
    """Versions of libraries, other than those in the facts, that computed some of the texts."""
    record = read_if_whole(_FactsRecord, layout.facts)
    return list(record.other_versions) if record is not None else []


def write_facts(layout: OutputLayout, facts: Facts, other_versions: Sequence[dict[str, str]] = ()) -> None:
    """Write them. Raises OSError."""
    write_sealed(layout.facts, asdict(_FactsRecord(facts, tuple(other_versions))))
