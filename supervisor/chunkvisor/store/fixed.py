"""What the first run of an output fixed: its identity, its source and its cut into chunks.

It never changes them: a run that finds others refuses.
"""

from dataclasses import asdict, dataclass
from typing import Any

from chunkvisor.store.identity import Identity, from_json
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.ledger import Ledger
from chunkvisor.store.plan import Plan
from chunkvisor.store.seal import DamagedError, read_record, write_sealed


@dataclass(frozen=True, slots=True)
class Fixed:
    """The record."""

    identity: Identity
    chunk_size: int
    """Distinct texts in a chunk."""


@dataclass(frozen=True, slots=True)
class _FixedRecord:
    identity: dict[str, Any]
    chunk_size: int


@dataclass(frozen=True, slots=True)
class Staged:
    """What the source was found to hold. Raises ValueError for numbers that no source has."""

    rows: int
    distinct: int
    """Distinct texts."""
    digest: str
    """Of the texts and their order."""
    files: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 0 < self.distinct <= self.rows:
            raise ValueError(self)


@dataclass(frozen=True, slots=True)
class StagedRecord:
    """The staged source, and the request that it answers."""

    asked: dict[str, Any]
    """All that it depends on."""
    staged: Staged


def read_fixed(layout: OutputLayout) -> Fixed | None:
    """The record, or None where the output was never begun. Raises DamagedError where it is damaged, OSError."""
    record = read_record(_FixedRecord, layout.identity)
    if record is None:
        return None
    identity = from_json(record.identity)
    if identity is None or record.chunk_size < 1:
        raise DamagedError(str(layout.identity))
    return Fixed(identity, record.chunk_size)


def write_fixed(layout: OutputLayout, fixed: Fixed) -> None:
    """Write the record. Raises OSError."""
    write_sealed(layout.identity, {"identity": fixed.identity.to_json(), "chunk_size": fixed.chunk_size})


def read_staged(layout: OutputLayout) -> StagedRecord | None:
    """The record, or None where there is none. Raises DamagedError where it is damaged, OSError."""
    return read_record(StagedRecord, layout.staged)


def write_staged(layout: OutputLayout, record: StagedRecord) -> None:
    """Write the record. Raises OSError."""
    write_sealed(layout.staged, asdict(record))


def ledger_of(layout: OutputLayout) -> Ledger | None:
    """The output's ledger, not loaded, or None where it was never begun. Raises DamagedError, OSError."""
    fixed, record = read_fixed(layout), read_staged(layout)
    if fixed is None or record is None:
        return None
    return Ledger(layout, Plan(record.staged.distinct, fixed.chunk_size), fixed.identity.fingerprint)
