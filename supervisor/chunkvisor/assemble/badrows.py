"""The rows of a finished output that have no vector: the first in its manifest, and if they are many, all in a file.

That file, `<output>.quarantined.jsonl`, lies next to the manifest, and is made again from its twin in the state. It
has one row a line.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from chunkvisor.sources.table import StagedTable
from chunkvisor.store.identity import BadText
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.records import DamagedError, digest_file
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import write_blocks

LISTED = 1000  # rows in the manifest itself, at most


def record(layout: OutputLayout, count: int, rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return what the manifest says of so many rows, after the twin is written that it may need. Raises OSError."""
    rows = iter(rows)
    first = list(islice(rows, LISTED))
    said = {"quarantined": first, "quarantined_rows": count}
    if count <= LISTED:
        layout.quarantined_twin.unlink(missing_ok=True)
        return said
    write_blocks(layout.quarantined_twin, (json.dumps(row).encode() + b"\n" for row in chain(first, rows)))
    digest = f"sha256:{digest_file(layout.quarantined_twin)}"
    return said | {"quarantined_in": {"file": layout.quarantined.name, "digest": digest}}


def count_of(manifest: dict[str, Any]) -> int:
    """Count the rows without a vector."""
    return int(manifest.get("quarantined_rows", len(manifest["quarantined"])))


def where_listed(layout: OutputLayout, manifest: dict[str, Any]) -> Path:
    """Return the file for people that has all of them."""
    return layout.quarantined if "quarantined_in" in manifest else layout.manifest


def every_row(layout: OutputLayout, manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give all of them, in order. Raises DamagedError if no file has what was written."""
    if "quarantined_in" not in manifest:
        yield from manifest["quarantined"]
        return
    if (whole := whole_list(layout, manifest)) is None:
        raise DamagedError(str(layout.quarantined))
    with open(whole, "rb") as file:
        yield from map(json.loads, file)


def whole_list(layout: OutputLayout, manifest: dict[str, Any]) -> Path | None:
    """Return the file or its twin, whichever has what was written. Raises OSError."""
    digest = manifest["quarantined_in"]["digest"].removeprefix("sha256:")
    paths = (layout.quarantined, layout.quarantined_twin)
    return next((path for path in paths if path.is_file() and digest_file(path) == digest), None)


def bad_texts(layout: OutputLayout, manifest: dict[str, Any]) -> dict[int, BadText]:
    """Return them by number; none if the staged texts are gone, which tell the texts of rows. Raises OSError."""
    try:
        rows = list(every_row(layout, manifest))
        texts = StagedTable.open(layout.table).texts_of_rows(np.array([row["row"] for row in rows], dtype=np.int64))
    except DamagedError:
        return {}
    pairs = zip(texts.tolist(), rows, strict=True)
    return {text: BadText(text, Outcome(row["outcome"]), row["reason"]) for text, row in pairs}
