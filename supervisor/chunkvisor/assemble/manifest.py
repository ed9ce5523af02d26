"""The record of a finished output: its manifest next to the final, a copy in the state, and what lies next to both.

A final counts only if its stamp, or its digest, holds. What lies next to it can be made again: the ranges of int8 are
in the manifest as well, the rows table among the staged texts, and the lists of rows in the state.
"""

import hashlib
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from chunkvisor.assemble.badrows import whole_list
from chunkvisor.assemble.forms import (
    Form,
    all_places,
    form_of,
    partial_of,
    parts_of,
    place_of,
    recorded_parts,
    remove_final,
)
from chunkvisor.sources.table import StagedTable, TableFiles
from chunkvisor.store.artifact import Vectors, pick_rows
from chunkvisor.store.identity import read_fixed
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.ledger import ENCODED, Ledger, PlaceKind, Reuse
from chunkvisor.store.records import (
    DamagedError,
    Stamp,
    digest_file,
    digest_of,
    read_record,
    read_sealed,
    stamp_as,
    write_record,
    write_sealed,
)
from chunkvisor_worker.contract.files import copy_atomic, set_aside, sync_folder, write_atomic, write_blocks

_Read = TypeVar("_Read")
_ROWS_AT_ONCE = 1 << 18


@dataclass(frozen=True, slots=True)
class _Done:
    manifest: dict[str, Any]
    final: tuple[Stamp, ...]
    """Of its file, or of each of its shards."""


@dataclass(frozen=True, slots=True)
class _Announced:
    manifest: dict[str, Any]
    ours: tuple[str, ...]
    """Names of the finals that it replaces."""


def is_manifest(head: bytes) -> bool:
    """Say whether a file that begins like this is one of ours, be it whole or not."""
    return re.match(rb'\{\s*"rows": \d+,\s*"dimension": \d+,', head) is not None


FILE_KEYS = ("format", "dtype", "digest", "shards", "ranges", "carried")
"""Keys of a manifest that `describe_files` gives."""


def describe_files(
    layout: OutputLayout, form: Form, rows: int, digests: Sequence[str], ranges: Vectors | None
) -> dict[str, Any]:
    """Return the manifest's `format`, `dtype` and `digest`; `shards`, `ranges` and `carried` if there are any.

    With shards, `digest` is that of the list of theirs. JSON holds the ranges, float32, to the last digit.
    """
    digests = [f"sha256:{digest}" for digest in digests]
    said: dict[str, Any] = {"format": str(form.format), "dtype": str(form.dtype), "digest": digests[0]}
    if form.shards is not None:
        parts = zip(parts_of(place_of(layout, form), rows, form), digests, strict=True)
        said["digest"] = f"sha256:{digest_of(digests)}"
        said["shards"] = [
            {"file": str(part.path.relative_to(layout.workdir)), "rows": part.rows, "digest": digest}
            for part, digest in parts
        ]
    if ranges is not None:
        (low, high), digest = ranges.tolist(), hashlib.sha256(_npy(ranges)).hexdigest()
        said["ranges"] = {"file": layout.ranges.name, "digest": f"sha256:{digest}", "min": low, "max": high}
    if form.carried is not None:
        table = {"file": layout.rows_table.name} if form.has_rows_table else {}
        said["carried"] = {"digest": f"sha256:{form.carried}", **table}
    return said


def ranges_of(manifest: dict[str, Any]) -> Vectors | None:
    """Return the ranges that the manifest has, if any: float32, shape (2, dimension)."""
    ranges = manifest.get("ranges")
    return None if ranges is None else np.array([ranges["min"], ranges["max"]], dtype=np.float32)


def _npy(ranges: Vectors) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, ranges.astype("<f4", copy=False), allow_pickle=False)
    return buffer.getvalue()


# --- what lies next to a final


