"""The record of a finished output: its manifest beside the final file, and a copy in its state folder.

It never takes a final file for good by its name alone: its stamp, or its digest, has to hold.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from chunkvisor import __version__
from chunkvisor.assemble import Final
from chunkvisor.layout import OutputLayout
from chunkvisor.seal import DamagedError, read_record, read_sealed, write_sealed
from chunkvisor.stamp import Stamp, stamp_as
from chunkvisor_worker.contract.messages import EncodeSpec, Facts, ModelSpec, from_json

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
class _Needed:
    """What is read of a manifest; it has more, for people and for other programs."""

    rows: int
    dimension: int
    digest: str
    fingerprint: str
    zero_rows: int
    quarantined: tuple[_Row, ...]


@dataclass(frozen=True, slots=True)
class _DoneRecord:
    manifest: dict[str, Any]
    final: Stamp


def build_manifest(
    fingerprint: str,
    final: Final,
    facts: Facts,
    model: ModelSpec,
    encode: EncodeSpec,
    origin: Origin,
    quarantined: list[dict[str, Any]],
) -> dict[str, Any]:
    """The manifest as plain values; sizes and counts are plain numbers."""
    return {
        "rows": origin.rows,
        "dimension": final.dimension,
        "dtype": "float32",
        "digest": f"sha256:{final.stamp.digest}",
        "fingerprint": fingerprint,
        "quarantined": quarantined,
        "distinct_texts": origin.distinct_texts,
        "zero_rows": final.zero_rows,
        "model": {
            "name": model.name,
            "revision": model.revision,
            "dtype": facts.dtype or model.dtype,
            "max_length": facts.max_length if facts.max_length is not None else model.max_length,
            "encoder": model.encoder,
        },
        "encode": {
            "normalize": encode.normalize,
            "prompt": encode.prompt,
            "prompt_name": encode.prompt_name,
            "truncate_dim": encode.truncate_dim,
        },
        "source": {"files": origin.files, "digest": origin.digest},
        "versions": {"chunkvisor": __version__, **facts.versions},
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def publish_manifest(layout: OutputLayout, manifest: dict[str, Any], stamp: Stamp) -> None:
    """Write the manifest and the record of the finished output. Raises OSError."""
    write_sealed(layout.manifest, manifest)
    write_sealed(layout.done, asdict(_DoneRecord(manifest, stamp)))


def read_finished(layout: OutputLayout) -> dict[str, Any] | None:
    """The manifest of a finished output whose final file is whole; None where it is not finished, or damaged.

    A lost or damaged record is written anew from its twin. The final file is read only if it was touched since it
    was recorded. Raises OSError.
    """
    done, manifest = _unless_damaged(_read_done, layout), _unless_damaged(read_manifest, layout)
    if done is not None:
        record, stamp = done.manifest, done.final
    elif manifest is not None:
        record, stamp = manifest, Stamp(manifest["digest"].removeprefix("sha256:"), _size(layout), 0, 0, 0)
    else:
        return None
    if not stamp.holds(layout.final):
        return None
    if manifest != record or done is None or not stamp.untouched(layout.final):
        publish_manifest(layout, record, stamp_as(layout.final, stamp.digest))
    return record


def read_manifest(layout: OutputLayout) -> dict[str, Any] | None:
    """The manifest beside the final file, or None where there is none. Raises DamagedError, OSError."""
    content = read_sealed(layout.manifest)
    if content is not None:
        _check(content, layout.manifest)
    return content


def read_quarantined(layout: OutputLayout) -> list[dict[str, Any]] | None:
    """The quarantined rows of a finished output; None where it is not finished. Raises DamagedError, OSError."""
    done = _read_done(layout)
    return None if done is None else list(done.manifest["quarantined"])


def _read_done(layout: OutputLayout) -> _DoneRecord | None:
    done = read_record(_DoneRecord, layout.done)
    if done is not None:
        _check(done.manifest, layout.done)
    return done


def _check(manifest: dict[str, Any], path: Path) -> None:
    if from_json(_Needed, json.dumps(manifest)) is None:
        raise DamagedError(str(path))


def _unless_damaged(read: Callable[[OutputLayout], _Read], layout: OutputLayout) -> _Read | None:
    try:
        return read(layout)
    except DamagedError:
        return None


def _size(layout: OutputLayout) -> int:
    return layout.final.stat().st_size if layout.final.exists() else -1
