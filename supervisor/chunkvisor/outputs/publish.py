"""Publishes final files and their side files, makes other forms of them, and reopens outputs.

A final file is replaced by one rename. Its side files lie next to it and can be made again: the
rows table from the staged texts, the lists of rows from the state.
"""

import itertools
import json
from collections.abc import Container, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from chunkvisor.child import OnWait
from chunkvisor.config.choices import FinalFormat
from chunkvisor.errors import config_error
from chunkvisor.events.event import Emit, Note
from chunkvisor.outputs.forms import (
    FORM_KEYS,
    OTHER_DIGEST,
    BadRow,
    Form,
    Manifest,
    clear_partial,
    digest_in,
    file_of,
    form_of,
)
from chunkvisor.outputs.join import final_rows, write_form
from chunkvisor.outputs.state import (
    FinalRecord,
    OutputState,
    Stage,
    final_record_of,
    manifest_of,
    read,
)
from chunkvisor.sources.table import TableFiles
from chunkvisor.store.artifact import BadVectorsError, Numbers
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.records import (
    DamagedError,
    digest_file,
    has_digest,
    read_if_whole,
    stamp_as,
    write_record,
    write_sealed,
)
from chunkvisor_worker.contract.files import (
    copy_atomic,
    remove_at_once,
    remove_folder,
    set_aside,
    sync,
    write_atomic,
)
from chunkvisor_worker.contract.frozen import frozen

MOST_LISTED = 10_000
"""Rows without a vector that a manifest lists at most. A file of lines has all of them."""


@frozen
class _Announced:
    """The record of a publication that has begun, on the disk until that is complete."""

    manifest: Manifest
    ours: tuple[str, ...]
    """Names of the final files that it replaces; any other file in the way is set aside."""


# --- ENCODING or COMPLETE ──► PUBLISHING ──► COMPLETE


def publish(layout: OutputLayout, manifest: Manifest) -> None:
    """Give the finished partial file its final name, then write its records. Raises OSError.

    First the announcement is written. If the run is killed before that, the next one joins again;
    after it, `complete_publication` does the rest. An earlier final file stays until one rename
    replaces it; one of another format is removed once the new one is there.
    """
    ours: tuple[str, ...] = ()
    before = final_record_of(layout)
    if before and before.holds(layout):
        ours = (file_of(layout, before.manifest).name,)
    announced = _Announced(manifest, ours)
    write_record(layout.publishing, announced)
    _put_in_place(layout, announced)


def complete_publication(layout: OutputLayout) -> OutputState:
    """Complete a publication that was interrupted by a kill, if its file is whole.

    If it is not, the announcement and the partial file are removed. Each step does no harm if it is
    done twice. Raises OSError.
    """
    layout = read(layout, check_file=False).layout  # knows a final file outside the workdir
    announced = read_if_whole(_Announced, layout.publishing)
    if announced:
        suffix = form_of(announced.manifest).format
        digest = digest_in(announced.manifest)
        written = layout.partial(suffix)
        if not has_digest(written, digest):
            written.unlink(missing_ok=True)
        if written.exists() or has_digest(layout.file(suffix), digest):
            _put_in_place(layout, announced)
    layout.publishing.unlink(missing_ok=True)
    return read(layout)


def _put_in_place(layout: OutputLayout, announced: _Announced) -> None:
    manifest = announced.manifest
    suffix = form_of(manifest).format
    place = layout.file(suffix)
    written = layout.partial(suffix)
    record = final_record_of(layout)
    now = _side_files(layout, manifest)
    before = _side_files(layout, record.manifest if record else {})
    if written.exists():
        # Side files of the earlier final file stay until that is replaced.
        write_side_files(layout, manifest, but=before)
        if place.is_dir() or place.name not in announced.ours:
            set_aside(place)
        written.replace(place)
        sync(place.parent)  # the new one is there before another one goes
    for other in map(layout.file, FinalFormat):
        if other != place and other.name in announced.ours:
            other.unlink(missing_ok=True)
    for path, digest in before.items():
        if now.get(path) != digest and has_digest(path, digest):
            path.unlink()
    write_side_files(layout, manifest)
    _write_records(layout, manifest)
    layout.publishing.unlink(missing_ok=True)


