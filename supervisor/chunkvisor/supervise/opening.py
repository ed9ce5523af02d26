"""Opens outputs for a run: stages the source, compares its identity with what the workdir has, and reads what is done.

What an earlier run has fixed stays as it was, unless the run is asked to update it, or to begin from scratch.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunkvisor.assemble.finished import begun, discard, finish_switch, keep_finished, lacks_rows_table
from chunkvisor.assemble.forms import asked_form, clear_partial, place_of
from chunkvisor.assemble.manifest import finish_publishing
from chunkvisor.config.load import Given
from chunkvisor.config.model import Config, encode_spec, model_spec, resolve_limits
from chunkvisor.engine.modelsource import ModelSource
from chunkvisor.engine.process import thread_count
from chunkvisor.errors import Halt, config_error
from chunkvisor.events.event import Note, OutputOpened, Staging
from chunkvisor.events.journal import read_with_trials
from chunkvisor.heart.output import OutputRun, texts_damaged
from chunkvisor.heart.run import Run
from chunkvisor.reuse import Planner
from chunkvisor.sources.child import stage_table
from chunkvisor.sources.table import StagedTable, fresh_of, rows_of
from chunkvisor.store.disk import not_ours
from chunkvisor.store.identity import (
    Fixed,
    Identity,
    Staged,
    StagedRecord,
    differences,
    identity_of,
    make_state,
    read_fixed,
)
from chunkvisor.store.layout import Layout, OutputLayout, anything_kept
from chunkvisor.store.ledger import Ledger, PlaceKind, read_reuse, work_with
from chunkvisor.store.records import DamagedError, write_record
from chunkvisor.supervise.finish import Finish
from chunkvisor.supervise.means import Means, Request
from chunkvisor.supervise.staging import asked, propose, request_of, staged_before, worker_rate
from chunkvisor.units import counted, listed
from chunkvisor_worker.contract.files import copy_atomic, make_folder, remove_folder
from chunkvisor_worker.contract.messages import Spec


@dataclass(frozen=True, slots=True)
class Opening:
    """What all outputs of a run have in common while they are opened."""

    request: Request
    run: Run
    means: Means
    source: ModelSource
    arithmetic: Mapping[str, str]
    """Variables of the workers that choose other arithmetic."""
    planner: Planner

    @property
    def config(self) -> Config:
        """The validated config."""
        return self.request.loaded.config

    @property
    def device_kind(self) -> str:
        """The kind of the run's devices."""
        return self.means.devices[0].kind


@dataclass(slots=True)
class Begun:
    """One output whose source is staged."""

    layout: OutputLayout
    fixed: Fixed
    """Of the next generation, if there is to be one."""
    staged: Staged
    manifest: dict[str, Any] | None = None
    """Of a complete one."""
    moves_on: bool = False
    """Its next generation is prepared in `layout.next`, but for the plan; its table is there only if it is another."""

    @property
    def name(self) -> str:
        """Name the output, as the config has it."""
        return self.layout.name

    @property
    def complete(self) -> bool:
        """Whether there is nothing to do."""
        return self.manifest is not None and not self.moves_on


