"""What becomes of the final files of an earlier run: kept, cut anew where another form is asked for, or set aside.

A final file is removed only when another one with the same rows is in its place.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from chunkvisor.assemble import badrows
from chunkvisor.assemble.finalfiles import place_of, remove_final, strays
from chunkvisor.assemble.finalwriter import FinalWriter
from chunkvisor.assemble.manifest import (
    describe_files,
    publish_manifest,
    read_finished,
    read_recorded,
    recorded_parts,
    shards_of,
)
from chunkvisor.events.event import Emit
from chunkvisor.events.run import Note
from chunkvisor.store.artifact import BadVectorsError, Vectors, blocks, read_shape
from chunkvisor.store.layout import OutputLayout
from chunkvisor.units import counted
from chunkvisor_worker.contract.files import descriptor_of, set_aside


def keep_finished(
    layout: OutputLayout, fingerprint: str, shards: int | None, emit: Emit, on_block: Callable[[], None]
) -> dict[str, Any] | None:
    """The manifest of the complete output, in as many shards (None = one file); None where there is work to do.

    Final files that do not hold any more are then kept under another name. Calls `on_block` now and then; it may raise
    to stop. Raises OSError.
    """
    _finish_cutting(layout)
    manifest = read_finished(layout)
    if manifest is not None and manifest.get("fingerprint") == fingerprint:
        as_asked = _as_many(manifest["rows"], shards)
        if shards_of(manifest) != as_asked:
            emit(Note(f"{layout.name}: cutting its rows anew, into {_words(as_asked)}"))
            try:
                manifest = _cut_anew(layout, manifest, as_asked, on_block)
            except BadVectorsError:
                manifest = None  # it was damaged beneath the file system, which its stamp does not show
        if manifest is not None:
            _set_strays_aside(layout, manifest, emit)
            return manifest
    _set_damaged_aside(layout, shards, emit)
    return None


def _as_many(rows: int, shards: int | None) -> int | None:
    return shards if shards is None else min(rows, shards)


def _words(shards: int | None) -> str:
    return "one file" if shards is None else counted(shards, "shard")


def _cut_anew(
    layout: OutputLayout, manifest: dict[str, Any], shards: int | None, on_block: Callable[[], None]
) -> dict[str, Any]:
    """Copy the rows into files of another number. Raises BadVectorsError where they are not what was written."""
    before = shards_of(manifest)
    old, new, hidden = place_of(layout, before), place_of(layout, shards), layout.replaced(before)
    with FinalWriter(layout, manifest["rows"], manifest["dimension"], shards) as writer:
        not_finite = 0
        for block in _rows(layout, manifest):
            not_finite += len(writer.write(block))
            on_block()
        if not_finite != badrows.count_of(manifest):
            raise BadVectorsError("has other rows without a vector than its manifest says")
        if new != old:
            set_aside(new, files_too=True)  # after the next line, what is there counts as ours
        old.replace(hidden)
        stamps = writer.publish()
    values = {name: value for name, value in manifest.items() if name not in ("digest", "shards")}
    values |= describe_files(layout, shards, manifest["rows"], stamps)
    publish_manifest(layout, values, stamps)
    _remove(hidden, old)
    return values


def _remove(hidden: Path, place: Path) -> None:
    """Remove what was replaced; what somebody has put among the shards is kept beside them."""
    remove_final(hidden)
    if os.path.lexists(hidden):
        kept = place.with_name(f"{place.name}.before")
        set_aside(kept, files_too=True)
        hidden.replace(kept)


def _finish_cutting(layout: OutputLayout) -> None:
    """Clear up after a run that was killed while it replaced final files by others: forwards, or back to the old."""
    for hidden, old in ((layout.replaced(None), layout.final), (layout.replaced(1), layout.shards)):
        if not hidden.exists():
            continue
        if read_finished(layout) is not None:
            _remove(hidden, old)
            continue
        for new in (layout.final, layout.shards):
            remove_final(new)
        set_aside(old, files_too=True)
        hidden.replace(old)


def _rows(layout: OutputLayout, manifest: dict[str, Any]) -> Iterator[Vectors]:
    for part, recorded in recorded_parts(layout, manifest):
        with open(descriptor_of(part.path), "rb", buffering=0) as file:
            shape = read_shape(file)
            if (shape.rows, shape.dimension) != (part.rows, manifest["dimension"]):
                raise BadVectorsError(f"holds {shape.rows} x {shape.dimension}")
            file.seek(0)
            digest = hashlib.sha256(file.read(shape.offset_bytes))
            for block in blocks(file, shape):
                digest.update(block.data.cast("B"))
                yield block
        if digest.hexdigest() != recorded:
            raise BadVectorsError("has another digest than its manifest says")


def _set_strays_aside(layout: OutputLayout, manifest: dict[str, Any], emit: Emit) -> None:
    """What lies among the shards as if it were one of them would shift the rows of every reader."""
    if shards_of(manifest) is None:
        return
    for path in list(strays(layout.shards, [part for part, _ in recorded_parts(layout, manifest)])):
        if (aside := set_aside(path, files_too=True)) is not None:
            emit(Note(f"{path} is none of the shards; it is now {aside.name}"))


def _set_damaged_aside(layout: OutputLayout, shards: int | None, emit: Emit) -> None:
    """A final file that does not hold any more is kept under another name; it is computed again."""
    recorded = read_recorded(layout)
    place = place_of(layout, shards_of(recorded) if recorded is not None else shards)
    if layout.done.exists() and place.exists():
        aside = place.with_name(f"{place.name}.damaged")
        set_aside(aside, files_too=place.is_dir())
        place.replace(aside)
        emit(Note(f"{place} has changed since it was made; it is now {aside.name}"))
    badrows.forget(layout, recorded)
    for path in (layout.done, layout.manifest):
        set_aside(path)
        path.unlink(missing_ok=True)
