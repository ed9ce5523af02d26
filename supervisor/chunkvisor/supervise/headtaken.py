"""Takes over what was encoded of an output's first rows while the rest of its source was read.

The chunks of its head become chunks of the output where their texts are the same, by one rename each. So it may be done
twice: after a kill, the next run takes over what is left.
"""

import os
from collections.abc import Callable
from pathlib import Path

from chunkvisor.decide.lastwords import too_many_bad
from chunkvisor.ingest.rowcount import rows_of
from chunkvisor.ingest.table import StagedTable
from chunkvisor.store.artifact import BadVectorsError, chunk_key, inspect
from chunkvisor.store.fixed import Plan, read_fixed, read_staged
from chunkvisor.store.ledger import Ledger
from chunkvisor.store.outputlayout import OutputLayout
from chunkvisor.store.reuse import Reuse
from chunkvisor.store.seal import DamagedError
from chunkvisor.store.versions import VersionNotes, read_stretches
from chunkvisor.supervise.opening import Begun
from chunkvisor_worker.contract.files import remove_folder


def take_head(
    begun: Begun, ledger: Ledger, table: StagedTable, reuse: Reuse | None, limit: int, on_wait: Callable[[], None]
) -> None:
    """Take over what serves, and remove the head. `ledger`, which is loaded, is of the texts of `table`.

    Under a plan that takes vectors over, chunks are cut otherwise, and none serves. Raises Halt (78) where the texts
    that were found bad stand in more rows than the `limit`, as they may in those that were not read then; OSError, and
    what `on_wait` raises.
    """
    head = begun.layout.head
    if not os.path.lexists(head.state):
        return
    if reuse is None:
        try:
            if (done := _ledger_of(head, begun)) is not None:
                _take(done, ledger, StagedTable.open(head.table), table, on_wait)
        except DamagedError:  # what is not taken over is encoded again
            pass
        bad = ledger.bad_texts()
        if (rows := sum(rows_of(table, [each.text for each in bad]).values())) > limit:
            raise too_many_bad(begun.name, rows, limit, bad[-1])  # and again by the next run, as the head stays
    remove_folder(head.state)


def _ledger_of(head: OutputLayout, begun: Begun) -> Ledger | None:
    """Of the head, loaded; None where it was begun with other settings."""
    fixed, record = read_fixed(head), read_staged(head)
    if fixed is None or record is None or fixed.chunk_size != begun.fixed.chunk_size:
        return None
    if not fixed.identity.is_of_settings(begun.fixed.identity):
        return None
    done = Ledger(head, Plan(record.staged.distinct, fixed.chunk_size), fixed.identity.fingerprint)
    done.load()
    return done


def _take(done: Ledger, ledger: Ledger, first: StagedTable, table: StagedTable, on_wait: Callable[[], None]) -> None:
    files, apart, stretches = dict(done.chunk_files()), set(done.taken_apart()), read_stretches(done.layout)
    for chunk in range(min(done.plan.count, ledger.plan.count)):
        on_wait()
        start, stop = bounds = done.plan.bounds(chunk)
        if ledger.committed(chunk) or (chunk not in files and chunk not in apart):
            continue
        if ledger.plan.bounds(chunk) != bounds or first.texts(*bounds) != table.texts(*bounds):
            continue
        if done.facts is not None:  # else all its texts are bad
            ledger.fix_facts(done.facts)
            for each in stretches:
                if each.start < stop and start < each.stop:
                    within = max(start, each.start), min(stop, each.stop)
                    VersionNotes(ledger.layout, None).note(*within, done.facts.versions, each.versions)
        bad = [text for text in done.bad.values() if start <= text.text < stop]
        ledger.parts(chunk).take(done.parts(chunk), bad)
        digest = _digest_of(files[chunk], done, chunk) if chunk in files else None
        if digest is not None and done.facts is not None:
            ledger.commit(chunk, files[chunk], digest, done.facts)


def _digest_of(file: Path, done: Ledger, chunk: int) -> str | None:
    """Of a committed chunk; None where it is not what was committed."""
    try:
        digest = inspect(file).digest
    except (BadVectorsError, OSError):
        return None
    return digest if file.stem.endswith(f"-{chunk_key(done.fingerprint, *done.plan.bounds(chunk), digest)}") else None