def record_cut(
    ledger: Ledger, table: StagedTable, reuse: Reuse | None, on_block: Callable[[], None]
) -> dict[str, Any] | None:
    """Return the manifest's `truncated`, after the cut rows are listed in the state; None if they are not counted.

    Calls `on_block` now and then; it may raise to stop. Raises OSError.
    """
    layout, count = ledger.layout, 0
    if ledger.facts is None or not ledger.facts.counts_cut:
        layout.cut_rows.unlink(missing_ok=True)
        return None
    noted, unknown = {ENCODED: layout.cut_texts(ledger.fingerprint)}, 0
    for number, place in enumerate(reuse.places if reuse is not None else ()):
        there = layout.earlier if place.kind is PlaceKind.EARLIER else OutputLayout(layout.workdir, place.output)
        if place.kind is not PlaceKind.COPY and there.cut_rows.exists():
            noted[number] = there.cut_rows
        else:
            unknown += place.texts

    def tokens_before_the_cut() -> Iterator[bytes]:
        """Give int32 of each row, 0 if it is whole, and write the lines of the list."""
        nonlocal count
        with open(layout.truncated_twin, "wb") as lines:
            for start in range(0, table.rows, _ROWS_AT_ONCE):
                numbers = table.row_text(start, min(start + _ROWS_AT_ONCE, table.rows))
                places, tokens = np.full(len(numbers), ENCODED), np.zeros(len(numbers), dtype="<i4")
                if reuse is not None:
                    where = reuse.where_of(numbers)
                    places, numbers = where["place"], where["row"].astype(np.int64)
                for place, file in noted.items():
                    hits = places == place
                    if file.exists():
                        tokens[hits] = pick_rows(file, "<i4", 0, 1, numbers[hits])[:, 0]
                rows = np.flatnonzero(tokens)
                count += len(rows)
                pairs = zip((rows + start).tolist(), tokens[rows].tolist(), strict=True)
                lines.writelines(b'{"row": %d, "tokens": %d}\n' % pair for pair in pairs)
                yield tokens.tobytes()
                on_block()

    write_blocks(layout.cut_rows, tokens_before_the_cut())
    said = {"rows": count, "texts_not_counted": unknown}
    if not count:
        return said
    return said | {"file": layout.truncated.name, "digest": f"sha256:{digest_file(layout.truncated_twin)}"}


def find_rows_table(layout: OutputLayout, digest: str) -> Path | None:
    """Return the rows table, from the staged texts or from next to the final, if it is there. Raises OSError."""
    return next((path for path in (TableFiles(layout.table).rows, layout.rows_table) if _has(path, digest)), None)


def _sides(layout: OutputLayout, manifest: dict[str, Any]) -> dict[Path, str]:
    """Return the sha256, hex, of each file that lies next to the final."""
    said = {
        layout.ranges: manifest.get("ranges"),
        layout.rows_table: manifest.get("carried"),
        layout.truncated: manifest.get("truncated"),
        layout.quarantined: manifest.get("quarantined_in"),
    }
    there = {path: record for path, record in said.items() if record is not None and "file" in record}
    return {path: record["digest"].removeprefix("sha256:") for path, record in there.items()}


def damaged_sides(layout: OutputLayout, manifest: dict[str, Any]) -> Iterator[tuple[Path, str | None]]:
    """Give (file, what is wrong with it; None = nothing) of all that lies next to the final. Raises OSError."""
    for path, digest in _sides(layout, manifest).items():
        other = (
            "has another digest than the manifest says: it was changed or damaged" if path.exists() else "is missing"
        )
        yield path, None if _has(path, digest) else other


def write_sides(layout: OutputLayout, manifest: dict[str, Any]) -> None:
    """Write what is missing or is not what the manifest says; what stands there is set aside. Raises OSError."""
    sources = {
        layout.rows_table: TableFiles(layout.table).rows,
        layout.truncated: layout.truncated_twin,
        layout.quarantined: layout.quarantined_twin,
    }
    for path, digest in _sides(layout, manifest).items():
        if _has(path, digest):
            continue
        ranges = ranges_of(manifest)
        if path == layout.ranges and ranges is not None:
            set_aside(path)
            write_atomic(path, _npy(ranges), made_in=layout.hidden)
        elif _has(sources[path], digest):
            set_aside(path)
            copy_atomic(sources[path], path, made_in=layout.hidden)


