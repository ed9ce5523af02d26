"""The record of a finished output: its manifest beside the final file, and a copy in its state folder.

A final file counts only if its stamp, or its digest, holds.
"""

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from chunkvisor.assemble import badrows
from chunkvisor.assemble.finalfiles import FinalPart, parts_of, place_of
from chunkvisor.assemble.form import Form, form_of
from chunkvisor.assemble.join import Final
from chunkvisor.assemble.sides import describe_ranges, ranges_of
from chunkvisor.config.choices import FinalDtype, FinalFormat
from chunkvisor.store.artifact import Vectors
from chunkvisor.store.fixed import read_fixed
from chunkvisor.store.outputlayout import OutputLayout
from chunkvisor.store.seal import DamagedError, digest_of, read_record, read_sealed, write_sealed
from chunkvisor.store.stamp import Stamp, stamp_as
from chunkvisor.version import __version__
from chunkvisor_worker.contract.files import RESULT
from chunkvisor_worker.contract.messages import EncodeSpec, Facts, ModelSpec
from chunkvisor_worker.contract.wire import from_json

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the rows of an output come from."""

    rows: int
    distinct_texts: int
    digest: str
    """Of the texts and their order."""
    files: list[str]


@dataclass(frozen=True, slots=True)
class _Row:
    """One of a manifest's quarantined rows."""

    row: int
    outcome: str
    reason: str
    place: str


@dataclass(frozen=True, slots=True)
class _Shard:
    """One of a manifest's shards."""

    file: str
    """Relative to the manifest."""
    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class _Needed:
    """What is read of a manifest; it has more, for people and for other programs."""

    rows: int
    dimension: int
    digest: str
    fingerprint: str
    zero_rows: int
    quarantined: tuple[_Row, ...]
    format: FinalFormat = FinalFormat.NPY
    dtype: FinalDtype = FinalDtype.FLOAT32
    shards: tuple[_Shard, ...] | None = None
    """None = the final is one file."""
    quarantined_rows: int | None = None
    """None = all of them are in `quarantined`, as in earlier versions."""
    quarantined_in: badrows.ListFile | None = None


@dataclass(frozen=True, slots=True)
class _DoneRecord:
    manifest: dict[str, Any]
    final: tuple[Stamp, ...]
    """Of its file, or of each of its shards."""


def is_manifest(head: bytes) -> bool:
    """Whether a file that begins like this is one of ours, be it whole or not."""
    return re.match(rb'\{\s*"rows": \d+,\s*"dimension": \d+,', head) is not None