def _write_records(layout: OutputLayout, manifest: Manifest) -> None:
    """Write the manifest, and the record that makes the output COMPLETE."""
    if layout.manifest.is_symlink() or not layout.manifest.is_file():
        set_aside(layout.manifest)
    write_sealed(layout.manifest, manifest, made_in=layout.hidden)
    stamp = stamp_as(file_of(layout, manifest), digest_in(manifest))
    write_record(layout.done, FinalRecord(manifest, stamp))


# --- from COMPLETE, and from DAMAGED


def ensure_form(
    found: OutputState, form: Form, more: Manifest, emit: Emit, on_wait: OnWait
) -> OutputState:
    """Bring a COMPLETE output into that form, with its side files and `more` in its manifest.

    If the form can only be made from the chunks, the output is ENCODING afterwards; if the file
    proves to be damaged, see `set_damaged_aside`. If the run is killed while another form is
    written, the next one begins that again; from the announcement on, see `publish`. Raises
    OSError; Halt (78) if the form cannot be made from what is there.
    """
    layout = found.layout
    assert found.final_record
    manifest = found.final_record.manifest | more
    there = form_of(manifest)
    if there != form and not there.is_exact:
        if not layout.chunks.exists():
            raise config_error(
                f"output {layout.name} is complete in {there.dtype}, and the config now asks for "
                f"another form",
                f"Restore its {', '.join(FORM_KEYS)}, or add --from-scratch to encode it again.",
                why="Rounded vectors cannot be made exact again, and the chunk files are gone.",
            )
        return reopen(found)
    try:
        if there != form:
            made = layout.file(form.format).name
            emit(Note(f"{layout.name}: making {made} from its final file"))
            clear_partial(layout)  # of a run that was killed while it did the same
            digest = write_form(
                layout,
                form,
                int(manifest["rows"]),
                int(manifest["dimension"]),
                partial(final_rows, layout, manifest),
                on_wait,
            )
            manifest.pop("carried", None)
            publish(layout, manifest | describe_file(layout, form, digest))
            return read(layout)
        restore_records(layout, replace(found.final_record, manifest=manifest))
        return found
    except (
        BadVectorsError
    ):  # the disk has damaged it, which size and times in its stamp do not show
        return set_damaged_aside(found, emit)


def restore_records(layout: OutputLayout, record: FinalRecord) -> None:
    """Write the records and side files of a whole final file again if they are lost or changed.

    Raises OSError.
    """
    manifest = record.manifest
    write_side_files(layout, manifest)
    stamp = record.stamp
    touched = not stamp or not stamp.untouched(file_of(layout, manifest))
    if touched or manifest_of(layout) != manifest:
        _write_records(layout, manifest)


def reopen(found: OutputState) -> OutputState:
    """Make a COMPLETE output ENCODING again, by one write. Raises OSError.

    Its final file stays until one made from the chunks replaces it.
    """
    layout = found.layout
    record = found.final_record
    if found.stage is not Stage.COMPLETE or not record:
        return found
    manifest = record.manifest
    stamp = record.stamp or stamp_as(file_of(layout, manifest), digest_in(manifest))
    write_record(layout.done, replace(record, stamp=stamp, reopened=True))
    return read(layout)


def set_damaged_aside(found: OutputState, emit: Emit) -> OutputState:
    """Rename a DAMAGED final file, then remove its manifest and its record. Raises OSError.

    If the run is killed in between, the output is still DAMAGED.
    """
    layout = found.layout
    assert found.final_record
    place = file_of(layout, found.final_record.manifest)
    aside = set_aside(place)
    if aside:
        emit(Note(f"{place} has changed since it was made; it is now {aside.name}"))
    if layout.manifest.is_file():
        layout.manifest.unlink()
    layout.done.unlink(missing_ok=True)
    return read(layout)


