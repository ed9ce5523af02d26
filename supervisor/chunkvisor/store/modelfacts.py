"""What the first worker of an output has found out about the model, as one record that all others are held against.

It never replaces a record that can be read: the first one counts.
"""

import os
from dataclasses import asdict, dataclass

from chunkvisor.errors import config_error
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.seal import DamagedError, read_record, write_sealed
from chunkvisor.store.slices import Slice
from chunkvisor_worker.contract.files import sync_folder
from chunkvisor_worker.contract.messages import Facts


@dataclass(frozen=True, slots=True)
class _FactsRecord:
    facts: Facts


def read_facts(layout: OutputLayout) -> Facts | None:
    """The facts, or None where they are not known, or not any more."""
    try:
        record = read_record(_FactsRecord, layout.facts)
    except (DamagedError, OSError):
        return None
    return record.facts if record is not None and record.facts.dimension > 0 else None


def write_facts(layout: OutputLayout, facts: Facts, of_slice: Slice | None) -> Facts:
    """Write them where they are not known; returns those that hold, which may be another slice's.

    Raises OSError; Halt (78) where another slice has found another dimension in the same moment.
    """
    if of_slice is None:
        write_sealed(layout.facts, asdict(_FactsRecord(facts)))
        return facts
    own = layout.facts_of(of_slice)
    write_sealed(own, asdict(_FactsRecord(facts)))
    found: Facts | None = None
    try:
        os.link(own, layout.facts)  # fails where it exists, on NFS as well, unlike a rename
    except FileExistsError:
        found = read_facts(layout)
    except OSError:  # a file system without links
        found = None
    if found is None:  # nothing is there, or nothing that can be read
        own.replace(layout.facts)
        found = facts
    own.unlink(missing_ok=True)
    sync_folder(layout.state)
    if found.dimension != facts.dimension:
        raise config_error(
            f"two slices have found vectors of {found.dimension} and of {facts.dimension} numbers",
            why="the model is not the same on all machines",
            remedy="compare the model's files and the versions of its libraries, then run the same command again",
        )
    return found
