"""Opens one output for a run: stages its source, holds its identity against the state folder, reads what is done.

What an earlier run has fixed stays as it was.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunkvisor.assemble import badrows
from chunkvisor.assemble.badtexts import mend_records
from chunkvisor.assemble.before import drop_before
from chunkvisor.assemble.finalfiles import place_of
from chunkvisor.assemble.finalwriter import clear_partial
from chunkvisor.assemble.finished import keep_finished, lacks_rows_table
from chunkvisor.assemble.form import asked_form
from chunkvisor.assemble.join import Final, assemble
from chunkvisor.assemble.manifest import Origin, build_manifest, publish_manifest
from chunkvisor.assemble.sides import write_sides
from chunkvisor.assemble.versionshare import share_of_rows
from chunkvisor.config.load import LoadedConfig
from chunkvisor.config.model import Config, Strictness
from chunkvisor.config.specs import encode_spec, model_spec, resolve_limits
from chunkvisor.decide.chunksize import propose, worker_rate
from chunkvisor.engine.environment import thread_count
from chunkvisor.engine.modelsource import ModelSource
from chunkvisor.errors import Halt, config_error
from chunkvisor.events import output as of_output
from chunkvisor.events.event import Emit
from chunkvisor.events.journal import read_with_trials
from chunkvisor.events.run import Note
from chunkvisor.ingest.child import stage_table
from chunkvisor.ingest.table import StagedTable
from chunkvisor.store.attempt import Job
from chunkvisor.store.fixed import Fixed, Plan, Staged, StagedRecord, read_fixed, write_fixed, write_staged
from chunkvisor.store.identity import Identity, differences, identity_of
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.store.ledger import Ledger
from chunkvisor.store.seal import DamagedError
from chunkvisor.store.slices import Slice
from chunkvisor.store.versions import VersionNotes, read_stretches
from chunkvisor.supervise.diskwait import DiskWait
from chunkvisor.supervise.endings import texts_damaged
from chunkvisor.supervise.outputrun import OutputRun
from chunkvisor.supervise.staging import asked, request_of, staged_before
from chunkvisor.supervise.versionwatch import VersionWatch
from chunkvisor.units import counted
from chunkvisor_worker.contract.files import make_folder, remove_folder

_MAX_LINES = 100
"""For so many quarantined rows, the line of the source is looked up."""


@dataclass(slots=True)
class Opening:
    """What all outputs of a run have in common while they are opened."""

    loaded: LoadedConfig
    source: ModelSource
    device_kind: str
    run_id: str
    max_rows: int | None
    slice: Slice | None
    """None = all chunks are ours."""
    arithmetic: Mapping[str, str]
    """Variables of the workers that choose other arithmetic."""
    disk: DiskWait
    emit: Emit
    on_wait: Callable[[], None]
    """Called while a source is read; raises to stop."""

    @property
    def config(self) -> Config:
        """The validated config."""
        return self.loaded.config


def open_output(opening: Opening, layout: OutputLayout) -> OutputRun | dict[str, Any]:
    """The output, ready to run; or its manifest where it is complete already.

    Raises Halt where the source is wrong, or the config differs from what the state folder was begun with; OSError.
    """
    name, config = layout.name, opening.config
    fixed = _read_fixed(layout)
    if fixed is None:
        refuse_foreign(opening, layout)
    make_state(layout)
    staged = staged_before(request_of(config, name, opening.max_rows), layout)
    if fixed is not None and staged is None:
        # Refuse a changed config before minutes are spent on reading the source anew.
        as_before = _identity(opening, name, fixed.identity.source_digest, fixed.identity.rows)
        _refuse_changes(layout, fixed, as_before)
    if staged is None:
        staged = _stage(opening, layout, fixed)
    identity = _identity(opening, name, staged.digest, staged.rows)
    if fixed is not None:
        _refuse_changes(layout, fixed, identity)
    else:
        fixed = Fixed(identity, _chunk_size(opening, name))
        write_fixed(layout, fixed)
    fingerprint = identity.fingerprint
    form = asked_form(config.outputs[name], staged.carried)
    if lacks_rows_table(layout, form):
        staged = _stage(opening, layout, fixed)  # `clean` has removed the table
        form = asked_form(config.outputs[name], staged.carried)
    manifest = keep_finished(layout, fingerprint, form, opening.emit, opening.on_wait)
    if manifest is not None:
        drop_before(layout)
        if mended := mend_records(layout, manifest, fixed.chunk_size):
            opening.emit(Note(f"{name}: {counted(mended, 'lost record')} of texts without a vector written anew"))
        if not config.chunk.keep and layout.chunks.exists() and not manifest["quarantined"]:
            remove_folder(layout.chunks)
        return manifest
    clear_partial(layout)  # before space is counted: a killed join leaves its whole size reserved
    table = _open_table(opening, layout, fixed)
    if config.effective_chunk_size(name) not in ("auto", fixed.chunk_size):
        opening.emit(Note(f"{name}: keeps chunks of {fixed.chunk_size:,} texts, as its first run began"))
    ledger = Ledger(layout, Plan(staged.distinct, fixed.chunk_size), fingerprint, opening.slice)
    ledger.load()
    _tell_opened(opening, ledger, staged, fixed)
    job = _job(opening, name, fingerprint)
    finish = _finish(opening, ledger, table, job, staged)
    limits = resolve_limits(config.effective_encode(name), opening.device_kind, plugin=config.model.is_plugin)
    strict = config.identity is Strictness.STRICT
    versions = VersionWatch(name, VersionNotes(layout, opening.slice), opening.emit, strict=strict)
    return OutputRun(ledger, table, job, limits, finish, form, opening.source.local, versions)


def _tell_opened(opening: Opening, ledger: Ledger, staged: Staged, fixed: Fixed) -> None:
    told = of_output.OutputOpened(
        output=ledger.layout.name,
        # Of a slice they are those of its texts, about: a text may stand in several rows.
        rows=staged.rows * ledger.texts // staged.distinct,
        distinct=ledger.texts,
        chunks=len(ledger.share),
        chunk_size=fixed.chunk_size,
        chunks_done=ledger.chunks_done,
        texts_done=ledger.texts_done,
    )
    opening.emit(told)


def _finish(
    opening: Opening, ledger: Ledger, table: StagedTable, job: Job, staged: Staged
) -> Callable[[Callable[[], None]], dict[str, Any]]:
    """See `OutputRun.finish`."""
    layout, config = ledger.layout, opening.config
    form = asked_form(config.outputs[layout.name], staged.carried)
    origin = Origin(staged.rows, staged.distinct, staged.digest, list(staged.files))

    def finish(on_block: Callable[[], None]) -> dict[str, Any]:
        if opening.source.local is not None:
            opening.source.local.check()
        final = assemble(ledger, table, on_block, form)
        assert ledger.facts is not None
        bad = badrows.record(layout, _quarantined_rows(ledger, table, final))
        manifest = build_manifest(
            layout, form, ledger.fingerprint, final, ledger.facts, job.model, job.encode, origin, bad
        )
        if stretches := read_stretches(layout):
            shares = share_of_rows(stretches, ledger.facts.versions, table)
            manifest["versions_by_rows"] = [{"rows": rows, "versions": versions} for rows, versions in shares]
        write_sides(layout, manifest)
        publish_manifest(layout, manifest, final.stamps)
        drop_before(layout)
        # With rows in quarantine the chunks stay: `retry` has only the bad texts computed again.
        if not config.chunk.keep and not final.bad_rows:
            ledger.remove_chunks()
        return {"rows": origin.rows, "dimension": final.dimension, "path": str(place_of(layout, form))}

    return finish


def refuse_foreign(opening: Opening, layout: OutputLayout) -> None:
    """Raises Halt (78) where something that no run of this workdir has made bears the name of a final file of it."""
    for place in (place_of(layout, asked_form(opening.config.outputs[layout.name])), layout.manifest):
        if os.path.lexists(place):
            raise config_error(
                f"{place} is there already, and no run of this workdir has made it",
                remedy="move it away, or choose another workdir or another name for the output",
            )


def make_state(layout: OutputLayout) -> None:
    """Make the output's state folder where it is missing. Raises OSError."""
    for folder in (layout.state.parent, layout.state):
        make_folder(folder)


