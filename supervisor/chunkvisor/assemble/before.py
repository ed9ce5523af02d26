"""What an output was before it is begun anew, or updated: kept beside it until the new final file is published.

It never removes a finished file while no other one is in its place.
"""

import os
from pathlib import Path

from chunkvisor.assemble.forms import all_partials, all_places, form_of, is_ours, place_of, remove_final
from chunkvisor.assemble.manifest import read_recorded
from chunkvisor.assemble.sides import remove_sides, side_files
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.ledger import is_planned
from chunkvisor_worker.contract.files import copy_atomic, make_folder, remove_folder, set_aside, sync_folder


def begun(layout: OutputLayout) -> bool:
    """Whether a run has begun the output, so that what stands under its name is ours."""
    return any(os.path.lexists(path) for path in (layout.identity, layout.done, layout.published))


def keep_before(layout: OutputLayout) -> Path:
    """Move final files and state out of the way; returns the folder of the state as it was. Raises OSError.

    Where a final file is kept already and there is none since, only the state since then goes. Files go first, and are
    in their new place on the disk before the state follows: after a kill, a state without them is only work to be done
    again.
    """
    finals = _finals(layout)
    if finals:
        drop_before(layout)
    make_folder(layout.before)
    for path in (*finals, layout.manifest, layout.quarantined):
        if os.path.lexists(path):
            path.replace(layout.before / path.name)
    for folder in (layout.before, layout.workdir):
        sync_folder(folder)
    for path in all_partials(layout):
        remove_final(path)
    state = layout.before / "state"
    if state.exists():
        state = layout.before / "since"
        remove_folder(state)
    return layout.state.rename(state)


def finish_switch(layout: OutputLayout) -> bool:
    """Go on where a run was killed that was about to begin the next generation; whether that has begun. Raises OSError.

    Only what was whole counts; of what was still being prepared the old state knows nothing.
    """
    if is_planned(layout.next):
        switch(layout)
        return True
    remove_folder(layout.next.state)
    return False


def switch(layout: OutputLayout) -> None:
    """Begin the next generation, whose state is prepared; final files and manifest stay where they are.

    Each step may be done twice. Raises OSError.
    """
    state, prepared = layout.state, layout.next
    if not prepared.table.exists():
        layout.table.rename(prepared.table)
    if layout.published.exists():
        copy_atomic(layout.published, prepared.published)  # what stands there is still ours
    if state.exists():
        make_folder(layout.before)  # and with it the name of the prepared state is on the disk
        # A state without a final file is of no use any more: what it had was copied.
        kept = layout.earlier.state if layout.done.exists() else layout.before / "since"
        remove_folder(kept)
        state.rename(kept)  # on the disk, too, before the next one can have its name
    # Not synced: where a power cut undoes it, the next run finds what was prepared, with all that was done in it since.
    prepared.state.rename(state)
    remove_folder(layout.before / "since")


def drop_before(layout: OutputLayout) -> None:
    """Remove what is kept: its place is taken. What somebody has put among the shards stays, beside them."""
    if not layout.before.is_dir():
        return
    _drop_other_form(layout)
    for name in ("since", "state"):
        remove_folder(layout.before / name)
    for path in list(layout.before.iterdir()):
        remove_final(path)
        if os.path.lexists(path):
            kept = layout.workdir / f"{path.name}.before"
            set_aside(kept)
            path.rename(kept)
    layout.before.rmdir()


def drop_earlier_sides(layout: OutputLayout) -> None:
    """Remove what lies beside the final of the earlier generation; to be called once the new final is there.

    Raises OSError.
    """
    before = read_recorded(layout.earlier) if layout.earlier.done.exists() else None
    if before is not None:
        remove_sides(layout, before)


def _drop_other_form(layout: OutputLayout) -> None:
    """Remove the final of the earlier generation where the new one is in another place."""
    before, now = read_recorded(layout.earlier), read_recorded(layout)
    if before is None or now is None or not layout.earlier.done.exists() or not layout.done.exists():
        return
    place, other = place_of(layout, form_of(now)), place_of(layout, form_of(before))
    if place != other and is_ours(layout.earlier, other):
        remove_final(other)


def _finals(layout: OutputLayout) -> list[Path]:
    """What there is of final files, in whatever form, as they are and while they are replaced by another form."""
    recorded = read_recorded(layout)
    found = [layout.final, layout.replaced(layout.final)]
    for place in all_places(layout):
        of_ours = is_ours(layout, place) or (recorded is not None and place_of(layout, form_of(recorded)) == place)
        if of_ours and place != layout.final:
            found += [place, layout.replaced(place)]
    if recorded is not None:
        found += [path for path, _ in side_files(layout, recorded)]
    return [path for path in found if os.path.lexists(path)]
