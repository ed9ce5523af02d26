"""The rows of a finished output that have no vector: the first in its manifest, and where they are many, all in a file.

That file, `<output>.quarantined.jsonl`, lies beside the manifest, with a twin in the state folder. It has one row a
line, and is written and read a line at a time.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.seal import DamagedError
from chunkvisor_worker.contract.files import PRIVATE, RESULT, open_new, open_regular, set_aside, sync_folder

LISTED = 1000
"""Rows in the manifest itself, at most."""

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ListFile:
    """A manifest's `quarantined_in`."""

    file: str
    """Its name, for people and for other programs."""
    digest: str
    """`sha256:` and the digest in hex."""


def record(layout: OutputLayout, rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What the manifest says of these rows, after the file is written that it may need. Raises OSError."""
    rows = iter(rows)
    first = list(islice(rows, LISTED))
    more = list(islice(rows, 1))
    if not more:
        return {"quarantined": first, "quarantined_rows": len(first)}
    # No manifest of ours speaks of a file that is there already: it is somebody's.
    set_aside(layout.quarantined, files_too=True)
    count, digest = 0, hashlib.sha256()

    def lines() -> Iterator[bytes]:
        nonlocal count
        for row in chain(first, more, rows):
            count += 1
            line = json.dumps(row, ensure_ascii=True).encode() + b"\n"
            digest.update(line)
            yield line

    _write(layout.quarantined_twin, lines())
    copy(layout.quarantined_twin, layout.quarantined)
    file = {"file": layout.quarantined.name, "digest": f"sha256:{digest.hexdigest()}"}
    return {"quarantined": first, "quarantined_rows": count, "quarantined_in": file}


def count_of(manifest: dict[str, Any]) -> int:
    """Rows without a vector; manifests of earlier versions list all of them."""
    return int(manifest.get("quarantined_rows", len(manifest["quarantined"])))


def every_row(layout: OutputLayout, manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All of them, as they are recorded, in order. Raises DamagedError where the file is not what was written."""
    if "quarantined_in" not in manifest:
        yield from manifest["quarantined"]
        return
    for path in (layout.quarantined, layout.quarantined_twin):
        if holds(path, manifest):
            with open_regular(path) as file:
                for line in file:
                    yield json.loads(line)
            return
    raise DamagedError(str(layout.quarantined))


def holds(path: Path, manifest: dict[str, Any]) -> bool:
    """Whether the file is the one that was written; it is read through."""
    digest = hashlib.sha256()
    try:
        with open_regular(path) as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
    except OSError:
        return False
    return bool(manifest["quarantined_in"]["digest"] == f"sha256:{digest.hexdigest()}")


def mend(layout: OutputLayout, manifest: dict[str, Any]) -> bool:
    """Write a file that is lost or damaged anew from its twin; False where neither can be read. Raises OSError."""
    if "quarantined_in" not in manifest:
        return True
    paths = (layout.quarantined, layout.quarantined_twin)
    good = [path for path in paths if holds(path, manifest)]
    for path in paths:
        if good and path not in good:
            set_aside(path)
            copy(good[0], path, RESULT if path == layout.quarantined else PRIVATE)
    return bool(good)


def forget(layout: OutputLayout, manifest: dict[str, Any] | None) -> None:
    """Remove the file that the manifest speaks of. Raises OSError."""
    if manifest is not None and "quarantined_in" in manifest and holds(layout.quarantined, manifest):
        layout.quarantined.unlink()
    layout.quarantined_twin.unlink(missing_ok=True)


def copy(source: Path, target: Path, mode: int = RESULT) -> None:
    """By one rename, and synced; a result is for others to read. Raises OSError."""
    with open_regular(source) as file:
        _write(target, iter(lambda: file.read(_BLOCK_BYTES), b""), mode)


def _write(path: Path, blocks: Iterable[bytes], mode: int = PRIVATE) -> None:
    """As `write_atomic`, but a block at a time."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        set_aside(temporary)
        with open_new(temporary, mode) as file:
            file.writelines(blocks)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)
