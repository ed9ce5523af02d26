"""Opens what an output takes over, when it is joined: the final files by then, and what was copied."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from chunkvisor.assemble.badrows import every_row
from chunkvisor.assemble.forms import form_of
from chunkvisor.assemble.manifest import earlier_holds, read_finished, read_recorded
from chunkvisor.assemble.reader import FinalRows, RowReader, Scratch, Taken, TakenDamagedError, copied_rows
from chunkvisor.store.identity import BadText, read_facts
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.store.ledger import Ledger
from chunkvisor.store.records import DamagedError
from chunkvisor.store.reuse import Place, PlaceKind, Reuse
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Facts

_TEXTS_AT_ONCE = 1 << 18


def taken_of(layout: OutputLayout, reuse: Reuse, ledger: Ledger, on_block: Callable[[], None]) -> Taken:
    """What is taken over. Fixes the facts of the output, where nothing of it was encoded.

    Raises TakenDamagedError where something is not what it was, OSError, Halt.
    """
    readers, without = list[RowReader](), dict[int, BadText]()
    for number, place in enumerate(reuse.places):
        if not place.texts:
            readers.append(_Nothing())
            continue
        reader, rows = _reader_of(layout, reuse, place, on_block)
        readers.append(reader)
        if rows:
            without |= _texts_without(reuse, number, rows, on_block)
        if ledger.facts is None:
            facts = read_facts(Layout(layout.workdir).output(place.output))
            facts = facts or Facts(reader.dimension, versions=place.versions)
            ledger.fix_facts(replace(facts, dimension=reader.dimension))
        if ledger.facts is not None and reader.dimension != ledger.facts.dimension:
            raise TakenDamagedError(f"{place.words} has vectors of {reader.dimension} numbers")
    return Taken(reuse, readers, without)


class _Nothing:
    """Of a place that has, after all, no text that another one has not."""

    dimension = 0

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Nothing is read."""
        raise ValueError(rows)


def _reader_of(
    layout: OutputLayout, reuse: Reuse, place: Place, on_block: Callable[[], None]
) -> tuple[RowReader, dict[int, BadText]]:
    """The reader, and its rows without a vector."""
    if place.kind is PlaceKind.COPY:
        if (copied := copied_rows(reuse.folder)) is None:
            raise TakenDamagedError(f"{reuse.folder} is damaged")
        return copied, {}
    if place.kind is PlaceKind.EARLIER:
        manifest = read_recorded(layout.earlier) if earlier_holds(layout, place.final_digest) else None
        source = layout.earlier
    else:
        source = Layout(layout.workdir).output(place.output)
        manifest = read_finished(source)
    if manifest is None:
        raise TakenDamagedError(f"{place.words} is damaged, or not there")
    if not form_of(manifest).is_exact:
        raise TakenDamagedError(f"{place.words} is not in float32 any more")
    try:
        bad = {
            int(each["row"]): BadText(0, Outcome(each["outcome"]), f"{each['reason']} (in {place.words})")
            for each in every_row(source, manifest)
        }
        rows = FinalRows(source, manifest, Scratch(layout.workdir, on_block))
    except DamagedError as error:
        raise TakenDamagedError(f"{error} is damaged") from error
    return rows, bad


def _texts_without(
    reuse: Reuse, number: int, rows: dict[int, BadText], on_block: Callable[[], None]
) -> dict[int, BadText]:
    """The texts that would be taken from these rows, by number."""
    found, wanted = dict[int, BadText](), np.fromiter(rows, dtype=np.int64)
    for start in range(0, reuse.texts, _TEXTS_AT_ONCE):
        where = reuse.where(start, min(start + _TEXTS_AT_ONCE, reuse.texts))
        for at in np.flatnonzero((where["place"] == number) & np.isin(where["row"], wanted)).tolist():
            bad = rows[int(where["row"][at])]
            found[start + at] = BadText(start + at, bad.outcome, bad.reason)
        on_block()
    return found
