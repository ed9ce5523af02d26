"""ABSENT ──► STAGED: reads the source, and fixes the texts and the settings of an output.

Texts or settings that were changed on purpose (--update, --from-scratch) begin a new *generation*
of the output, in a separate folder; the final file of the last one stays until it is replaced.
"""

import contextlib
import itertools
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from chunkvisor.child import OnWait
from chunkvisor.config.load import LoadedConfig, RowChoice
from chunkvisor.errors import config_error
from chunkvisor.events.event import Emit, Note, Staging
from chunkvisor.outputs.forms import Manifest, asked_form, form_of
from chunkvisor.outputs.join import find_rows_table
from chunkvisor.outputs.state import OutputState, Stage, read
from chunkvisor.sources.child import request_of, stage_table
from chunkvisor.sources.resolve import IngestRequest, resolve, signature
from chunkvisor.sources.table import StagedTable
from chunkvisor.store.artifact import BadVectorsError, read_shape
from chunkvisor.store.chunkfiles import ChunkFiles, chunk_files
from chunkvisor.store.identity import Fixed, Identity, differences
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.records import DamagedError, digest_of, read_if_whole, write_record
from chunkvisor.store.reuse import plan_and_fingerprint, read_reuse
from chunkvisor.units import counted
from chunkvisor_worker.contract.files import make_folder, open_regular, remove_folder, sync
from chunkvisor_worker.contract.frozen import frozen

_MOST_TRIED = 10  # chunk files, to find out what an output is of


@frozen
class Wanted:
    """What a run asks of its outputs, and what opening them needs of the run."""

    loaded: LoadedConfig
    rows: RowChoice
    from_scratch: bool
    update: bool
    place: Path | None
    """Of the final file, if it is not to be in the workdir."""
    more: Manifest
    """What manifests say besides."""
    identity: Callable[[str, str, int], Identity]
    """(output, digest of its source, rows of its source) to its identity under this config."""
    chunk_size: Callable[[str], int]
    """Chooses the chunk size of a new output, by its name."""
    load_ahead: Callable[[], None]
    """Called before a source is read, to load in a thread what is needed after it."""
    emit: Emit
    on_wait: OnWait

    def emit_note(self, text: str) -> None:
        """Tell the person who watches the run."""
        self.emit(Note(text))


def stage(found: OutputState, wanted: Wanted) -> OutputState:
    """Stage the texts of the output, unless they are staged; other texts begin a new generation.

    They are put together in a folder that one rename makes the newest generation. If the run is
    killed before, the next one reads the source again; after it, the texts are kept. Raises Halt
    (78) if the source is wrong, or the config gives other vectors than before; OSError.
    """
    layout = found.layout
    name = layout.name
    before = None if wanted.from_scratch else found.fixed
    request = request_of(wanted.loaded.config, name, wanted.rows)
    if before:
        was = before.identity
        # A changed config is refused before minutes are spent on reading the source again.
        same = wanted.identity(name, was.source_digest, was.rows)
        _refuse_changed(layout, before, same, wanted)
        if same.fingerprint == was.fingerprint and _is_staged(found, before, request, wanted):
            return found
    staging = layout.at_generation(0)
    now = _read_source(staging, request, wanted)
    if found.stage is Stage.LOST and not wanted.from_scratch:
        before = _restored(found, now, wanted)
    if before:
        _refuse_changed(layout, before, now.identity, wanted)
        if before.identity.fingerprint == now.identity.fingerprint:  # of the same generation
            remove_folder(layout.table)
            staging.table.rename(layout.table)
            now = replace(now, chunk_size=before.chunk_size, anew=before.anew)
            write_record(layout.identity, now)
            return read(layout)
    generation = max(layout.generation, found.final_generation) + 1
    now = replace(now, chunk_size=wanted.chunk_size(name), anew=wanted.from_scratch)
    if generation > 1:
        rows = counted(now.identity.rows, "row")
        wanted.emit_note(f"{name}: rebuilding {rows}; an earlier file stays until this is complete")
    write_record(staging.identity, now)  # with it the name of the table is on the disk
    staging.state.rename(layout.at_generation(generation).state)
    sync(layout.home)
    return read(layout)