def build_manifest(
    layout: OutputLayout,
    form: Form,
    fingerprint: str,
    final: Final,
    facts: Facts,
    model: ModelSpec,
    encode: EncodeSpec,
    origin: Origin,
    quarantined: dict[str, Any],
) -> dict[str, Any]:
    """The manifest as plain values; sizes and counts are plain numbers. `quarantined` is what `badrows.record` says."""
    return {
        "rows": origin.rows,
        "dimension": final.dimension,
        **describe_files(layout, form, origin.rows, final.stamps, final.ranges),
        "fingerprint": fingerprint,
        **quarantined,
        "distinct_texts": origin.distinct_texts,
        "zero_rows": final.zero_rows,
        "model": {
            "name": model.name,
            "revision": model.revision,
            "dtype": facts.dtype or model.dtype,
            "max_length": facts.max_length if facts.max_length is not None else model.max_length,
            "encoder": model.encoder,
            "backend": model.backend,
        },
        "encode": {
            "normalize": encode.normalize,
            "prompt": encode.prompt,
            "prompt_name": encode.prompt_name,
            "truncate_dim": encode.truncate_dim,
        },
        "source": {"files": origin.files, "digest": origin.digest},
        **({"linear": asdict(facts.linear)} if facts.linear else {}),
        "versions": {"chunkvisor": __version__, **facts.versions},
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


FILE_KEYS = ("format", "dtype", "digest", "shards", "ranges", "carried")
"""Keys of a manifest that `describe_files` gives."""


def describe_files(
    layout: OutputLayout, form: Form, rows: int, stamps: Sequence[Stamp], ranges: Vectors | None
) -> dict[str, Any]:
    """The manifest's `format`, `dtype` and `digest`; `shards`, `ranges` and `carried` where there are any.

    With shards, `digest` is that of the list of theirs.
    """
    said = {"format": str(form.format), "dtype": str(form.dtype)}
    beside = {} if ranges is None else {"ranges": describe_ranges(layout, ranges)}
    if form.carried is not None:
        beside["carried"] = {"digest": f"sha256:{form.carried}"}
        if form.has_rows_table:
            beside["carried"]["file"] = layout.rows_table.name
    digests = [f"sha256:{stamp.digest}" for stamp in stamps]
    if form.shards is None:
        return said | {"digest": digests[0]} | beside
    parts = parts_of(place_of(layout, form), rows, form)
    listed = [
        {"file": str(part.path.relative_to(layout.workdir)), "rows": part.rows, "digest": digest}
        for part, digest in zip(parts, digests, strict=True)
    ]
    return said | {"digest": f"sha256:{digest_of(digests)}", "shards": listed} | beside


def recorded_parts(layout: OutputLayout, manifest: dict[str, Any]) -> list[tuple[FinalPart, str]]:
    """(file, its sha256 in hex) of all that the manifest describes."""
    form = form_of(manifest)
    records = [manifest] if form.shards is None else manifest["shards"]
    parts = parts_of(place_of(layout, form), manifest["rows"], form)
    return [(part, record["digest"].removeprefix("sha256:")) for part, record in zip(parts, records, strict=True)]


def publish_manifest(layout: OutputLayout, manifest: dict[str, Any], stamps: Sequence[Stamp]) -> None:
    """Write the manifest and the record of the finished output. Raises OSError."""
    write_sealed(layout.manifest, manifest, mode=RESULT)
    write_sealed(layout.done, asdict(_DoneRecord(manifest, tuple(stamps))))
    layout.publishing.unlink(missing_ok=True)


def announce(layout: OutputLayout, manifest: dict[str, Any]) -> None:
    """Note the manifest of a final that is about to take the place of an earlier one. Raises OSError."""
    write_sealed(layout.publishing, {"manifest": manifest})


def finish_publishing(layout: OutputLayout) -> None:
    """Write the records of a final that was announced and then published, by a run that was killed. Raises OSError.

    An announced one that has not appeared is forgotten: it will be joined again.
    """
    announced = _unless_damaged(_read_announced, layout)
    if announced is not None:
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
    return manifest is not None and fixed is not None and manifest["fingerprint"] != fixed.identity.fingerprint


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
    content = read_sealed(layout.manifest)
    if content is not None:
        _check(content, layout.manifest)
    return content


def read_done_manifest(layout: OutputLayout) -> dict[str, Any] | None:
    """The manifest of a finished output; None where it is not finished. Raises DamagedError, OSError.

    Its files are not looked at, but something has to be in their place.
    """
    done = _read_done(layout)
    if done is None or not place_of(layout, form_of(done.manifest)).exists():
        return None
    return done.manifest


def _read_done(layout: OutputLayout) -> _DoneRecord | None:
    done = read_record(_DoneRecord, layout.done)
    if done is not None:
        _check(done.manifest, layout.done)
    return done


def _read_announced(layout: OutputLayout) -> dict[str, Any] | None:
    content = read_sealed(layout.publishing)
    manifest = content.get("manifest") if content is not None else None
    if isinstance(manifest, dict):
        _check(manifest, layout.publishing)
        return manifest
    return None


def _check(manifest: dict[str, Any], path: Path) -> None:
    needed = from_json(_Needed, json.dumps(manifest))
    if needed is None or ("shards" in manifest and not _cut_evenly(needed)) or not _with_ranges(manifest):
        raise DamagedError(str(path))


def _with_ranges(manifest: dict[str, Any]) -> bool:
    """Whether there are ranges just where they belong."""
    try:
        return (ranges_of(manifest) is not None) == (form_of(manifest).dtype is FinalDtype.INT8)
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def _cut_evenly(manifest: _Needed) -> bool:
    """Whether the shards are those that we would make: paths come from us, not from a file."""
    shards = manifest.shards or ()
    form = Form(len(shards), manifest.format, manifest.dtype)
    parts = parts_of(Path(), manifest.rows, form) if shards and manifest.rows > 0 else []
    named = [(Path(shard.file).name, shard.rows) for shard in shards]
    return bool(parts) and named == [(part.path.name, part.rows) for part in parts]


def _unless_damaged(read: Callable[[OutputLayout], _Read], layout: OutputLayout) -> _Read | None:
    try:
        return read(layout)
    except DamagedError:
        return None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1
