"""Begins outputs from scratch: what is there goes only once all sources are read, and is kept until it is replaced."""

from collections.abc import Sequence

from chunkvisor.assemble.before import begun, keep_before
from chunkvisor.events.event import Note
from chunkvisor.store.identity import make_state, write_staged
from chunkvisor.store.layout import OutputLayout
from chunkvisor.supervise.begin import refuse_foreign, stage_fresh
from chunkvisor.supervise.opening import Opening
from chunkvisor_worker.contract.files import remove_folder


def begin_anew(opening: Opening, layouts: Sequence[OutputLayout]) -> None:
    """Stage all sources, then move aside what is there. Raises Halt, and then nothing has been moved; OSError."""
    for layout in layouts:
        if not begun(layout):
            refuse_foreign(opening, layout)
    read = []
    try:
        for layout in layouts:
            make_state(layout)
            read.append((layout, *stage_fresh(opening, layout)))
    except BaseException:
        for _, fresh, _ in read:
            remove_folder(fresh)
        raise
    for layout, fresh, record in read:
        before = keep_before(layout) if begun(layout) else None
        make_state(layout)
        (fresh if before is None else before / fresh.name).replace(layout.table)
        write_staged(layout, record)
        if before is not None:
            opening.emit(Note(f"{layout.name}: what was there is kept in {layout.before} until the new file is there"))