def _has(path: Path, digest: str) -> bool:
    return path.is_file() and digest_file(path) == digest


# --- publishing


def publish(layout: OutputLayout, manifest: dict[str, Any]) -> None:
    """Give the final that is complete under its partial name its own, then write its records. Raises OSError.

    A final of ours that is there stays until one rename replaces it; if it is of another form, in another place, it
    goes once the new one is there. Anything else in that place is set aside. If the run is killed in between,
    `finish_publishing` goes on.
    """
    if (written := partial_of(layout, form_of(manifest))).is_dir():
        sync_folder(written)
    announced = _Announced(manifest, tuple(place.name for place in all_places(layout) if is_ours(layout, place)))
    write_record(layout.publishing, announced)
    _put_in_place(layout, announced)


def finish_publishing(layout: OutputLayout) -> None:
    """Go on where a run was killed that published a final, if that is whole. Raises OSError."""
    announced = _unless_damaged(lambda each: read_record(_Announced, each.publishing), layout)
    if announced is not None:
        manifest, form = announced.manifest, form_of(announced.manifest)
        written, place = partial_of(layout, form), place_of(layout, form)
        if not _is_whole(layout, manifest, written):
            remove_final(written)
        if written.exists() or _is_whole(layout, manifest, place):
            _put_in_place(layout, announced)
    layout.publishing.unlink(missing_ok=True)


def _is_whole(layout: OutputLayout, manifest: dict[str, Any], place: Path) -> bool:
    parts = parts_of(place, manifest["rows"], form_of(manifest))
    recorded = recorded_parts(layout, manifest)
    return all(_has(part.path, digest) for part, (_, digest) in zip(parts, recorded, strict=True))


def _put_in_place(layout: OutputLayout, announced: _Announced) -> None:
    manifest = announced.manifest
    place, written = place_of(layout, form_of(manifest)), partial_of(layout, form_of(manifest))
    if written.exists():
        if place.is_dir() and place.name in announced.ours:
            remove_final(place)  # no rename replaces a folder that is not empty
        if place.is_dir() or place.name not in announced.ours:
            set_aside(place)
        written.replace(place)
        sync_folder(layout.workdir)  # the new one is there before another one goes
    for other in all_places(layout):
        if other != place and other.name in announced.ours:
            remove_final(other)
    write_records(layout, manifest)


def write_records(layout: OutputLayout, manifest: dict[str, Any]) -> None:
    """Write the manifest of files that are in their place, and what lies next to them. Raises OSError."""
    before = _unless_damaged(read_manifest, layout)
    was, now = _sides(layout, before or {}), _sides(layout, manifest)
    for path, digest in was.items():
        if now.get(path) != digest and _has(path, digest):
            path.unlink()
    write_sides(layout, manifest)
    _write_twins(layout, manifest, [stamp_as(part.path, digest) for part, digest in recorded_parts(layout, manifest)])
    layout.publishing.unlink(missing_ok=True)


def _write_twins(layout: OutputLayout, manifest: dict[str, Any], stamps: Sequence[Stamp]) -> None:
    if layout.manifest.is_symlink() or not layout.manifest.is_file():
        set_aside(layout.manifest)
    write_sealed(layout.manifest, manifest, made_in=layout.hidden)
    write_record(layout.done, _Done(manifest, tuple(stamps)))


def is_ours(layout: OutputLayout, place: Path) -> bool:
    """Say whether what is there was published by a run of this workdir, and is as it was. Raises OSError."""
    records = [_unless_damaged(_read_done, each) for each in (layout, layout.earlier)]
    return any(
        done is not None and place_of(layout, form_of(done.manifest)) == place and _holds(layout, done)
        for done in records
    )


# --- reading


def replaces_another(layout: OutputLayout) -> bool:
    """Say whether manifest and final files that are there are those of an earlier generation. Raises OSError."""
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
    """Say whether the final files of the earlier generation are there, with that digest. Raises OSError."""
    done = _unless_damaged(_read_done, layout.earlier)
    return done is not None and done.manifest["digest"] == digest and _holds(layout, done)


