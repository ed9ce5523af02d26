"""Begins one output for a run: stages its source, and holds its identity against the state folder.

What an earlier run has fixed stays as it was, unless the run is told to update it.
"""

import os
from pathlib import Path

from chunkvisor.assemble.finished import keep_finished, lacks_rows_table
from chunkvisor.assemble.form import asked_form, place_of
from chunkvisor.decide.chunksize import propose, worker_rate
from chunkvisor.errors import Halt
from chunkvisor.events import output as of_output
from chunkvisor.events.journal import read_with_trials
from chunkvisor.events.run import Note
from chunkvisor.heart.output import texts_damaged
from chunkvisor.sources.child import stage_table
from chunkvisor.sources.fetch import shown
from chunkvisor.sources.table import StagedTable
from chunkvisor.store.disk import not_ours
from chunkvisor.store.identity import Fixed, Identity, Staged, StagedRecord, make_state, write_fixed, write_staged
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.store.records import DamagedError
from chunkvisor.supervise.fixedbefore import begun_before, identity_for, refuse_changed, refuse_other_settings
from chunkvisor.supervise.opening import Begun, Opening
from chunkvisor.supervise.staging import asked, request_of, staged_before
from chunkvisor.units import counted
from chunkvisor_worker.contract.files import copy_atomic, make_folder, remove_folder


def begin_output(opening: Opening, layout: OutputLayout) -> Begun:
    """The output with its source staged, and its final files if they are complete.

    Raises Halt where the source is wrong, or the config differs from what the state folder was begun with; OSError.
    """
    name, config = layout.name, opening.config
    fixed = begun_before(layout)
    staged = _staged_before(opening, layout, fixed)
    if fixed is not None and staged is None:
        # Refuse a changed config before minutes are spent on reading the source anew.
        refuse_other_settings(opening, layout, fixed)
    if staged is None:
        read = _stage(opening, layout, fixed)
        if isinstance(read, Begun):
            return read
        staged = read
    identity = identity_for(opening, name, staged.digest, staged.rows)
    if fixed is not None:
        refuse_changed(opening, layout, fixed, identity)
    else:
        fixed = Fixed(identity, _chunk_size(opening, layout))
        write_fixed(layout, fixed)
    form = asked_form(config.outputs[name], staged.carried)
    if lacks_rows_table(layout, form):  # `clean` has removed it
        read = _stage(opening, layout, fixed)
        if isinstance(read, Begun):
            return read
        staged = read
        form = asked_form(config.outputs[name], staged.carried)
    if fixed.identity.fingerprint != identity.fingerprint:  # the same texts, made of the source in another way
        begun = _next_generation(opening, layout, fixed, identity, staged)
        move_on(begun)
        return begun
    manifest = keep_finished(layout, identity.fingerprint, form, opening.emit, opening.on_wait)
    begun = Begun(layout, fixed, staged, manifest)
    if manifest is not None and layout.again.exists():
        if manifest["quarantined"]:
            move_on(begun)
        else:
            layout.again.unlink()
    return begun


def _staged_before(opening: Opening, layout: OutputLayout, fixed: Fixed | None) -> Staged | None:
    if fixed is None:
        refuse_foreign(opening, layout)
    make_state(layout)
    for leftover in layout.leftovers:
        remove_folder(leftover)
    return staged_before(request_of(opening.config, layout.name, opening.max_rows), layout)


def move_on(begun: Begun) -> None:
    """Have the output planned anew, over the same texts: its vectors count as those of an earlier generation.

    Raises OSError.
    """
    copy_atomic(begun.layout.staged, _prepare_next(begun).staged)


def _next_generation(opening: Opening, layout: OutputLayout, before: Fixed, now: Identity, staged: Staged) -> Begun:
    fixed = Fixed(now, _chunk_size(opening, layout), before.generation + 1)
    opening.emit(of_output.GenerationBegun(layout.name, fixed.generation, before.identity.rows, now.rows))
    return Begun(layout, fixed, staged)


