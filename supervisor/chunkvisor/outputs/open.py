"""Takes each output of a run as far as it comes without workers; see `state` for the stages."""

import os
from collections.abc import Sequence

from chunkvisor.events.event import OutputAlreadyComplete
from chunkvisor.outputs.combine import refuse_unequal
from chunkvisor.outputs.forms import asked_form, clear_partial
from chunkvisor.outputs.publish import (
    complete_publication,
    ensure_form,
    remove_leftovers,
    set_damaged_aside,
)
from chunkvisor.outputs.stage import Wanted, stage
from chunkvisor.outputs.state import OutputState, Stage
from chunkvisor.store.disk import not_ours
from chunkvisor.store.layout import OutputLayout
from chunkvisor_worker.contract.files import remove_folder


def open_outputs(layouts: Sequence[OutputLayout], wanted: Wanted) -> list[OutputState]:
    """Return each output: COMPLETE as the config asks for it, ENCODING, or STAGED.

    STAGED ones are still to be planned, by `plan`. Raises Halt if a source is wrong, or the config
    differs from what the workdir was begun with; OSError.
    """
    config = wanted.loaded.config
    for layout in layouts:
        remove_folder(layout.at_generation(0).state)  # left by a run that was killed while staging
        _refuse_others(layout, wanted)
    outputs = [_settled(layout, wanted) for layout in layouts]
    rows = {each.layout.name: each.fixed.identity.rows for each in outputs if each.fixed}
    refuse_unequal(config.combine, rows)
    for each in outputs:
        layout = each.layout
        # Before free space is counted: the file of a killed join takes its whole size.
        clear_partial(layout)
        manifest = each.manifest
        if manifest:
            remove_leftovers(layout, keep_chunks=config.chunk.keep or bool(manifest["quarantined"]))
            path = str(layout.file(config.outputs[layout.name].format))
            size = manifest["rows"], manifest["dimension"]
            wanted.emit(OutputAlreadyComplete(layout.name, *size, path))
    return outputs


def _refuse_others(layout: OutputLayout, wanted: Wanted) -> None:
    """Raise Halt (78) if a new output needs the name of a file that no run has made."""
    if wanted.place or layout.generation or layout.done.exists():
        return
    final = layout.file(wanted.loaded.config.outputs[layout.name].format)
    for path in filter(os.path.lexists, (final, layout.manifest)):
        raise not_ours(path, "choose another workdir or another name for the output")


def _settled(layout: OutputLayout, wanted: Wanted) -> OutputState:
    """Take the output as far as it comes without workers: COMPLETE, STAGED or ENCODING."""
    found = stage(complete_publication(layout), wanted)
    assert found.fixed
    if found.stage is Stage.COMPLETE:
        form = asked_form(wanted.loaded.config.outputs[layout.name], found.fixed.carried)
        found = ensure_form(found, form, wanted.more, wanted.emit, wanted.on_wait)
        if found.stage is not Stage.COMPLETE:
            found = stage(found, wanted)  # `clean` may have removed the texts
    elif found.stage is Stage.DAMAGED:
        found = set_damaged_aside(found, wanted.emit)
    return found
