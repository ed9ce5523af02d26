"""What an earlier run has fixed of an output, and whether the config still asks for that."""

from chunkvisor.assemble.before import finish_switch
from chunkvisor.assemble.manifest import finish_publishing
from chunkvisor.errors import config_error
from chunkvisor.store.identity import Fixed, Identity, differences, identity_of, read_fixed
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.store.leftovers import anything_kept
from chunkvisor.store.records import DamagedError
from chunkvisor.supervise.changed import refuse_changes
from chunkvisor.supervise.opening import Opening


def begun_before(layout: OutputLayout) -> Fixed | None:
    """What an earlier run has fixed, once what a killed one has left half-way is finished. Raises Halt, OSError."""
    finish_switch(layout)
    finish_publishing(layout)
    return _read_fixed(layout)


def _read_fixed(layout: OutputLayout) -> Fixed | None:
    try:
        fixed, problem = read_fixed(layout), "missing"
    except DamagedError:
        fixed, problem = None, "damaged"
    if fixed is None and (problem == "damaged" or layout.chunks.exists() or layout.done.exists()):
        raise config_error(
            f"{layout.identity} is {problem}, so it cannot be told what the files beside it belong to",
            remedy="restore the file, or start this config over by adding --from-scratch",
        )
    return fixed


def refuse_other_settings(opening: Opening, layout: OutputLayout, fixed: Fixed) -> None:
    """Raises Halt (78) where the config asks for other vectors than those that are there, whatever the source is."""
    as_before = identity_for(opening, layout.name, fixed.identity.source_digest, fixed.identity.rows)
    refuse_changed(opening, layout, fixed, as_before)


def refuse_changed(opening: Opening, layout: OutputLayout, fixed: Fixed, now: Identity) -> None:
    """Raises Halt (78) where the identity is another one; with --update, where vectors that are there do not serve."""
    if fixed.identity.fingerprint == now.fingerprint:
        return
    serve = now.of_vectors == fixed.identity.of_vectors
    if serve and opening.update:
        return
    changes = differences(fixed.identity, now)
    halt = refuse_changes(layout.name, changes, opening.loaded.given, serve=serve)
    if not anything_kept(Layout(layout.workdir)):
        # As after a model that was refused, when the config was corrected as the message said.
        halt.why = "no text has a vector yet, so nothing is lost by a new beginning"
        halt.remedy = "add --from-scratch, or undo the change"
    raise halt


def identity_for(opening: Opening, name: str, digest: str, rows: int) -> Identity:
    """The identity that the config asks for, of a source of so many rows."""
    return identity_of(opening.config, name, opening.source.revision or "", digest, rows, opening.arithmetic)