def begin_output(opening: Opening, layout: OutputLayout) -> Begun:
    """Stage the source of one output, and find its final files if they are complete.

    Raises Halt if the source is wrong, or the config differs from what the state folder was begun with; OSError.
    """
    name, output = layout.name, opening.config.outputs[layout.name]
    fixed, fresh = begun_before(layout), None
    if fixed is None and not begun(layout):
        refuse_foreign(opening, layout)
    make_state(layout)
    # Of a run that was killed while it staged or planned: nothing rests on them yet.
    for leftover in layout.leftovers:
        remove_folder(leftover)
    staged = staged_before(request_of(opening.config, name, opening.request.max_rows), layout)
    if staged is not None and lacks_rows_table(layout, asked_form(output, staged.carried)):
        staged = None  # `clean` has removed the table of rows
    if staged is None:
        if fixed is not None:
            # Refuse a changed config before minutes are spent on reading the source anew.
            as_before = fixed.identity
            refuse_changed(opening, layout, fixed, _identity(opening, name, as_before.source_digest, as_before.rows))
        fresh, record = stage_fresh(opening, layout)
        staged = record.staged
    identity = _identity(opening, name, staged.digest, staged.rows)
    if fixed is not None:
        try:
            refuse_changed(opening, layout, fixed, identity)
        except Halt:
            if fresh is not None:
                remove_folder(fresh)
            raise
    if fixed is not None and fixed.identity.fingerprint != identity.fingerprint:
        next_one = Fixed(identity, _chunk_size(opening, layout), fixed.generation + 1)
        rows = f"{counted(fixed.identity.rows, 'row')} before, {identity.rows:,} now"
        opening.run.emit(Note(f"{name}: the source has changed: {rows}; this is generation {next_one.generation}"))
        made = Begun(layout, next_one, staged)
        if fresh is None:  # the same texts, made of the source in another way
            move_on(made)
        else:
            prepared = _prepare_next(made)
            fresh.rename(prepared.table)
            write_record(prepared.staged, record)
        return made
    if fresh is not None:
        _put_in_place(layout, fresh, record)
    if fixed is None:
        fixed = Fixed(identity, _chunk_size(opening, layout))
        write_record(layout.identity, fixed)
    form = asked_form(output, staged.carried)
    made = Begun(layout, fixed, staged)
    made.manifest = keep_finished(layout, identity.fingerprint, form, opening.run.emit, opening.means.on_wait)
    if made.manifest is not None and layout.again.exists():  # `retry` has asked for the bad texts
        if made.manifest["quarantined"]:
            move_on(made)
        else:
            layout.again.unlink()
    return made


def begin_anew(opening: Opening, layouts: Sequence[OutputLayout]) -> None:
    """Stage all sources, then remove what is there, but for the final file, which stays until another replaces it.

    Raises Halt, and then nothing has been removed; OSError.
    """
    for layout in layouts:
        if not begun(layout):
            refuse_foreign(opening, layout)
    read: list[tuple[OutputLayout, Path, StagedRecord]] = []
    try:
        for layout in layouts:
            make_state(layout)
            read.append((layout, *stage_fresh(opening, layout)))
    except BaseException:
        for _, fresh, _ in read:
            remove_folder(fresh)
        raise
    for layout, fresh, record in read:
        was_begun = begun(layout)
        discard(layout)
        _put_in_place(layout, fresh, record)
        if was_begun:
            opening.run.emit(Note(f"{layout.name}: a final file that is there stays until the new one replaces it"))


def move_on(made: Begun) -> None:
    """Have the output planned anew, over the same texts: its vectors count as those of an earlier generation.

    Raises OSError.
    """
    copy_atomic(made.layout.staged, _prepare_next(made).staged)


def _prepare_next(made: Begun) -> OutputLayout:
    """Make the folder of the output's next generation; what stands there is what it fixes. Raises OSError."""
    prepared = made.layout.next
    remove_folder(prepared.state)
    make_folder(prepared.state, durable=False)
    write_record(prepared.identity, made.fixed)
    made.moves_on = True
    return prepared


def _put_in_place(layout: OutputLayout, fresh: Path, record: StagedRecord) -> None:
    remove_folder(layout.table)
    fresh.rename(layout.table)
    write_record(layout.staged, record)


def stage_fresh(opening: Opening, layout: OutputLayout) -> tuple[Path, StagedRecord]:
    """Read the source; returns the folder of the table, next to the one that is there, and its record.

    Raises Halt if the source is wrong, OSError.
    """
    opening.means.load_ahead(opening.source)
    opening.run.emit(Staging(layout.name))
    if note := opening.config.outputs[layout.name].template_note:
        opening.run.emit(Note(f"{layout.name}: {note}"))
    request = request_of(opening.config, layout.name, opening.request.max_rows)
    depends_on, fresh = asked(request), layout.fresh_table
    remove_folder(fresh)
    what = f"the source of {layout.name} is read"
    table = opening.means.until_done(lambda: stage_table(request, fresh, opening.means.on_wait), what, layout.state)
    rows = f"{counted(table.rows, 'row')}, {counted(table.distinct, 'distinct text')}"
    opening.run.emit(Note(f"{layout.name}: {rows}"))
    if table.empty:
        words = f"{counted(table.empty, 'row')} of empty text, with one vector for all; `where` leaves them out"
        opening.run.emit(Note(f"{layout.name}: {words}"))
    files = tuple(file.place for file in table.files)
    return fresh, StagedRecord(depends_on, Staged(table.rows, table.distinct, table.digest, files, table.carried))


