"""Final files take their place, are made in another form, count no more, or are given up.

And what lies next to them.

A final file is replaced by one rename. What lies next to it can be made again: the rows table from
the staged texts, the lists of rows from the state.
"""

import itertools
import json
from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

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
    file_of,
    form_of,
)
from chunkvisor.outputs.join import final_rows, write_form
from chunkvisor.outputs.state import (
    Found,
    Stage,
    Standing,
    has_digest,
    manifest_of,
    read,
    standing_of,
)
from chunkvisor.sources.table import TableFiles
from chunkvisor.store.artifact import BadVectorsError
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.records import (
    DamagedError,
    digest_file,
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
    sync_folder,
    write_blocks,
)
from chunkvisor_worker.contract.frozen import frozen

MOST_LISTED = 10_000
"""Rows without a vector that a manifest lists. A file of lines has all of them."""


@frozen
class _Announced:
    manifest: dict[str, Any]
    ours: tuple[str, ...]  # names of the finals that it replaces; what else is there is set aside


# --- ENCODING or COMPLETE ──► PUBLISHING ──► COMPLETE


def publish(layout: OutputLayout, manifest: dict[str, Any]) -> None:
    """Give the final file that is complete under its partial name its own, then write its records.

    Raises OSError.

    Killed before the announcement is written, it is as if nothing had been joined; after it,
    `complete_publication` does the rest. The final file of before stands until one rename
    replaces it; one of another form, in another place, goes once the new one is there.
    """
    before = standing_of(layout)
    ours: tuple[str, ...] = ()
    if before is not None and before.holds(layout):
        ours = (file_of(layout, before.manifest).name,)
    announced = _Announced(manifest, ours)
    write_record(layout.publishing, announced)
    _put_in_place(layout, announced)


def complete_publication(layout: OutputLayout) -> Found:
    """Complete a publication that a kill has ended, if its file is whole.

    Each step may be done twice. Raises OSError.

    Else what was announced is forgotten, and its partial file removed.
    """
    layout = read(layout, check_file=False).layout  # which knows the place of the file
    announced = read_if_whole(_Announced, layout.publishing)
    if announced is not None:
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
    standing = standing_of(layout)
    now = _side_files(layout, manifest)
    before = _side_files(layout, standing.manifest if standing is not None else {})
    if written.exists():
        write_side_files(
            layout, manifest, but=before
        )  # what the one before has not is no harm to it
        if place.is_dir() or place.name not in announced.ours:
            set_aside(place)
        written.replace(place)
        sync_folder(place.parent)  # the new one is there before another one goes
    for other in map(layout.file, FinalFormat):
        if other != place and other.name in announced.ours:
            other.unlink(missing_ok=True)
    for path, digest in before.items():
        if now.get(path) != digest and has_digest(path, digest):
            path.unlink()
    write_side_files(layout, manifest)
    _write_records(layout, manifest)
    layout.publishing.unlink(missing_ok=True)


def _write_records(layout: OutputLayout, manifest: dict[str, Any]) -> None:
    """Write the manifest, and the record that makes the output COMPLETE."""
    if layout.manifest.is_symlink() or not layout.manifest.is_file():
        set_aside(layout.manifest)
    write_sealed(layout.manifest, manifest, made_in=layout.hidden)
    stamp = stamp_as(file_of(layout, manifest), digest_in(manifest))
    write_record(layout.done, Standing(manifest, stamp))


# --- from COMPLETE, and from DAMAGED


def ensure_form(
    found: Found, form: Form, more: dict[str, Any], emit: Emit, on_block: Callable[[], None]
) -> Found:
    """Have a COMPLETE output in that form, with what lies next to it.

    `more` goes into its manifest.

    If that cannot be, it is another stage. Killed while it writes another form, it begins that
    again; from the announcement on, see `publish`. Calls `on_block` now and then; it may raise to
    stop. Raises OSError; Halt (78) if the form cannot be made from what is there.
    """
    layout = found.layout
    assert found.standing is not None
    manifest = found.standing.manifest | more
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
            rows = int(manifest["rows"])
            rows_of_it = partial(final_rows, layout, manifest)
            dimension = int(manifest["dimension"])
            digest = write_form(layout, form, rows, dimension, rows_of_it, on_block)
            manifest.pop("carried", None)
            publish(layout, manifest | describe_file(layout, form, digest))
            return read(layout)
        restore_records(layout, replace(found.standing, manifest=manifest))
        return found
    except BadVectorsError:  # it was damaged beneath the file system, which its stamp does not show
        return set_damaged_aside(found, emit)