def _prepare_next(begun: Begun) -> OutputLayout:
    """Where the next generation of the output is prepared; what stands there is what it fixes. Raises OSError."""
    prepared = begun.layout.next
    remove_folder(prepared.state)
    make_folder(prepared.state, durable=False)
    write_fixed(prepared, begun.fixed)
    begun.moves_on = True
    return prepared


def refuse_foreign(opening: Opening, layout: OutputLayout) -> None:
    """Raises Halt (78) where something that no run of this workdir has made bears the name of a final file of it."""
    for place in (place_of(layout, asked_form(opening.config.outputs[layout.name])), layout.manifest):
        if os.path.lexists(place):
            raise not_ours(place, "choose another workdir or another name for the output")


def _chunk_size(opening: Opening, layout: OutputLayout) -> int:
    """Texts in a chunk of an output that is begun now."""
    config, name = opening.config, layout.name
    size = config.effective_chunk_size(name)
    if size != "auto":
        return size
    events = read_with_trials(config.workdir, Layout(config.workdir).events)
    proposed = propose(worker_rate(events, config.model.name, opening.device_kind, name), opening.device_kind)
    opening.emit(Note(f"{name}: chunks of {proposed.texts:,} texts, {proposed.reason}"))
    return proposed.texts


def stage_fresh(opening: Opening, layout: OutputLayout) -> tuple[Path, StagedRecord]:
    """Read the source; returns the folder of the table, beside the one that is there, and its record.

    Raises Halt where the source is wrong, OSError.
    """
    opening.load_ahead()
    opening.emit(of_output.Staging(layout.name))
    if note := opening.config.outputs[layout.name].template_note:
        opening.emit(Note(f"{layout.name}: {note}"))
    request = request_of(opening.config, layout.name, opening.max_rows)
    depends_on = asked(request)
    fresh = layout.fresh_table
    remove_folder(fresh)
    what = f"the source of {layout.name} is read"
    table = opening.disk.until_done(lambda: stage_table(request, fresh, opening.on_wait), what, layout.state)
    if table.empty:
        words = f"{counted(table.empty, 'row')} of empty text, with one vector for all; `where` leaves them out"
        opening.emit(Note(f"{layout.name}: {words}"))
    files = tuple(shown(file.path) for file in table.files)
    return fresh, StagedRecord(depends_on, Staged(table.rows, table.distinct, table.digest, files, table.carried))


def _stage(opening: Opening, layout: OutputLayout, fixed: Fixed | None) -> Staged | Begun:
    """Read the source; returns the next generation of the output where it is to have one."""
    fresh, record = stage_fresh(opening, layout)
    staged = record.staged
    identity = identity_for(opening, layout.name, staged.digest, staged.rows)
    if fixed is not None:
        try:
            refuse_changed(opening, layout, fixed, identity)
        except Halt:
            remove_folder(fresh)
            raise
    if fixed is not None and fixed.identity.fingerprint != identity.fingerprint:
        opening.emit(of_output.Staged(layout.name, staged.rows, staged.distinct))
        begun = _next_generation(opening, layout, fixed, identity, staged)
        prepared = _prepare_next(begun)
        fresh.rename(prepared.table)
        write_staged(prepared, record)
        return begun
    remove_folder(layout.table)
    fresh.rename(layout.table)
    write_staged(layout, record)
    opening.emit(of_output.Staged(layout.name, staged.rows, staged.distinct))
    return staged


def open_table(opening: Opening, layout: OutputLayout, fixed: Fixed) -> StagedTable:
    """The staged texts; read anew where they are damaged. Raises as `begin_output`."""
    try:
        table = StagedTable.open(layout.table)
        if table.digest != fixed.identity.source_digest:
            raise DamagedError("they are those of another output, or of other settings")
        return table
    except DamagedError as error:
        opening.emit(Note(f"{layout.name}: the staged texts are damaged ({error}); reading the source again"))
        _stage(opening, layout, fixed)
    try:
        return StagedTable.open(layout.table)
    except DamagedError as error:
        raise texts_damaged(error) from error
