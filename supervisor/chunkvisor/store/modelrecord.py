"""What a workdir knows of its models: the commit that it has fixed for each hub id, and the stamps of a local folder.

What one model has fixed stays when another one is used.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from chunkvisor.store.seal import DamagedError, read_sealed, write_sealed
from chunkvisor.store.stamp import Stamp
from chunkvisor_worker.contract.wire import from_json


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The commit that a workdir has fixed for a hub id."""

    name: str
    asked: str | None
    """Branch, tag or commit of the config."""
    path: str
    revision: str


@dataclass(frozen=True, slots=True)
class _ModelRecord:
    pins: tuple[Snapshot, ...] = ()
    stamps: dict[str, Stamp] = field(default_factory=dict)
    """By full path."""


def read_pins(path: Path) -> tuple[Snapshot, ...]:
    """All that are fixed. Raises OSError."""
    return _read(path).pins


def read_pin(path: Path, name: str, asked: str | None) -> Snapshot | None:
    """The commit fixed for this hub id and this revision of a config; None where there is none. Raises OSError."""
    return next((pin for pin in _read(path).pins if (pin.name, pin.asked) == (name, asked)), None)


def write_pin(path: Path, pin: Snapshot) -> None:
    """Fix a commit; it takes the place of an earlier one of the same hub id and revision. Raises OSError."""
    record = _read(path)
    others = tuple(each for each in record.pins if (each.name, each.asked) != (pin.name, pin.asked))
    write_sealed(path, asdict(replace(record, pins=(*others, pin))))


def read_stamps(path: Path) -> dict[str, Stamp]:
    """The stamps of the local folder that was used last. Raises OSError."""
    return _read(path).stamps


def write_stamps(path: Path, stamps: dict[str, Stamp]) -> None:
    """Replace them. Raises OSError."""
    write_sealed(path, asdict(replace(_read(path), stamps=stamps)))


def _read(path: Path) -> _ModelRecord:
    """What is there; nothing, where it is damaged."""
    try:
        content = read_sealed(path) or {}
    except DamagedError:
        return _ModelRecord()
    return from_json(_ModelRecord, json.dumps(content)) or _ModelRecord()