def _restored(found: OutputState, now: Fixed, wanted: Wanted) -> Fixed | None:
    """Return the lost record of the generation, if it is `now` but for its chunk size.

    That is shown by the manifest of its final file, or by the digest in the name of a chunk file.
    None if there is neither, and nothing that could be of something else. Raises Halt (78) if it
    is not shown; OSError.
    """
    layout = found.layout
    record = found.final_record
    is_done = found.final_generation == layout.generation
    if record and is_done and record.manifest["fingerprint"] == now.identity.fingerprint:
        return replace(now, chunk_size=wanted.chunk_size(layout.name))
    reuse = None
    with contextlib.suppress(DamagedError):
        reuse = read_reuse(layout)
    texts = reuse.encoded if reuse else now.distinct
    files = [*itertools.islice(chunk_files(layout), _MOST_TRIED)]
    for chunk, path in files:
        try:
            with open(path, "rb", opener=open_regular) as file:
                rows = read_shape(file).rows
        except BadVectorsError:
            continue
        # The last chunk may have fewer texts than the others, which have all before it.
        for size in (rows, (texts - rows) // max(1, chunk)):
            fixed = replace(now, chunk_size=size)
            plan, fingerprint = plan_and_fingerprint(reuse, fixed)
            if ChunkFiles(layout, plan, fingerprint).is_whole(chunk, path):
                return fixed
    if files or is_done:
        remove_folder(layout.at_generation(0).state)
        raise config_error(
            f"{layout.identity} is missing or damaged; it says what the files next to it belong to",
            "Restore the file, undo changes of the source and of the config, or add "
            "--from-scratch to discard what is done.",
            why="they were not made of the source and the config as they are now",
        )
    return None


def _is_staged(found: OutputState, before: Fixed, request: IngestRequest, wanted: Wanted) -> bool:
    """Say whether the texts of this request are staged, and whole as far as they are needed."""
    layout = found.layout
    if (before.asked, before.place) != (_request_record(request), _place_in(layout, wanted)):
        return False
    done = found.manifest
    form = asked_form(wanted.loaded.config.outputs[layout.name], before.carried)
    lacks_rows = form.carried and not find_rows_table(layout, form.carried)
    if lacks_rows and (form.has_rows_table or not done or form_of(done) != form):
        return False
    if done:
        return True
    try:
        if StagedTable.open(layout.table).digest == before.identity.source_digest:
            return True
    except DamagedError:
        pass
    wanted.emit_note(f"{layout.name}: the staged texts are damaged; reading the source again")
    return False


def _read_source(staging: OutputLayout, request: IngestRequest, wanted: Wanted) -> Fixed:
    """Read the source into `staging`, the folder of a generation that has no number yet."""
    name = staging.name
    remove_folder(staging.state)
    for folder in (staging.home.parent, staging.home):
        make_folder(folder)
    staging.state.mkdir(exist_ok=True)
    wanted.load_ahead()
    wanted.emit(Staging(name))
    asked = _request_record(request)
    table = stage_table(request, staging.table, wanted.on_wait)
    if table.empty:
        empty = f"{counted(table.empty, 'row')} of empty text, with one vector for all"
        wanted.emit_note(f"{name}: {empty}; `where` leaves them out")
    files = tuple(file.place for file in table.files)
    identity = wanted.identity(name, table.digest, table.rows)
    place = _place_in(staging, wanted)
    return Fixed(identity, 0, asked, table.distinct, files, table.carried, place)


def _place_in(layout: OutputLayout, wanted: Wanted) -> str | None:
    return os.path.relpath(wanted.place, layout.workdir) if wanted.place else None


def _refuse_changed(layout: OutputLayout, fixed: Fixed, now: Identity, wanted: Wanted) -> None:
    """Raise Halt (78) if the identity has changed.

    With --update only if the vectors that are there cannot be used for the new one.
    """
    serve = now.vector_fingerprint == fixed.identity.vector_fingerprint
    if fixed.identity.fingerprint == now.fingerprint or (serve and wanted.update):
        return
    remove_folder(layout.at_generation(0).state)
    changes = differences(fixed.identity, now)
    by_options = wanted.loaded.by_options
    what = f"output {layout.name} was begun with other settings"
    if all(change.startswith("source: ") for change in changes):
        what = f"the source of output {layout.name} has changed"
    elsewhere = "name another file by -o" if by_options else "choose another workdir"
    remedy = f"undo the change, or {elsewhere}, or discard what is done by adding --from-scratch."
    if serve and not by_options:
        remedy = f"add --update, which encodes only texts that have no vector yet, or {remedy}"
    raise config_error(
        "\n  ".join([f"{what}:", *changes]),
        remedy[0].upper() + remedy[1:],
        why="Vectors of both would be mixed in one file. Nothing has been touched.",
    )


def _request_record(request: IngestRequest) -> dict[str, Any]:
    """Return what the staged table depends on: the request, and sizes and times of its files.

    Raises Halt if a file is gone.
    """
    values = asdict(replace(request, memory_limit_bytes=0))
    return {"request": digest_of(values), "signature": signature(resolve(request.sources))}


def staged_before(request: IngestRequest, layout: OutputLayout) -> bool:
    """Say whether an earlier run staged the same request and untouched files.

    Raises Halt if a file is gone.
    """
    fixed = read_if_whole(Fixed, layout.identity)
    return fixed is not None and fixed.asked == _request_record(request)
