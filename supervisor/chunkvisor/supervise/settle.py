"""Settles which texts of an output are encoded: by the plan of an earlier run where that still holds, or by a new one.

A new plan over chunks that are committed already is a next generation: their vectors are taken over like others.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from chunkvisor.assemble.finished import switch
from chunkvisor.assemble.forms import form_of
from chunkvisor.assemble.manifest import earlier_holds, read_finished, read_recorded
from chunkvisor.events.event import Note
from chunkvisor.reuse import (
    Offer,
    gives_vectors,
    of_chunks,
    of_final,
    of_other_workdirs,
    promised,
)
from chunkvisor.sources.table import StagedTable, TableFiles
from chunkvisor.store.identity import read_fixed, write_facts
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.store.ledger import Place, PlaceKind, Reuse, is_planned, read_reuse
from chunkvisor.store.records import DamagedError
from chunkvisor.supervise.opening import Begun, Opening, move_on, open_table
from chunkvisor_worker.contract.files import remove_folder


def settle(opening: Opening, begun: Begun, outputs: Sequence[Begun]) -> None:
    """See above. `outputs` are all of the run, in the order in which they are encoded. Raises Halt, OSError."""
    layout = begun.layout
    if not begun.moves_on and is_planned(layout):
        problem = _problem_of(opening, begun, outputs)
        if problem is None:
            return
        opening.run.emit(Note(f"{begun.name}: {problem}; its texts are looked up again"))
        if not is_planned(layout):
            return
        move_on(begun)
    elif not begun.moves_on and (layout.chunks.exists() or not opening.config.reuse):
        return  # begun by a run that encodes everything
    target = layout.next if begun.moves_on else layout
    # One that was moved on over the same texts has its table where it was; `clean` may have removed it.
    other_texts = begun.moves_on and target.table.exists()
    table = StagedTable.open(target.table) if other_texts else open_table(opening, layout, begun.fixed)
    found = list[Offer]()
    if opening.config.reuse and TableFiles(table.folder).holds_index():
        found = list(_candidates(opening, begun, outputs, opening.config.workdir))
        _tell_rounded(opening, begun, found)
    elif opening.config.reuse:
        opening.run.emit(
            Note(f"{begun.name}: the index of its texts is missing or damaged, so no vector is taken over")
        )
    facts = opening.planner.plan(begun.name, target.reuse, table, found, needed=begun.moves_on)
    if facts is not None:
        write_facts(target, facts)
    if begun.moves_on:
        switch(layout)
        begun.moves_on, begun.manifest = False, None


def _tell_rounded(opening: Opening, begun: Begun, found: Sequence[Offer]) -> None:
    """Say why an update encodes all texts of an output again, where that is so."""
    manifest = read_recorded(begun.layout) if begun.moves_on else None
    if manifest is None or form_of(manifest).is_exact or any(each.place.output == begun.name for each in found):
        return
    dtype = form_of(manifest).dtype
    words = f"{begun.name}: no vector can be taken from its final file, which is rounded ({dtype})"
    opening.run.emit(Note(f"{words}; with chunk.keep: true, updates encode only new texts"))


def _problem_of(opening: Opening, begun: Begun, outputs: Sequence[Begun]) -> str | None:
    """Why the plan does not hold any more, in words. Of a damaged one, nothing is left afterwards. Raises OSError."""
    layout = begun.layout
    try:
        reuse = read_reuse(layout)
    except DamagedError as error:
        for folder in (layout.chunks, layout.parts, layout.quarantine, layout.attempts, layout.reuse):
            remove_folder(folder)
        return f"its plan is damaged ({error})"
    for place in reuse.places if reuse is not None else ():
        if place.texts and not _holds(opening, begun, place, outputs):
            return f"{place.words} has changed"
    return None


def _holds(opening: Opening, begun: Begun, place: Place, outputs: Sequence[Begun]) -> bool:
    layout = begun.layout
    if place.kind is PlaceKind.EARLIER:
        return earlier_holds(layout, place.final_digest)
    if place.kind is PlaceKind.COPY:
        return True
    other = Layout(layout.workdir).output(place.output)
    of_run = next((each for each in outputs if each.name == place.output), None)
    try:
        there = of_run.fixed if of_run is not None else read_fixed(other)
    except DamagedError:
        return False
    if there is None or there.identity.source_digest != place.source_digest:
        return False
    if begun.fixed.identity.of_vectors != there.identity.of_vectors:
        return False
    if of_run is not None:
        return not of_run.moves_on and gives_vectors(opening.config, of_run.name)
    manifest = read_finished(other)
    return manifest is not None and form_of(manifest).is_exact


def _candidates(opening: Opening, begun: Begun, outputs: Sequence[Begun], scratch: Path) -> Iterator[Offer]:
    """In the order in which they are preferred: what need not be copied comes first."""
    layout, wanted = begun.layout, begun.fixed.identity
    own_is_final = begun.moves_on and layout.done.exists()
    own = of_final(
        layout if own_is_final else layout.earlier, wanted, PlaceKind.EARLIER, "its earlier final file", scratch
    )
    if own is not None:
        yield own
    late: list[Offer] = []
    for name in _names(opening, layout, outputs):
        other = Layout(layout.workdir).output(name)
        of_run = next((each for each in outputs if each.name == name), None)
        words = f"output {name}"
        if of_run is None or of_run.complete:
            if of_run is not None or not opening.request.from_scratch:
                yield from filter(None, [of_final(other, wanted, PlaceKind.OUTPUT, words, scratch)])
            continue
        before = other if of_run.moves_on and other.done.exists() else other.earlier
        words = f"the earlier final file of {words}"
        late += filter(None, [of_final(before, wanted, PlaceKind.COPY, words, scratch)])
        earlier = outputs.index(of_run) < outputs.index(begun) and layout.name not in _awaited(other)
        if earlier and gives_vectors(opening.config, name):
            yield from filter(None, [promised(of_run.layout, of_run.fixed, wanted)])
    if begun.moves_on and (own is None or not own_is_final):  # the final may be in a form that is rounded
        yield from filter(None, [of_chunks(layout, wanted)])
    yield from late
    yield from of_other_workdirs(opening.config.reuse_from, wanted, scratch)


def _names(opening: Opening, layout: OutputLayout, outputs: Sequence[Begun]) -> list[str]:
    """Of the other outputs: those of the run in its order, then what else the workdir has."""
    ours = [each.name for each in outputs]
    others = [path.name for path in sorted(Layout(opening.config.workdir).outputs.glob("*/"))]
    return [name for name in dict.fromkeys([*ours, *others]) if name != layout.name]


def _awaited(layout: OutputLayout) -> set[str]:
    """The outputs whose final files the output waits for, and those that they wait for."""
    found, open_ = set[str](), [layout]
    while open_:
        try:
            reuse: Reuse | None = read_reuse(open_.pop())
        except DamagedError:
            continue
        names = {each.output for each in (reuse.places if reuse else ()) if each.kind is PlaceKind.OUTPUT}
        open_ += [Layout(layout.workdir).output(name) for name in names - found]
        found |= names
    return found