def _holds(layout: OutputLayout, done: _Done) -> bool:
    files = [part.path for part, _ in recorded_parts(layout, done.manifest)]
    return len(files) == len(done.final) and all(map(Stamp.holds, done.final, files))


def read_finished(layout: OutputLayout) -> dict[str, Any] | None:
    """Return the manifest of a finished output whose final files are whole; None if it is not finished, or damaged.

    A lost or damaged record is written anew from its twin. A final file is read only if it was touched since it
    was recorded. Raises OSError.
    """
    done, manifest = _unless_damaged(_read_done, layout), _unless_damaged(read_manifest, layout)
    if (done is None and manifest is None) or replaces_another(layout):
        return None
    found = done
    if found is None:
        assert manifest is not None
        parts = [(part.path, digest) for part, digest in recorded_parts(layout, manifest)]
        sizes = [path.stat().st_size if path.exists() else -1 for path, _ in parts]
        stamps = [Stamp(digest, size, 0, 0, 0) for size, (_, digest) in zip(sizes, parts, strict=True)]
        found = _Done(manifest, tuple(stamps))
    record = found.manifest
    if not _holds(layout, found) or ("quarantined_in" in record and whole_list(layout, record) is None):
        return None
    files = [part.path for part, _ in recorded_parts(layout, record)]
    if manifest != record or done is None or not all(map(Stamp.untouched, found.final, files)):
        _write_twins(
            layout, record, [stamp_as(path, stamp.digest) for path, stamp in zip(files, found.final, strict=True)]
        )
    return record


def read_recorded(layout: OutputLayout) -> dict[str, Any] | None:
    """Return the manifest, from either record, whether or not its files are whole; None if neither can be read."""
    done = _unless_damaged(_read_done, layout)
    return done.manifest if done is not None else _unless_damaged(read_manifest, layout)


def read_manifest(layout: OutputLayout) -> dict[str, Any] | None:
    """Return the manifest next to the final file, if there is one. Raises DamagedError, OSError."""
    return read_sealed(layout.manifest)


def read_done_manifest(layout: OutputLayout) -> dict[str, Any] | None:
    """Return the manifest of a finished output; None if it is not finished. Raises DamagedError, OSError.

    Its files are not looked at, but something has to be in their place.
    """
    done = _read_done(layout)
    return done.manifest if done is not None and place_of(layout, form_of(done.manifest)).exists() else None


def read_done_if_whole(layout: OutputLayout) -> dict[str, Any] | None:
    """Return the same; None also if its record is damaged, which a run may mend. Raises OSError."""
    return _unless_damaged(read_done_manifest, layout)


def note_move(layout: OutputLayout, final: Path) -> None:
    """Note that the final file is about to be moved there, as `chunkvisor encode` does. Raises OSError."""
    write_sealed(layout.moved, {"final": os.path.relpath(final, layout.workdir)})


def awaits_move(layout: OutputLayout) -> bool:
    """Say whether `chunkvisor encode` was ended before it had moved the final file: the same command does it."""
    return layout.moved.exists() and layout.final.exists()


def read_moved(layout: OutputLayout, *, retried: bool = False) -> OutputLayout | None:
    """Return where `chunkvisor encode` has put final file and manifest, if that manifest is there. Raises OSError.

    With `retried` also the file of before, after `retry` and until the next run.
    """
    note = _unless_damaged(lambda each: read_sealed(each.moved), layout)
    if note is None or layout.final.exists():
        return None
    final = Path(os.path.normpath(layout.workdir / str(note["final"])))
    there, done = OutputLayout(final.parent, final.stem), _unless_damaged(_read_done, layout)
    manifest = _unless_damaged(read_manifest, there)
    if manifest is None or (done is None and not (retried and not layout.done.exists())):
        return None
    return there if done is None or manifest["digest"] == done.manifest["digest"] else None


def _read_done(layout: OutputLayout) -> _Done | None:
    return read_record(_Done, layout.done)


def _unless_damaged(read: Callable[[OutputLayout], _Read], layout: OutputLayout) -> _Read | None:
    try:
        return read(layout)
    except DamagedError:
        return None
