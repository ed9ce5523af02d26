"""Begins one output for a run: stages its source, and compares its identity with what the workdir has.

What an earlier run has fixed stays as it was, unless the run is asked to update it.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from chunkvisor.assemble.finished import keep_finished, lacks_rows_table
from chunkvisor.assemble.form import asked_form, place_of
from chunkvisor.config.model import Config
from chunkvisor.errors import Halt, config_error
from chunkvisor.events.event import Note, RunStarted, Staging, WorkerEnded
from chunkvisor.events.journal import Entry, read_with_trials
from chunkvisor.heart.output import texts_damaged
from chunkvisor.sources.child import stage_table
from chunkvisor.sources.fetch import is_remote, shown
from chunkvisor.sources.request import IngestRequest
from chunkvisor.sources.resolve import SourceFile, resolve, signature
from chunkvisor.sources.table import StagedTable
from chunkvisor.store.disk import not_ours
from chunkvisor.store.identity import (
    Fixed,
    Identity,
    Staged,
    StagedRecord,
    make_state,
    read_staged,
    write_fixed,
    write_staged,
)
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.store.records import DamagedError, digest_of
from chunkvisor.supervise.fixedbefore import begun_before, identity_for, refuse_changed, refuse_other_settings
from chunkvisor.supervise.opening import Begun, Opening
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
    rows = f"{counted(before.identity.rows, 'row')} before, {now.rows:,} now"
    words = f"{layout.name}: the source has changed: {rows}; this is generation {fixed.generation}"
    opening.emit(Note(words))
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
    opening.emit(Staging(layout.name))
    if note := opening.config.outputs[layout.name].template_note:
        opening.emit(Note(f"{layout.name}: {note}"))
    request = request_of(opening.config, layout.name, opening.max_rows)
    depends_on = asked(request)
    fresh = layout.fresh_table
    remove_folder(fresh)
    what = f"the source of {layout.name} is read"
    table = opening.means.until_done(lambda: stage_table(request, fresh, opening.on_wait), what, layout.state)
    if table.empty:
        words = f"{counted(table.empty, 'row')} of empty text, with one vector for all; `where` leaves them out"
        opening.emit(Note(f"{layout.name}: {words}"))
    rows = f"{counted(table.rows, 'row')}, {counted(table.distinct, 'distinct text')}"
    opening.emit(Note(f"{layout.name}: {rows}"))
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
        begun = _next_generation(opening, layout, fixed, identity, staged)
        prepared = _prepare_next(begun)
        fresh.rename(prepared.table)
        write_staged(prepared, record)
        return begun
    remove_folder(layout.table)
    fresh.rename(layout.table)
    write_staged(layout, record)
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


TARGET_S = 40.0
"""A chunk takes a worker about so long: a fault costs little, and a worker's start little of it."""

LEAST_TEXTS, MOST_TEXTS = 100, 50_000

_LEADING = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
"""Round sizes begin with these: neighbours are at most 1.5 apart, so that the nearest keeps within 30 to 60 s."""

_UNMEASURED = {"cpu": 500, "cuda": 3000}
"""By device: 12 texts/s, as of 0.1 billion parameters on a few cores; 70, as of 1.5 billion on a GPU."""


@dataclass(frozen=True, slots=True)
class ChunkSize:
    """A size, and why it is that."""

    texts: int
    reason: str


def propose(texts_per_s: float | None, device_kind: str) -> ChunkSize:
    """A round size for a worker of that rate; None = nothing was measured, then one that suits many such devices."""
    if texts_per_s is None:
        return ChunkSize(_UNMEASURED[device_kind], f"usual for {device_kind}; no rate of this model is known here yet")
    wanted = texts_per_s * TARGET_S
    steps = (round(leading * 10**power) for power in range(1, 6) for leading in _LEADING)
    sizes = [size for size in steps if LEAST_TEXTS <= size <= MOST_TEXTS]
    texts = min(sizes, key=lambda size: max(size, wanted) / min(size, wanted))
    rate = f"{texts_per_s:,.0f}" if texts_per_s >= 10 else f"{texts_per_s:.2g}"
    return ChunkSize(texts, f"at {rate} texts/s, {max(1, round(texts / texts_per_s)):,} s a chunk")


def worker_rate(entries: Iterable[Entry], model: str, device_kind: str, output: str) -> float | None:
    """Texts a second of one worker, from its `go` to its end.

    Measured by the last run of that model on that kind of device that had anything to measure; on texts of the output
    if there were any, else on those of all. None where no such run is told of.
    """
    ours, fresh = False, False
    sums: dict[str, tuple[int, float]] = {}
    for _, _, event in entries:
        if isinstance(event, RunStarted):
            kind = "cpu" if event.device == "cpu" else "cuda"
            ours, fresh = event.model == model and kind == device_kind, True
        elif ours and isinstance(event, WorkerEnded) and event.returncode == 0 and event.texts > 0 and event.busy_s > 0:
            if fresh:
                sums, fresh = {}, False
            texts, busy_s = sums.get(event.output, (0, 0.0))
            sums[event.output] = (texts + event.texts, busy_s + event.busy_s)
    counted = [sums[output]] if output in sums else list(sums.values())
    return sum(texts for texts, _ in counted) / sum(busy_s for _, busy_s in counted) if counted else None


def request_of(config: Config, name: str, max_rows: int | None) -> IngestRequest:
    """What the output wants of its source. Raises Halt (78) where a file of the workdir's state is among that."""
    output = config.outputs[name]
    here = [source for source in output.source if not is_remote(source)]
    _refuse_state(Layout(config.workdir), name, resolve(here))
    return IngestRequest(
        sources=output.source,
        column=output.column,
        template=output.template,
        sql=output.sql,
        skip_blank=output.skip_blank,
        where=output.where,
        columns=output.columns,
        max_rows=max_rows,
        memory_limit_bytes=int(config.ingest.memory_limit),
    )


def _refuse_state(layout: Layout, name: str, files: Sequence[SourceFile]) -> None:
    """A run would write into its own source, or read what it has written."""
    if found := next((file.path for file in files if layout.owns(file.path)), None):
        raise config_error(
            f"outputs.{name}.source: {found} is a file that chunkvisor keeps in the workdir for itself",
            remedy="choose another workdir, best an empty folder, or a pattern that does not match it",
        )


def asked(request: IngestRequest) -> dict[str, Any]:
    """What the staged table depends on, but for the contents of the files. Raises Halt where a file is gone."""
    values = asdict(replace(request, memory_limit_bytes=0))
    return {"request": digest_of(values), "signature": signature(resolve(request.sources))}


def staged_before(request: IngestRequest, layout: OutputLayout) -> Staged | None:
    """What an earlier run staged of the very same request and untouched files. Raises Halt where a file is gone."""
    try:
        record = read_staged(layout)
    except DamagedError:
        return None
    return record.staged if record is not None and record.asked == asked(request) else None
