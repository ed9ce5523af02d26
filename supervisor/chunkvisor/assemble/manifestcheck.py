"""What has to stand in a manifest that is read; one without it is damaged."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunkvisor.assemble import badrows
from chunkvisor.assemble.finalfiles import parts_of
from chunkvisor.assemble.form import Form, form_of
from chunkvisor.assemble.sides import ranges_of
from chunkvisor.config.choices import FinalDtype, FinalFormat
from chunkvisor.store.records import DamagedError
from chunkvisor_worker.contract.wire import from_json


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


def check_manifest(manifest: dict[str, Any], path: Path) -> None:
    """Raise DamagedError where it lacks something."""
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
