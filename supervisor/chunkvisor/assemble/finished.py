"""What becomes of the final and the state of an earlier run: kept, made anew in another form, or followed by another.

A final file is removed only when another one is in its place.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chunkvisor.assemble.badrows import every_row
from chunkvisor.assemble.forms import Form, form_of, place_of
from chunkvisor.assemble.join import final_rows, write_form
from chunkvisor.assemble.manifest import (
    FILE_KEYS,
    damaged_sides,
    describe_files,
    find_rows_table,
    publish,
    ranges_of,
    read_finished,
    read_recorded,
    replaces_another,
    write_records,
    write_sides,
)
from chunkvisor.config.choices import FinalFormat
from chunkvisor.errors import config_error
from chunkvisor.events.event import Emit, Note
from chunkvisor.store.artifact import BadVectorsError
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.ledger import is_planned
from chunkvisor_worker.contract.files import make_folder, remove_folder, set_aside, sync_folder


def keep_finished(
    layout: OutputLayout, fingerprint: str, form: Form, emit: Emit, on_block: Callable[[], None]
) -> dict[str, Any] | None:
    """Return the manifest of the complete output, in that form; None if there is work to do.

    Final files that do not hold any more are then kept under another name. Calls `on_block` now and then; it may raise
    to stop. Raises OSError; Halt (78) if the form cannot be made of what is there.
    """
    if replaces_another(layout):
        return None
    manifest = read_finished(layout)
    if manifest is not None and manifest.get("fingerprint") == fingerprint:
        there, asked = form_of(manifest), form.of(manifest["rows"])
        if not there.is_exact and there.dtype is not asked.dtype:
            if not layout.chunks.exists():
                raise config_error(
                    f"output {layout.name} is complete in {there.dtype}, and {asked.dtype} cannot be made of that",
                    why="what is rounded cannot be made exact again, and the chunk files are not kept",
                    remedy=f"write dtype: {there.dtype}, or encode it again: --from-scratch (the file stays)",
                )
            follow_final(layout)
            return None
        try:
            if there != asked:
                emit(Note(f"{layout.name}: dividing its rows again, into {asked}"))
                manifest = _reformed(layout, manifest, asked, on_block)
            write_sides(layout, manifest)
        except BadVectorsError:
            pass  # it was damaged beneath the file system, which its stamp does not show
        else:
            return manifest
    recorded = read_recorded(layout)
    place = place_of(layout, form_of(recorded) if recorded is not None else form)
    if layout.done.exists() and (aside := set_aside(place)) is not None:
        emit(Note(f"{place} has changed since it was made; it is now {aside.name}"))
    layout.done.unlink(missing_ok=True)
    if not layout.manifest.is_file():
        set_aside(layout.manifest)
    layout.manifest.unlink(missing_ok=True)
    return None


def _reformed(
    layout: OutputLayout, manifest: dict[str, Any], form: Form, on_block: Callable[[], None]
) -> dict[str, Any]:
    """Make the other form of its rows. Raises BadVectorsError if they are not what was written."""
    before, rows, dimension = form_of(manifest), int(manifest["rows"]), int(manifest["dimension"])
    said = {name: value for name, value in manifest.items() if name not in FILE_KEYS}
    if before.format is FinalFormat.NPY and replace(form, carried=before.carried) == before:
        digests = [part["digest"].removeprefix("sha256:") for part in manifest.get("shards", [manifest])]
        said |= describe_files(layout, form, rows, digests, ranges_of(manifest))
        write_records(layout, said)  # the array itself stays as it is, next to other columns
        return said
    missing = sorted(each["row"] for each in every_row(layout, manifest))
    digests, ranges = write_form(
        layout, form, rows, dimension, lambda: final_rows(layout, manifest), missing, ranges_of(manifest), on_block
    )
    said |= describe_files(layout, form, rows, digests, ranges)
    publish(layout, said)
    return said


def lacks_rows_table(layout: OutputLayout, form: Form) -> bool:
    """Say whether the rows table that the form carries has to be staged again, because it is needed and is gone."""
    recorded = read_recorded(layout)
    if form.carried is None or (recorded is None and not layout.table.exists()):
        return False  # the whole table is staged again
    as_asked = recorded is not None and form_of(recorded) == form.of(recorded["rows"])
    if as_asked and not any(problem for _, problem in damaged_sides(layout, recorded or {})):
        return False
    return find_rows_table(layout, form.carried) is None


# --- generations


def begun(layout: OutputLayout) -> bool:
    """Say whether a run has begun the output, so that what stands under its name is ours."""
    return any(os.path.lexists(path) for path in (layout.identity, layout.done, layout.before))


def follow_final(layout: OutputLayout) -> None:
    """Have the final count as that of an earlier generation, which stays until another one is there.

    Raises OSError.
    """
    if layout.done.exists():
        for folder in (layout.before, layout.earlier.state):
            make_folder(folder)
        layout.done.replace(layout.earlier.done)
        for folder in (layout.earlier.state, layout.state):
            sync_folder(folder)


def finish_switch(layout: OutputLayout) -> None:
    """Go on where a run was killed that was about to begin the next generation. Raises OSError.

    Only what was whole counts; of what was still being prepared the old state knows nothing.
    """
    if is_planned(layout.next):
        switch(layout)
    remove_folder(layout.next.state)


def switch(layout: OutputLayout) -> None:
    """Begin the next generation, whose state is prepared; final files and manifest stay where they are.

    Each step may be done twice. Raises OSError.
    """
    state, prepared = layout.state, layout.next
    if not prepared.table.exists():
        layout.table.rename(prepared.table)
    if state.exists():
        make_folder(layout.before)  # and with it the name of the prepared state is on the disk
        # A state without a final file is of no use any more: what it had was copied.
        kept = layout.earlier.state if layout.done.exists() else layout.before / "since"
        remove_folder(kept)
        state.rename(kept)  # on the disk, too, before the next one can have its name
    # Not synced: where a power cut undoes it, the next run finds what was prepared, with all that was done in it since.
    prepared.state.rename(state)
    remove_folder(layout.before / "since")