def _read_fixed(layout: OutputLayout) -> Fixed | None:
    try:
        fixed, problem = read_fixed(layout), "missing"
    except DamagedError:
        fixed, problem = None, "damaged"
    if fixed is None and (problem == "damaged" or layout.chunks.exists() or layout.done.exists()):
        raise config_error(
            f"{layout.identity} is {problem}, so it cannot be told what the files beside it belong to",
            remedy="restore the file, or begin this config anew by adding --from-scratch",
        )
    return fixed


def _chunk_size(opening: Opening, name: str) -> int:
    size, config = opening.config.effective_chunk_size(name), opening.config
    if size != "auto":
        return size
    events = read_with_trials(config.workdir, Layout(config.workdir).events)
    proposed = propose(worker_rate(events, config.model.name, opening.device_kind, name), opening.device_kind)
    opening.emit(Note(f"{name}: chunks of {proposed.texts:,} texts, {proposed.reason}"))
    return proposed.texts


def _refuse_changes(layout: OutputLayout, fixed: Fixed, now: Identity) -> None:
    if fixed.identity.fingerprint == now.fingerprint:
        return
    changes = differences(fixed.identity, now)
    raise config_error(
        f"output {layout.name} was begun with other settings:\n" + "\n".join(f"  {change}" for change in changes),
        why="vectors of both would be mixed in one file",
        remedy="undo the change, or choose another workdir, or discard what is done by adding --from-scratch",
    )