def restore_records(layout: OutputLayout, standing: Standing) -> None:
    """Write lost records of a whole final file anew, and what lies next to it.

    Raises OSError.
    """
    manifest = standing.manifest
    write_side_files(layout, manifest)
    stamp = standing.stamp
    touched = stamp is None or not stamp.untouched(file_of(layout, manifest))
    if touched or manifest_of(layout) != manifest:
        _write_records(layout, manifest)


def reopen(found: Found) -> Found:
    """Have a COMPLETE output made again from its chunks, in one step. Raises OSError.

    Its final file stays until the new one is there.
    """
    layout = found.layout
    standing = found.standing
    if found.stage is not Stage.COMPLETE or standing is None:
        return found
    stamp = standing.stamp
    if stamp is None:
        stamp = stamp_as(file_of(layout, standing.manifest), digest_in(standing.manifest))
    write_record(layout.done, replace(standing, stamp=stamp, reopened=True))
    return read(layout)


def set_damaged_aside(found: Found, emit: Emit) -> Found:
    """Set aside what is in the place of a DAMAGED final file, then its manifest and record go.

    Raises OSError.

    Killed in between, it is still DAMAGED.
    """
    layout = found.layout
    assert found.standing is not None
    place = file_of(layout, found.standing.manifest)
    if (aside := set_aside(place)) is not None:
        emit(Note(f"{place} has changed since it was made; it is now {aside.name}"))
    if layout.manifest.is_file():
        layout.manifest.unlink()
    layout.done.unlink(missing_ok=True)
    return read(layout)


def remove_leftovers(layout: OutputLayout, *, keep_chunks: bool) -> None:
    """Remove what a COMPLETE output needs no more; killed in between, the next run does the rest.

    Raises OSError.
    """
    for number in layout.generations():
        if number != layout.generation:
            remove_folder(layout.at_generation(number).state)
    clear_partial(layout)
    if not keep_chunks:
        remove_at_once(layout.chunks)  # with the plan that they belong to


# --- what lies next to it


def describe_file(layout: OutputLayout, form: Form, digest: str) -> dict[str, Any]:
    """Return `format`, `dtype` and `digest` of the manifest, and `carried` if there is."""
    said: dict[str, Any] = {
        "format": str(form.format),
        "dtype": str(form.dtype),
        "digest": f"sha256:{digest}",
    }
    if form.carried is not None:
        table = {"file": layout.rows_table.name} if form.has_rows_table else {}
        said["carried"] = {"digest": f"sha256:{form.carried}", **table}
    return said


def _side_files(layout: OutputLayout, manifest: dict[str, Any]) -> dict[Path, str]:
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


def check_side_files(
    layout: OutputLayout, manifest: dict[str, Any]
) -> Iterator[tuple[Path, str | None]]:
    """Give (file, what is wrong with it; None = nothing) of all that lies next to the final.

    Raises OSError.
    """
    for path, digest in _side_files(layout, manifest).items():
        other = OTHER_DIGEST if path.exists() else "is missing"
        yield path, None if has_digest(path, digest) else other


def write_side_files(
    layout: OutputLayout, manifest: dict[str, Any], but: Container[Path] = ()
) -> None:
    """Write what is missing or is not what the manifest says; what stands there is set aside.

    Raises OSError.
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


def list_quarantined(layout: OutputLayout, rows: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Write the list of all these rows into the state; return what the manifest says of them.

    Raises OSError.
    """
    first = list(itertools.islice(rows, MOST_LISTED))
    said: dict[str, Any] = {"quarantined": first, "quarantined_rows": 0}
    if not first:
        layout.quarantined_kept.unlink(missing_ok=True)
        return said

    def lines() -> Iterator[bytes]:
        for row in itertools.chain(first, rows):
            said["quarantined_rows"] += 1
            yield json.dumps(row).encode() + b"\n"

    write_blocks(layout.quarantined_kept, lines())
    digest = f"sha256:{digest_file(layout.quarantined_kept)}"
    return said | {"quarantined_list": {"file": layout.quarantined.name, "digest": digest}}


def all_quarantined(layout: OutputLayout, manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give all rows without a vector, in order: the manifest has the first.

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


def rows_without_vector(layout: OutputLayout, manifest: dict[str, Any]) -> npt.NDArray[np.int64]:
    """Return the numbers of these rows, which rise; raises as `all_quarantined`."""
    found = all_quarantined(layout, manifest)
    return np.fromiter((each["row"] for each in found), dtype=np.int64)
