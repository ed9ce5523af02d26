"""What an output was before it is begun anew: kept beside it, and removed once the new final file is published.

It never removes a finished file while no other one is in its place.
"""

import os
from pathlib import Path

from chunkvisor.assemble.finalfiles import all_partials, all_places, is_ours, place_of, remove_final
from chunkvisor.assemble.form import form_of
from chunkvisor.assemble.manifest import read_recorded
from chunkvisor.assemble.sides import side_files
from chunkvisor.store.layout import OutputLayout
from chunkvisor_worker.contract.files import make_folder, remove_folder, set_aside, sync_folder


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
    if layout.before.is_symlink() or not layout.before.is_dir():
        set_aside(layout.before, files_too=True)
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


def drop_before(layout: OutputLayout) -> None:
    """Remove what is kept: its place is taken. What somebody has put among the shards stays, beside them."""
    if layout.before.is_symlink() or not layout.before.is_dir():
        return
    for name in ("since", "state"):
        remove_folder(layout.before / name)
    for path in list(layout.before.iterdir()):
        remove_final(path)
        if os.path.lexists(path):
            kept = layout.workdir / f"{path.name}.before"
            set_aside(kept, files_too=True)
            path.rename(kept)
    layout.before.rmdir()


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
