"""Puts finished outputs side by side at the end of a run, where the config asks for it."""

from collections.abc import Callable

from chunkvisor.assemble.combine import Member, combine
from chunkvisor.assemble.manifest import read_finished
from chunkvisor.config.model import Config
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import Emit
from chunkvisor.events.run import Note
from chunkvisor.store.layout import Layout


def combine_finals(config: Config, layout: Layout, emit: Emit, on_block: Callable[[], None]) -> None:
    """Make what is not there yet, or not any more. Raises Halt, OSError; and what `on_block` raises to stop."""
    for name, members in config.combine.items():
        found = {member: read_finished(layout.output(member)) for member in members}
        if lost := [member for member, manifest in found.items() if manifest is None]:
            raise Halt(ExitCode.TRY_AGAIN, f"{lost[0]} was damaged a moment ago", remedy="run again to make it again")
        whole = [Member(layout.output(member), manifest) for member, manifest in found.items() if manifest is not None]
        place = layout.combined(name)
        manifest, was_there = combine(place, whole, on_block)
        if not was_there:
            size = f"{manifest['rows']:,} x {manifest['dimension']:,}"
            emit(Note(f"{name}: {size}, {' and '.join(members)} side by side: {place.final}"))
