"""Finals that are made: published with manifest and side files, kept, made anew in another form, followed.

A final counts only if its stamp, or its digest, holds. What lies next to it is copied again if it
is lost: the rows table from the staged texts, the lists of rows from the state.
"""

import itertools
import json
import os
import re
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from chunkvisor.config.choices import FinalFormat
from chunkvisor.errors import config_error
from chunkvisor.events.event import Emit, Note
from chunkvisor.outputs.forms import (
    FORM_KEYS,
    OTHER_DIGEST,
    Form,
    clear_partial,
    digest_in,
    form_of,
)
from chunkvisor.outputs.join import (
    final_rows,
    find_rows_table,
    write_form,
)
from chunkvisor.sources.table import TableFiles
from chunkvisor.store.artifact import BadVectorsError
from chunkvisor.store.identity import read_fixed
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.records import (
    DamagedError,
    Stamp,
    digest_file,
    read_record,
    read_sealed,
    stamp_as,
    write_record,
    write_sealed,
)
from chunkvisor_worker.contract.files import (
    copy_atomic,
    make_folder,
    set_aside,
    sync_folder,
    write_blocks,
)

MOST_LISTED = 10_000
"""Rows without a vector that a manifest lists. A file of lines has all of them."""

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class _Done:
    manifest: dict[str, Any]
    final: Stamp


@dataclass(frozen=True, slots=True)
class _Announced:
    manifest: dict[str, Any]
    ours: tuple[str, ...]  # names of the finals that it replaces


def is_manifest(head: bytes) -> bool:
    """Say whether a file that begins like this is one of ours, be it whole or not."""
    return re.match(rb'\{\s*"rows": \d+,\s*"dimension": \d+,', head) is not None


def describe_file(layout: OutputLayout, form: Form, digest: str) -> dict[str, Any]:
    """Return the manifest's `format`, `dtype` and `digest`, and `carried` if columns are carried along."""
    said: dict[str, Any] = {
        "format": str(form.format),
        "dtype": str(form.dtype),
        "digest": f"sha256:{digest}",
    }
    if form.carried is not None:
        table = {"file": layout.rows_table.name} if form.has_rows_table else {}
        said["carried"] = {"digest": f"sha256:{form.carried}", **table}
    return said


def _sides(layout: OutputLayout, manifest: dict[str, Any]) -> dict[Path, str]:
    """Return the sha256, hex, of each file that lies next to the final."""
    said = {
        layout.rows_table: manifest.get("carried"),
        layout.truncated: manifest.get("truncated"),
        layout.quarantined: manifest.get("quarantined_list"),
    }
    there = {
        path: record for path, record in said.items() if record is not None and "file" in record
    }
    return {path: digest_in(record) for path, record in there.items()}


def damaged_sides(
    layout: OutputLayout, manifest: dict[str, Any]
) -> Iterator[tuple[Path, str | None]]:
    """Give (file, what is wrong with it; None = nothing) of all that lies next to the final. Raises OSError."""
    for path, digest in _sides(layout, manifest).items():
        other = OTHER_DIGEST if path.exists() else "is missing"
        yield path, None if _has(path, digest) else other


def write_sides(layout: OutputLayout, manifest: dict[str, Any], but: Container[Path] = ()) -> None:
    """Write what is missing or is not what the manifest says; what stands there is set aside. Raises OSError."""
    sources = {
        layout.rows_table: TableFiles(layout.table).rows,
        layout.truncated: layout.truncated_twin,
        layout.quarantined: layout.quarantined_twin,
    }
    for path, digest in _sides(layout, manifest).items():
        if path not in but and not _has(path, digest) and _has(sources[path], digest):
            set_aside(path)
            copy_atomic(sources[path], path, made_in=layout.hidden)


def _has(path: Path, digest: str) -> bool:
    return path.is_file() and digest_file(path) == digest


# --- rows without a vector