def _identity(opening: Opening, name: str, digest: str, rows: int) -> Identity:
    return identity_of(opening.config, name, opening.source.revision or "", digest, rows, opening.arithmetic)


def stage_fresh(opening: Opening, layout: OutputLayout) -> tuple[Path, StagedRecord]:
    """Read the source; returns the folder of the table, beside the one that is there, and its record.

    Raises Halt where the source is wrong, OSError.
    """
    opening.emit(of_output.Staging(layout.name))
    request = request_of(opening.config, layout.name, opening.max_rows)
    depends_on = asked(request)
    fresh = layout.table.with_name("table.new")
    remove_folder(fresh)
    what = f"the source of {layout.name} is read"
    table = opening.disk.until_done(lambda: stage_table(request, fresh, opening.on_wait), what, layout.state)
    files = tuple(str(file.path) for file in table.files)
    return fresh, StagedRecord(depends_on, Staged(table.rows, table.distinct, table.digest, files, table.carried))


def _stage(opening: Opening, layout: OutputLayout, fixed: Fixed | None) -> Staged:
    fresh, record = stage_fresh(opening, layout)
    staged = record.staged
    if fixed is not None:
        try:
            _refuse_changes(layout, fixed, _identity(opening, layout.name, staged.digest, staged.rows))
        except Halt:
            remove_folder(fresh)
            raise
    if opening.slice is not None and _is_there(layout, staged):
        remove_folder(fresh)  # another slice may be reading what is there, and it is the same
    else:
        remove_folder(layout.table)
        fresh.rename(layout.table)
    write_staged(layout, record)
    opening.emit(of_output.Staged(layout.name, staged.rows, staged.distinct))
    return staged


def _is_there(layout: OutputLayout, staged: Staged) -> bool:
    try:
        there = StagedTable.open(layout.table)
        return (there.digest, there.carried) == (staged.digest, staged.carried)
    except DamagedError:
        return False


def _open_table(opening: Opening, layout: OutputLayout, fixed: Fixed) -> StagedTable:
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


def _quarantined_rows(ledger: Ledger, table: StagedTable, final: Final) -> Iterator[dict[str, Any]]:
    for number, (row, text) in enumerate(final.bad_rows):
        bad = ledger.bad[text]
        # To find a line, the source is read up to it.
        place = table.place_of(row, with_line=number < _MAX_LINES)
        yield {"row": row, "outcome": str(bad.outcome), "reason": bad.reason, "place": place}


def _job(opening: Opening, name: str, fingerprint: str) -> Job:
    cores = len(os.sched_getaffinity(0)) // opening.config.workers.per_device
    wanted = opening.config.env.get("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS"))
    return Job(
        run_id=opening.run_id,
        fingerprint=fingerprint,
        output=name,
        model=model_spec(opening.config.model, opening.source.path, opening.source.revision),
        encode=encode_spec(opening.config.effective_encode(name)),
        import_path=(str(opening.loaded.folder),),
        threads=thread_count(wanted, opening.device_kind, cores),
    )
