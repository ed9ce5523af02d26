"""The rows of a finished output that have no vector: the first in its manifest, and where they are many, all in a file.

That file, `<output>.quarantined.jsonl`, lies beside the manifest, with a twin in the state folder. It has one row a
line, and is written and read a line at a time.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.records import DamagedError, digest_file
from chunkvisor_worker.contract.files import copy_atomic, set_aside, write_blocks

LISTED = 1000
"""Rows in the manifest itself, at most."""


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
    set_aside(layout.quarantined)
    count, digest = 0, hashlib.sha256()

    def lines() -> Iterator[bytes]:
        nonlocal count
        for row in chain(first, more, rows):
            count += 1
            line = json.dumps(row, ensure_ascii=True).encode() + b"\n"
            digest.update(line)
            yield line

    write_blocks(layout.quarantined_twin, lines())
    copy_atomic(layout.quarantined_twin, layout.quarantined, made_in=layout.hidden)
    file = {"file": layout.quarantined.name, "digest": f"sha256:{digest.hexdigest()}"}
    return {"quarantined": first, "quarantined_rows": count, "quarantined_in": file}


def count_of(manifest: dict[str, Any]) -> int:
    """Rows without a vector."""
    return int(manifest.get("quarantined_rows", len(manifest["quarantined"])))


def where_listed(layout: OutputLayout, manifest: dict[str, Any]) -> Path:
    """The file for people that has all of them."""
    return layout.quarantined if "quarantined_in" in manifest else layout.manifest


def every_row(layout: OutputLayout, manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All of them, as they are recorded, in order. Raises DamagedError where the file is not what was written."""
    if "quarantined_in" not in manifest:
        yield from manifest["quarantined"]
        return
    for path in (layout.quarantined, layout.quarantined_twin):
        if holds(path, manifest):
            with open(path, "rb") as file:
                for line in file:
                    yield json.loads(line)
            return
    raise DamagedError(str(layout.quarantined))


def holds(path: Path, manifest: dict[str, Any]) -> bool:
    """Whether the file is the one that was written; it is read through."""
    try:
        return bool(manifest["quarantined_in"]["digest"] == f"sha256:{digest_file(path)}")
    except OSError:
        return False


def mend(layout: OutputLayout, manifest: dict[str, Any]) -> bool:
    """Write a file that is lost or damaged anew from its twin; False where neither can be read. Raises OSError."""
    if "quarantined_in" not in manifest:
        return True
    paths = (layout.quarantined, layout.quarantined_twin)
    good = [path for path in paths if holds(path, manifest)]
    for path in paths:
        if good and path not in good:
            copy_atomic(good[0], path, made_in=layout.hidden)
    return bool(good)


def forget(layout: OutputLayout, manifest: dict[str, Any] | None) -> None:
    """Remove the file that the manifest speaks of. Raises OSError."""
    if manifest is not None and "quarantined_in" in manifest and holds(layout.quarantined, manifest):
        layout.quarantined.unlink()
    layout.quarantined_twin.unlink(missing_ok=True)