def remove_leftovers(layout: OutputLayout, *, keep_chunks: bool) -> None:
    """Remove what a COMPLETE output does not need any more. Raises OSError.

    If the run is killed in between, the next one does the rest.
    """
    for number in layout.generations():
        if number != layout.generation:
            remove_folder(layout.at_generation(number).state)
    clear_partial(layout)
    if not keep_chunks:
        remove_at_once(layout.chunks)  # with the plan that they belong to


# --- side files: the rows table, and the lists of rows


def describe_file(layout: OutputLayout, form: Form, digest: str) -> Manifest:
    """Return the manifest's `format`, `dtype`, `digest`, and `carried` if columns are carried."""
    fields: Manifest = {
        "format": str(form.format),
        "dtype": str(form.dtype),
        "digest": f"sha256:{digest}",
    }
    if form.carried:
        table = {"file": layout.rows_table.name} if form.has_rows_table else {}
        fields["carried"] = {"digest": f"sha256:{form.carried}", **table}
    return fields


def _side_files(layout: OutputLayout, manifest: Manifest) -> dict[Path, str]:
    """Return the path and the sha256, hex, of each side file that the manifest names."""
    records = {
        layout.rows_table: manifest.get("carried"),
        layout.truncated: manifest.get("truncated"),
        layout.quarantined: manifest.get("quarantined_list"),
    }
    return {
        path: digest_in(record) for path, record in records.items() if record and "file" in record
    }


def check_side_files(layout: OutputLayout, manifest: Manifest) -> Iterator[tuple[Path, str | None]]:
    """Give (path, what is wrong with it or None) of each side file. Raises OSError."""
    for path, digest in _side_files(layout, manifest).items():
        other = OTHER_DIGEST if path.exists() else "is missing"
        yield path, None if has_digest(path, digest) else other


def write_side_files(layout: OutputLayout, manifest: Manifest, but: Container[Path] = ()) -> None:
    """Write the side files that are missing or not what the manifest says, except those in `but`.

    A file that is in the way is set aside. Raises OSError.
    """
    sources = {
        layout.rows_table: TableFiles(layout.table).rows,
        layout.truncated: layout.truncated_kept,
        layout.quarantined: layout.quarantined_kept,
    }
    for path, digest in _side_files(layout, manifest).items():
        if path not in but and not has_digest(path, digest) and has_digest(sources[path], digest):
            set_aside(path)
            copy_atomic(sources[path], path, made_in=layout.hidden)


# --- rows without a vector


def list_quarantined(layout: OutputLayout, rows: Iterator[BadRow]) -> Manifest:
    """Write the list of all these rows into the state; return the manifest's fields about them.

    Raises OSError.
    """
    first = list(itertools.islice(rows, MOST_LISTED))
    fields: Manifest = {"quarantined": first, "quarantined_rows": 0}
    if not first:
        layout.quarantined_kept.unlink(missing_ok=True)
        return fields

    def lines() -> Iterator[bytes]:
        for row in itertools.chain(first, rows):
            fields["quarantined_rows"] += 1
            yield json.dumps(row).encode() + b"\n"

    write_atomic(layout.quarantined_kept, lines())
    digest = f"sha256:{digest_file(layout.quarantined_kept)}"
    return fields | {"quarantined_list": {"file": layout.quarantined.name, "digest": digest}}


def all_quarantined(layout: OutputLayout, manifest: Manifest) -> Iterator[BadRow]:
    """Give all rows without a vector, in order, from the manifest or from the list if it is longer.

    Raises DamagedError, OSError.
    """
    if len(manifest["quarantined"]) == manifest["quarantined_rows"]:
        yield from manifest["quarantined"]
        return
    for path in (layout.quarantined_kept, layout.quarantined):
        if has_digest(path, digest_in(manifest["quarantined_list"])):
            with open(path, "rb") as file:
                yield from map(json.loads, file)
            return
    raise DamagedError(str(layout.quarantined))


def rows_without_vector(layout: OutputLayout, manifest: Manifest) -> Numbers:
    """Return the numbers of these rows, rising; raises as `all_quarantined`."""
    found = all_quarantined(layout, manifest)
    return np.fromiter((each["row"] for each in found), dtype=np.int64)
