"""What becomes of the final files of an earlier run: kept, made anew where another form is asked for, or set aside.

A final file is removed only when another one with the same rows is in its place.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chunkvisor.assemble import badrows
from chunkvisor.assemble.before import drop_earlier_sides
from chunkvisor.assemble.forms import Form, all_places, form_of, is_ours, place_of, remove_final, strays
from chunkvisor.assemble.join import FILE_KEYS, describe_files
from chunkvisor.assemble.manifest import (
    publish_manifest,
    read_finished,
    read_recorded,
    recorded_parts,
    replaces_another,
)
from chunkvisor.assemble.sides import damaged_sides, find_rows_table, ranges_of, remove_sides, side_files, write_sides
from chunkvisor.assemble.writer import Source, clear_partial, reform, remove_replaced, rows_of_parts
from chunkvisor.config.choices import FinalFormat
from chunkvisor.errors import config_error
from chunkvisor.events.event import Emit, Note
from chunkvisor.store.artifact import BadVectorsError
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.ledger import PlaceKind, ledger_of, read_reuse
from chunkvisor.store.records import stamp_as
from chunkvisor_worker.contract.files import set_aside


def keep_finished(
    layout: OutputLayout, fingerprint: str, form: Form, emit: Emit, on_block: Callable[[], None]
) -> dict[str, Any] | None:
    """The manifest of the complete output, in that form; None where there is work to do.

    Final files that do not hold any more are then kept under another name. Calls `on_block` now and then; it may raise
    to stop. Raises OSError; Halt (78) where the form cannot be made of what is there.
    """
    _finish_reforming(layout)
    if replaces_another(layout):
        return None
    manifest = read_finished(layout)
    if manifest is not None and manifest.get("fingerprint") == fingerprint:
        as_asked = form.of(manifest["rows"])
        if form_of(manifest) != as_asked:
            if not form_of(manifest).can_become(as_asked):
                _forget_rounded(layout, manifest, as_asked)
                return None
            emit(Note(f"{layout.name}: dividing its rows again, into {as_asked}"))
            try:
                manifest = _reform_finished(layout, manifest, as_asked, on_block)
            except BadVectorsError:
                manifest = None  # it was damaged beneath the file system, which its stamp does not show
        if manifest is not None:
            drop_earlier_sides(layout)
            write_sides(layout, manifest)
            _set_strays_aside(layout, manifest, emit)
            return manifest
    _set_damaged_aside(layout, form, emit)
    return None


def lacks_rows_table(layout: OutputLayout, form: Form) -> bool:
    """Whether the rows table that the form carries has to be staged again, because it is needed and is gone."""
    recorded = read_recorded(layout)
    if form.carried is None or (recorded is None and not layout.table.exists()):
        return False  # the whole table is staged again
    whole = recorded is not None and form_of(recorded) == form.of(recorded["rows"])
    if whole and recorded is not None and not any(problem for _, problem in damaged_sides(layout, recorded)):
        return False
    return find_rows_table(layout, form.carried) is None


def _forget_rounded(layout: OutputLayout, manifest: dict[str, Any], asked: Form) -> None:
    """Have the rows joined again from their chunks; the file stays until then. Raises Halt (78) without chunks."""
    there, ledger = form_of(manifest).dtype, ledger_of(layout)
    if ledger is not None:
        ledger.load()
    if ledger is None or ledger.left or _takes_earlier(layout):
        raise config_error(
            f"output {layout.name} is complete in {there}, and {asked.dtype} cannot be made of that",
            why="what is rounded cannot be made exact again, and the chunk files are not kept",
            remedy=f"write dtype: {there}, or encode it again: --from-scratch (the file stays until then)",
        )
    layout.done.unlink(missing_ok=True)
    layout.manifest.unlink(missing_ok=True)
    remove_sides(layout, manifest)


def _takes_earlier(layout: OutputLayout) -> bool:
    """Whether vectors are those of the generation before, whose final file is gone. Raises DamagedError, OSError."""
    reuse = read_reuse(layout)
    return reuse is not None and any(each.texts and each.kind is PlaceKind.EARLIER for each in reuse.places)


def _reform_finished(
    layout: OutputLayout, manifest: dict[str, Any], form: Form, on_block: Callable[[], None]
) -> dict[str, Any]:
    """Make the other form of its rows. Raises BadVectorsError where they are not what was written."""
    parts, before = recorded_parts(layout, manifest), form_of(manifest)
    missing = sorted(each["row"] for each in badrows.every_row(layout, manifest))
    source = Source(layout, manifest["rows"], manifest["dimension"], before, missing, ranges_of(manifest))
    old, new = place_of(layout, before), place_of(layout, form)
    if before.format is FinalFormat.NPY and replace(form, carried=before.carried) == before:
        return _with_other_table(layout, manifest, form)  # the array itself stays as it is
    hidden = layout.replaced(old)
    clear_partial(layout)
    with reform(source, lambda compare: rows_of_parts(parts, source, compare=compare), form, on_block) as reformed:
        if new != old:
            set_aside(new)  # after the next line, what is there counts as ours
        old.replace(hidden)
        stamps = reformed.publish()
    values = {name: value for name, value in manifest.items() if name not in FILE_KEYS}
    values |= describe_files(layout, form, manifest["rows"], stamps, reformed.ranges)
    remove_sides(layout, manifest, [path for path, _ in side_files(layout, values)])
    write_sides(layout, values)
    publish_manifest(layout, values, stamps)
    remove_replaced(hidden, old)
    return values


def _with_other_table(layout: OutputLayout, manifest: dict[str, Any], form: Form) -> dict[str, Any]:
    """Carry other columns along beside the same array."""
    stamps = [stamp_as(part.path, digest) for part, digest in recorded_parts(layout, manifest)]
    values = {name: value for name, value in manifest.items() if name not in FILE_KEYS}
    values |= describe_files(layout, form, manifest["rows"], stamps, ranges_of(manifest))
    remove_sides(layout, manifest, [layout.ranges])
    write_sides(layout, values)
    publish_manifest(layout, values, stamps)
    return values


def _finish_reforming(layout: OutputLayout) -> None:
    """Clear up after a run that was killed while it replaced final files by others: forwards, or back to the old."""
    for old in all_places(layout):
        hidden = layout.replaced(old)
        if not hidden.exists():
            continue
        if read_finished(layout) is not None:
            remove_replaced(hidden, old)
            continue
        for new in () if replaces_another(layout) else all_places(layout):
            if is_ours(layout, new):
                remove_final(new)
        set_aside(old)
        hidden.replace(old)


def _set_strays_aside(layout: OutputLayout, manifest: dict[str, Any], emit: Emit) -> None:
    """What lies among the shards as if it were one of them would shift the rows of every reader."""
    if form_of(manifest).shards is None:
        return
    for path in list(strays(layout.shards, [part for part, _ in recorded_parts(layout, manifest)])):
        if (aside := set_aside(path)) is not None:
            emit(Note(f"{path} is none of the shards; it is now {aside.name}"))


def _set_damaged_aside(layout: OutputLayout, form: Form, emit: Emit) -> None:
    """A final file that does not hold any more is kept under another name; it is computed again."""
    recorded = read_recorded(layout)
    place = place_of(layout, form_of(recorded) if recorded is not None else form)
    if layout.done.exists() and place.exists():
        aside = place.with_name(f"{place.name}.damaged")
        if place.is_dir():  # a rename replaces a file, but no folder
            set_aside(aside)
        place.replace(aside)
        emit(Note(f"{place} has changed since it was made; it is now {aside.name}"))
    badrows.forget(layout, recorded)
    layout.done.unlink(missing_ok=True)
    if layout.manifest.is_file():
        layout.manifest.unlink()
    else:
        set_aside(layout.manifest)
