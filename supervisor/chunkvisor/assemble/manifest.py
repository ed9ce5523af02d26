"""The record of a finished output: its manifest beside the final file, and a copy in its state folder.

A final file counts only if its stamp, or its digest, holds.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from chunkvisor.assemble import badrows
from chunkvisor.assemble.forms import FinalPart, form_of, parts_of, place_of
from chunkvisor.store.identity import read_fixed
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.records import DamagedError, Stamp, read_record, read_sealed, stamp_as, write_sealed
from chunkvisor_worker.contract.files import set_aside

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class _DoneRecord:
    manifest: dict[str, Any]
    final: tuple[Stamp, ...]
    """Of its file, or of each of its shards."""


def is_manifest(head: bytes) -> bool:
    """Whether a file that begins like this is one of ours, be it whole or not."""
    return re.match(rb'\{\s*"rows": \d+,\s*"dimension": \d+,', head) is not None


def recorded_parts(layout: OutputLayout, manifest: dict[str, Any]) -> list[tuple[FinalPart, str]]:
    """(file, its sha256 in hex) of all that the manifest describes."""
    form = form_of(manifest)
    records = [manifest] if form.shards is None else manifest["shards"]
    parts = parts_of(place_of(layout, form), manifest["rows"], form)
    return [(part, record["digest"].removeprefix("sha256:")) for part, record in zip(parts, records, strict=True)]


def publish_manifest(layout: OutputLayout, manifest: dict[str, Any], stamps: Sequence[Stamp]) -> None:
    """Write the manifest and the record of the finished output. Raises OSError."""
    if layout.manifest.is_symlink() or not layout.manifest.is_file():
        set_aside(layout.manifest)
    write_sealed(layout.manifest, manifest, made_in=layout.hidden)
    write_sealed(layout.done, asdict(_DoneRecord(manifest, tuple(stamps))))
    layout.publishing.unlink(missing_ok=True)


def announce(layout: OutputLayout, manifest: dict[str, Any]) -> None:
    """Note the manifest of a final that is about to take the place of an earlier one. Raises OSError."""
    write_sealed(layout.publishing, {"manifest": manifest})


def finish_publishing(layout: OutputLayout) -> None:
    """Write the records of a final that was announced and then published, by a run that was killed. Raises OSError.

    An announced one that has not appeared is forgotten: it will be joined again.
    """
    content = _unless_damaged(lambda each: read_sealed(each.publishing), layout)
    if content is not None:
        announced = content["manifest"]
        files = recorded_parts(layout, announced)
        stamps = [Stamp(digest, _size(part.path), 0, 0, 0) for part, digest in files]
        if all(stamp.holds(part.path) for stamp, (part, _) in zip(stamps, files, strict=True)):
            publish_manifest(layout, announced, [stamp_as(part.path, digest) for part, digest in files])
    layout.publishing.unlink(missing_ok=True)


def replaces_another(layout: OutputLayout) -> bool:
    """Whether the manifest and the final files that are there are those of an earlier generation. Raises OSError."""
    if layout.done.exists() or not layout.earlier.done.exists():
        return False
    manifest, fixed = _unless_damaged(read_manifest, layout), _unless_damaged(read_fixed, layout)
    if manifest is None or fixed is None:
        return False
    # After `retry`, both generations are of the same texts.
    before = _unless_damaged(_read_done, layout.earlier)
    is_earlier = before is not None and before.manifest == manifest
    return is_earlier or manifest["fingerprint"] != fixed.identity.fingerprint


def earlier_holds(layout: OutputLayout, digest: str) -> bool:
    """Whether the final files of the earlier generation are there, and those of that digest. Raises OSError."""
    done = _unless_damaged(_read_done, layout.earlier)
    if done is None or done.manifest["digest"] != digest:
        return False
    files = recorded_parts(layout, done.manifest)
    return len(files) == len(done.final) and all(
        stamp.holds(part.path) for stamp, (part, _) in zip(done.final, files, strict=True)
    )


def read_finished(layout: OutputLayout) -> dict[str, Any] | None:
    """The manifest of a finished output whose final files are whole; None where it is not finished, or damaged.

    A lost or damaged record is written anew from its twin. A final file is read only if it was touched since it
    was recorded. Raises OSError.
    """
    done, manifest = _unless_damaged(_read_done, layout), _unless_damaged(read_manifest, layout)
    record = done.manifest if done is not None else manifest
    if record is None or replaces_another(layout):
        return None
    files = recorded_parts(layout, record)
    stamps = done.final if done is not None else [Stamp(digest, _size(part.path), 0, 0, 0) for part, digest in files]
    if len(stamps) != len(files):
        return None
    stamped = [(stamp, part.path) for stamp, (part, _) in zip(stamps, files, strict=True)]
    if not all(stamp.holds(path) for stamp, path in stamped) or not badrows.mend(layout, record):
        return None
    if manifest != record or done is None or not all(stamp.untouched(path) for stamp, path in stamped):
        publish_manifest(layout, record, [stamp_as(path, stamp.digest) for stamp, path in stamped])
    return record


def read_recorded(layout: OutputLayout) -> dict[str, Any] | None:
    """The manifest, from either record and whether or not its files are whole; None where neither can be read."""
    done = _unless_damaged(_read_done, layout)
    return done.manifest if done is not None else _unless_damaged(read_manifest, layout)


def read_manifest(layout: OutputLayout) -> dict[str, Any] | None:
    """The manifest beside the final file, or None where there is none. Raises DamagedError, OSError."""
    return read_sealed(layout.manifest)


def read_done_manifest(layout: OutputLayout) -> dict[str, Any] | None:
    """The manifest of a finished output; None where it is not finished. Raises DamagedError, OSError.

    Its files are not looked at, but something has to be in their place.
    """
    done = _read_done(layout)
    if done is None or not place_of(layout, form_of(done.manifest)).exists():
        return None
    return done.manifest


def note_move(layout: OutputLayout, final: Path) -> None:
    """Note that the final file is about to be moved there, as `chunkvisor encode` does. Raises OSError."""
    write_sealed(layout.moved, {"final": os.path.relpath(final, layout.workdir)})


def awaits_move(layout: OutputLayout) -> bool:
    """Whether `chunkvisor encode` was ended before it had moved the final file: the same command does it."""
    return layout.moved.exists() and layout.final.exists()


def read_moved(layout: OutputLayout) -> OutputLayout | None:
    """Where `chunkvisor encode` has put final file and manifest, if that manifest is there. Raises OSError."""
    there, done = _moved_to(layout), _unless_damaged(_read_done, layout)
    manifest = _unless_damaged(read_manifest, there) if there is not None else None
    if done is None or manifest is None:
        return None
    return there if manifest["digest"] == done.manifest["digest"] else None


def read_left(layout: OutputLayout) -> OutputLayout | None:
    """Where the file of before is, which `encode` has moved, until the run after a `retry`. Raises OSError."""
    there = _moved_to(layout) if not layout.done.exists() else None
    return there if there is not None and _unless_damaged(read_manifest, there) is not None else None


def _moved_to(layout: OutputLayout) -> OutputLayout | None:
    note = _unless_damaged(lambda each: read_sealed(each.moved), layout)
    if note is None or layout.final.exists():
        return None
    final = Path(os.path.normpath(layout.workdir / str(note["final"])))
    return OutputLayout(final.parent, final.stem)


def read_done_if_whole(layout: OutputLayout) -> dict[str, Any] | None:
    """The same; None also where its record is damaged, which a run may mend. Raises OSError."""
    return _unless_damaged(read_done_manifest, layout)


def _read_done(layout: OutputLayout) -> _DoneRecord | None:
    return read_record(_DoneRecord, layout.done)


def _unless_damaged(read: Callable[[OutputLayout], _Read], layout: OutputLayout) -> _Read | None:
    try:
        return read(layout)
    except DamagedError:
        return None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1