def _chunk_size(opening: Opening, layout: OutputLayout) -> int:
    """Choose how many texts a chunk has of an output that is begun now."""
    config, name = opening.config, layout.name
    size = config.effective_chunk_size(name)
    if size != "auto":
        return size
    events = read_with_trials(config.workdir, Layout(config.workdir).events)
    proposed = propose(worker_rate(events, config.model.name, opening.device_kind, name), opening.device_kind)
    opening.run.emit(Note(f"{name}: chunks of {proposed.texts:,} texts, {proposed.reason}"))
    return proposed.texts


def open_table(opening: Opening, layout: OutputLayout, fixed: Fixed) -> StagedTable:
    """Open the staged texts; read them anew if they are damaged. Raises as `begin_output`."""
    try:
        table = StagedTable.open(layout.table)
        if table.digest != fixed.identity.source_digest:
            raise DamagedError("they are those of another output, or of other settings")
        return table
    except DamagedError as error:
        opening.run.emit(Note(f"{layout.name}: the staged texts are damaged ({error}); reading the source again"))
        fresh, record = stage_fresh(opening, layout)
        try:
            refuse_changed(
                opening, layout, fixed, _identity(opening, layout.name, record.staged.digest, record.staged.rows)
            )
        except Halt:
            remove_folder(fresh)
            raise
        _put_in_place(layout, fresh, record)
    try:
        return StagedTable.open(layout.table)
    except DamagedError as error:
        raise texts_damaged(error) from error


# --- what an earlier run has fixed


def begun_before(layout: OutputLayout) -> Fixed | None:
    """Read what an earlier run has fixed, once what a killed one has begun is finished. Raises Halt, OSError."""
    finish_switch(layout)
    finish_publishing(layout)
    try:
        fixed, problem = read_fixed(layout), "missing"
    except DamagedError:
        fixed, problem = None, "damaged"
    if fixed is None and (problem == "damaged" or layout.chunks.exists() or layout.done.exists()):
        raise config_error(
            f"{layout.identity} is {problem}, so it is not known what the files next to it belong to",
            remedy="restore the file, or start this config over by adding --from-scratch",
        )
    return fixed


def refuse_foreign(opening: Opening, layout: OutputLayout) -> None:
    """Raise Halt (78) if what no run of this workdir has made has the name of a final file of it."""
    for place in (place_of(layout, asked_form(opening.config.outputs[layout.name])), layout.manifest):
        if os.path.lexists(place):
            raise not_ours(place, "choose another workdir or another name for the output")


def _identity(opening: Opening, name: str, digest: str, rows: int) -> Identity:
    """Compute the identity that the config asks for, of a source of so many rows."""
    revision = opening.source.revision or ""
    return identity_of(opening.config, name, revision, digest, rows, opening.arithmetic)


def refuse_changed(opening: Opening, layout: OutputLayout, fixed: Fixed, now: Identity) -> None:
    """Raise Halt (78) if the identity is another one; with --update, if vectors that are there do not serve."""
    if fixed.identity.fingerprint == now.fingerprint:
        return
    serve = now.of_vectors == fixed.identity.of_vectors
    if serve and opening.request.update:
        return
    halt = refuse_changes(layout.name, differences(fixed.identity, now), opening.request.loaded.given, serve=serve)
    if not anything_kept(Layout(layout.workdir)):
        # As after a model that was refused, when the config was corrected as the message said.
        halt.why = "no text has a vector yet, so nothing is lost by a new beginning"
        halt.remedy = "add --from-scratch, or undo the change"
    raise halt


GROWING = "if the source grows, write a config and use `chunkvisor run --update`, which encodes only what is new"
"""What to do instead of `chunkvisor encode`."""

_ELSEWHERE = {
    Given.FILE: "choose another workdir",
    Given.OPTIONS: "name another file by -o (or another --workdir, if you gave one)",
    Given.ARGUMENTS: "choose another workdir",
}