def list_quarantined(layout: OutputLayout, rows: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Write the list of all these rows into the state; return what the manifest says of them. Raises OSError."""
    first = list(itertools.islice(rows, MOST_LISTED))
    said: dict[str, Any] = {"quarantined": first, "quarantined_rows": 0}
    if not first:
        layout.quarantined_twin.unlink(missing_ok=True)
        return said

    def lines() -> Iterator[bytes]:
        for row in itertools.chain(first, rows):
            said["quarantined_rows"] += 1
            yield json.dumps(row).encode() + b"\n"

    write_blocks(layout.quarantined_twin, lines())
    digest = f"sha256:{digest_file(layout.quarantined_twin)}"
    return said | {"quarantined_list": {"file": layout.quarantined.name, "digest": digest}}


def all_quarantined(layout: OutputLayout, manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give all rows without a vector, in order: the manifest has the first. Raises DamagedError, OSError."""
    if len(manifest["quarantined"]) == manifest["quarantined_rows"]:
        yield from manifest["quarantined"]
        return
    for path in (layout.quarantined_twin, layout.quarantined):
        if _has(path, digest_in(manifest["quarantined_list"])):
            with open(path, "rb") as file:
                yield from map(json.loads, file)
            return
    raise DamagedError(str(layout.quarantined))


def rows_without_vector(layout: OutputLayout, manifest: dict[str, Any]) -> npt.NDArray[np.int64]:
    """Return the numbers of these rows, which rise; raises as `all_quarantined`."""
    found = all_quarantined(layout, manifest)
    return np.fromiter((each["row"] for each in found), dtype=np.int64)


# --- publishing


def publish(layout: OutputLayout, manifest: dict[str, Any]) -> None:
    """Give the final that is complete under its partial name its own, then write its records. Raises OSError.

    A final of ours that is there stays until one rename replaces it; if it is of another form, in another place, it
    goes once the new one is there. Anything else in that place is set aside. If the run is killed in between,
    `finish_publishing` goes on.
    """
    places = map(layout.file, FinalFormat)
    ours = tuple(place.name for place in places if is_ours(layout, place))
    announced = _Announced(manifest, ours)
    write_record(layout.publishing, announced)
    _put_in_place(layout, announced)


def finish_publishing(layout: OutputLayout) -> None:
    """Go on where a run was killed that published a final, if that is whole. Raises OSError."""
    announced = _unless_damaged(lambda: read_record(_Announced, layout.publishing))
    if announced is not None:
        suffix = form_of(announced.manifest).format
        digest = digest_in(announced.manifest)
        written = layout.partial(suffix)
        if not _has(written, digest):
            written.unlink(missing_ok=True)
        if written.exists() or _has(layout.file(suffix), digest):
            _put_in_place(layout, announced)
    layout.publishing.unlink(missing_ok=True)


def _put_in_place(layout: OutputLayout, announced: _Announced) -> None:
    manifest = announced.manifest
    suffix = form_of(manifest).format
    place = layout.file(suffix)
    written = layout.partial(suffix)
    now, before = (
        _sides(layout, manifest),
        _sides(layout, _manifest(layout) or {}),
    )  # of the final that is replaced
    if written.exists():
        write_sides(layout, manifest, but=before)  # what the one before has not is no harm to it
        if place.is_dir() or place.name not in announced.ours:
            set_aside(place)
        written.replace(place)
        sync_folder(layout.workdir)  # the new one is there before another one goes
    for other in map(layout.file, FinalFormat):
        if other != place and other.name in announced.ours:
            other.unlink(missing_ok=True)
    for path, digest in before.items():
        if now.get(path) != digest and _has(path, digest):
            path.unlink()
    write_sides(layout, manifest)
    _write_twins(layout, manifest)
    layout.publishing.unlink(missing_ok=True)


def _write_twins(layout: OutputLayout, manifest: dict[str, Any]) -> None:
    if layout.manifest.is_symlink() or not layout.manifest.is_file():
        set_aside(layout.manifest)
    write_sealed(layout.manifest, manifest, made_in=layout.hidden)
    stamp = stamp_as(file_of(layout, manifest), digest_in(manifest))
    write_record(layout.done, _Done(manifest, stamp))


def file_of(layout: OutputLayout, manifest: dict[str, Any]) -> Path:
    """Return the final file that the manifest describes."""
    return layout.file(form_of(manifest).format)


def is_ours(layout: OutputLayout, place: Path) -> bool:
    """Say whether what is there was published by a run of this workdir, and is as it was. Raises OSError."""
    found = [done for each in (layout, layout.earlier) if (done := _done(each)) is not None]
    return any(
        file_of(layout, done.manifest) == place and done.final.holds(place) for done in found
    )


def replaces_another(layout: OutputLayout) -> bool:
    """Say whether manifest and final files that are there are those of an earlier generation. Raises OSError."""
    if layout.done.exists() or not layout.earlier.done.exists():
        return False
    manifest = _manifest(layout)
    fixed = _unless_damaged(lambda: read_fixed(layout))
    before = _done(layout.earlier)
    if manifest is None or fixed is None:
        return False
    # After `retry`, both generations are of the same texts.
    is_earlier = before is not None and before.manifest == manifest
    return is_earlier or manifest["fingerprint"] != fixed.identity.fingerprint


def read_finished(layout: OutputLayout) -> dict[str, Any] | None:
    """Return the manifest of a finished output whose final file is whole; None if it is not finished, or damaged.

    A lost or damaged record is written anew from its twin. The final file is read only if it was
    touched since it was recorded. Raises OSError.
    """
    done = _done(layout)
    manifest = _manifest(layout)
    record = done.manifest if done is not None else manifest
    if record is None or replaces_another(layout):
        return None
    final = file_of(layout, record)
    whole = done.final.holds(final) if done is not None else _has(final, digest_in(record))
    if not whole:
        return None
    if done is None or manifest != record or not done.final.untouched(final):
        _write_twins(layout, record)
    return record


def read_recorded(layout: OutputLayout) -> dict[str, Any] | None:
    """Return the manifest, from either record, whether or not its files are whole; None if neither can be read."""
    done = _done(layout)
    return done.manifest if done is not None else _manifest(layout)


def read_done_manifest(layout: OutputLayout) -> dict[str, Any] | None:
    """Return the manifest of a finished output; None if it is not finished, or its record is damaged. Raises OSError.

    Its files are not looked at, but something has to be in their place.
    """
    done = _done(layout)
    if done is None or not file_of(layout, done.manifest).exists():
        return None
    return done.manifest


def read_moved(layout: OutputLayout, *, retried: bool = False) -> OutputLayout | None:
    """Return where `chunkvisor encode` has put final file and manifest, if that manifest is there. Raises OSError.

    With `retried` also the file of before, after `retry` and until the next run.
    """
    note = _unless_damaged(lambda: read_sealed(layout.moved))
    if note is None or layout.final.exists():
        return None
    final = Path(os.path.normpath(layout.workdir / str(note["final"])))
    there = OutputLayout(final.parent, final.stem)
    done = _done(layout)
    manifest = _manifest(there)
    if manifest is None or (done is None and not retried):
        return None
    return there if done is None or manifest["digest"] == done.manifest["digest"] else None


def _done(layout: OutputLayout) -> _Done | None:
    return _unless_damaged(lambda: read_record(_Done, layout.done))


def _manifest(layout: OutputLayout) -> dict[str, Any] | None:
    return _unless_damaged(lambda: read_sealed(layout.manifest))


def _unless_damaged(read: Callable[[], _Read]) -> _Read | None:
    try:
        return read()
    except DamagedError:
        return None


def keep_finished(
    layout: OutputLayout, fingerprint: str, form: Form, emit: Emit, on_block: Callable[[], None]
) -> dict[str, Any] | None:
    """Return the manifest of the complete output, in that form; None if there is work to do.

    Damaged final files are then kept under another name. Calls `on_block` now and then; it may raise to stop. Raises
    OSError; Halt (78) if the form cannot be made from what is there.
    """
    if replaces_another(layout):
        return None
    manifest = read_finished(layout)
    if manifest is not None and manifest.get("fingerprint") == fingerprint:
        there = form_of(manifest)
        if there != form and not there.is_exact:
            if not layout.chunks.exists():
                raise config_error(
                    f"output {layout.name} is complete in {there.dtype}, and the config now asks for another form",
                    why="Rounded vectors cannot be made exact again, and the chunk files are gone.",
                    remedy=f"Restore its {', '.join(FORM_KEYS)}, or add --from-scratch to encode it again.",
                )
            follow_final(layout)
            return None
        try:
            if there != form:
                made = layout.file(form.format).name
                emit(Note(f"{layout.name}: making {made} from its final file"))
                clear_partial(layout)  # of a run that was killed while it did the same
                rows = int(manifest["rows"])
                read = partial(final_rows, layout, manifest)
                digest = write_form(layout, form, rows, int(manifest["dimension"]), read, on_block)
                of_file = ("format", "dtype", "digest", "carried")
                manifest = {name: value for name, value in manifest.items() if name not in of_file}
                manifest |= describe_file(layout, form, digest)
                publish(layout, manifest)
            write_sides(layout, manifest)
        except BadVectorsError:
            pass  # it was damaged beneath the file system, which its stamp does not show
        else:
            return manifest
    recorded = read_recorded(layout)
    place = layout.file((form_of(recorded) if recorded is not None else form).format)
    if layout.done.exists() and (aside := set_aside(place)) is not None:
        emit(Note(f"{place} has changed since it was made; it is now {aside.name}"))
    layout.done.unlink(missing_ok=True)
    if layout.manifest.is_file():
        layout.manifest.unlink()
    return None


def lacks_rows_table(layout: OutputLayout, form: Form) -> bool:
    """Say whether the rows table that the form carries has to be staged again, because it is needed and is gone."""
    if form.carried is None or find_rows_table(layout, form.carried) is not None:
        return False
    recorded = read_recorded(layout)
    return form.has_rows_table or recorded is None or form_of(recorded) != form


def follow_final(layout: OutputLayout) -> None:
    """Let the final count as that of an earlier generation, which stays until another is there. Raises OSError."""
    if layout.done.exists():
        for folder in (layout.before, layout.earlier.state):
            make_folder(folder)
        layout.done.replace(layout.earlier.done)
        for folder in (layout.earlier.state, layout.state):
            sync_folder(folder)