def refuse_changes(output: str, changes: Sequence[str], given: Given, *, serve: bool) -> Halt:
    """End a run (78) whose output was begun with other settings, or from another source.

    `changes` has a line for each difference. `serve`: the vectors that are there would serve an update.
    """
    python = given is Given.ARGUMENTS
    begun_words = "the vectors in this workdir were made" if python else f"output {output} was begun"
    what, undo = f"{begun_words} with other settings", "undo the change"
    if of_source := all(change.startswith("source: ") for change in changes):
        what, undo = f"the source of output {output} has changed since it was begun", "restore the source"
        if python:
            what, undo = "the vectors in this workdir were made from other texts", "give the texts of before"
    remedy = f"{undo}, or {_ELSEWHERE[given]}, or discard what is done by adding --from-scratch"
    if serve and given is not Given.OPTIONS:
        remedy = f"add --update, which encodes only texts that have no vector yet, or {remedy}"
    elif of_source and given is Given.OPTIONS:
        remedy += f"; {GROWING}"
    return config_error(
        f"{what}:\n" + "\n".join(f"  {change}" for change in changes),
        why="vectors of both would be mixed in one file; nothing has been touched",
        remedy=remedy,
    )


# --- ready to run


def open_output(opening: Opening, made: Begun) -> OutputRun | dict[str, Any]:
    """Open an output whose texts to encode are settled, or give its manifest if it is complete.

    Raises as `begin_output`.
    """
    layout, config, name = made.layout, opening.config, made.name
    if made.complete:
        assert made.manifest is not None
        _tidy_complete(opening, made, made.manifest)
        return made.manifest
    fixed, staged = made.fixed, made.staged
    clear_partial(layout)  # before space is counted: a killed join leaves its whole size reserved
    table = open_table(opening, layout, fixed)
    if config.effective_chunk_size(name) not in ("auto", fixed.chunk_size):
        opening.run.emit(Note(f"{name}: keeps chunks of {fixed.chunk_size:,} texts, as its first run began"))
    reuse = read_reuse(layout)
    ledger = Ledger(layout, *work_with(reuse, fixed, staged))
    ledger.load()
    fresh, taken = fresh_of(table, reuse), reuse.taken if reuse is not None else 0
    # Places from which nothing is taken after all are not worth a word.
    used = [each for each in reuse.places if each.texts] if reuse is not None else []
    if reuse is not None:
        source = listed([each.words for each in used], 3)
        have = f"{taken:,} of {counted(reuse.texts, 'text')} already have a vector, from {source}"
        opening.run.emit(Note(f"{name}: {have}; {reuse.encoded:,} left to encode"))
    saved = ledger.saved()  # finds the chunks of which parts are known, and with them their bad texts
    opening.run.emit(
        OutputOpened(
            output=name,
            rows=staged.rows,
            distinct=ledger.plan.distinct + taken,
            chunks=ledger.plan.count,
            chunk_size=fixed.chunk_size,
            chunks_done=ledger.chunks_done,
            texts_done=ledger.texts_done + taken,
            texts_saved=sum(saved.values()),
            quarantined=sum(rows_of(fresh, [bad.text for bad in ledger.bad_texts()]).values()),
        )
    )
    encode, plugin = config.effective_encode(name), config.model.is_plugin
    threads = config.env.get("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS"))
    job = Spec(
        run_id=opening.run.run_id,
        fingerprint=ledger.fingerprint,
        output=name,
        chunk=0,
        attempt=0,
        start=0,
        stop=0,
        texts_digest="",
        device=opening.device_kind,
        model=model_spec(config.model, opening.source.path, opening.source.revision),
        encode=encode_spec(encode),
        import_path=(str(opening.request.loaded.folder),),
        threads=thread_count(threads, opening.device_kind, len(os.sched_getaffinity(0)) // config.workers.per_device),
    )
    return OutputRun(
        ledger,
        fresh,
        job,
        resolve_limits(encode, opening.device_kind, plugin=plugin),
        Finish(opening, made, ledger, table, reuse, job),
        asked_form(config.outputs[name], staged.carried),
        opening.source.local,
        rows=staged.rows,
        taken=taken,
        awaits=frozenset(each.output for each in used if each.kind is PlaceKind.OUTPUT),
    )


def _tidy_complete(opening: Opening, made: Begun, manifest: dict[str, Any]) -> None:
    """Remove what a complete output needs no longer."""
    layout = made.layout
    remove_folder(layout.before)
    clear_partial(layout)  # of a join that was tried again after its final stood, in vain: the disk failed
    if not opening.config.chunk.keep and layout.chunks.exists() and not manifest["quarantined"]:
        remove_folder(layout.chunks)
