"""The rows of a finished output that have no vector: the first in its manifest, and where they are many, all in a file.

That file, `<output>.quarantined.jsonl`, lies beside the manifest, with a twin in the state folder. It has one row a
line, and is written and read a line at a time.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from chunkvisor.sources.table import StagedTable, rows_of
from chunkvisor.store.identity import BadText
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.ledger import read_quarantine, write_quarantine
from chunkvisor.store.records import DamagedError, digest_file
from chunkvisor.units import counted
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import copy_atomic, set_aside, write_blocks

LISTED = 1000
"""Rows in the manifest itself, at most."""


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


def bad_texts(layout: OutputLayout, manifest: dict[str, Any]) -> dict[int, BadText]:
    """They, by number; none where the staged texts are gone, which tell the texts of rows. Raises OSError."""
    try:
        rows = list(every_row(layout, manifest))
        texts = StagedTable.open(layout.table).texts_of_rows(np.array([row["row"] for row in rows], dtype=np.int64))
    except DamagedError:
        return {}
    found: dict[int, BadText] = {}
    for text, row in zip(texts.tolist(), rows, strict=True):
        found.setdefault(text, BadText(text, Outcome(row["outcome"]), row["reason"]))
    return found


def _rows_of(layout: OutputLayout, texts: set[int]) -> int:
    try:
        table = StagedTable.open(layout.table)
        return sum(rows_of(table, [text for text in texts if text < table.distinct]).values())
    except DamagedError:
        return 0


def mend_records(layout: OutputLayout, manifest: dict[str, Any], chunk_size: int) -> int:
    """Write the records of chunks anew that lack a text which has no vector; returns how many. Raises OSError."""
    if not manifest["quarantined"]:
        return 0
    recorded = {chunk: {bad.text for bad in texts or ()} for chunk, texts in read_quarantine(layout)}
    if _rows_of(layout, set().union(*recorded.values())) == count_of(manifest):
        return 0  # to read each row's line takes long where they are many
    wanted: dict[int, list[BadText]] = {}
    for text, bad in bad_texts(layout, manifest).items():
        wanted.setdefault(text // chunk_size, []).append(bad)
    lost = [chunk for chunk, texts in wanted.items() if recorded.get(chunk) != {bad.text for bad in texts}]
    for chunk in lost:
        write_quarantine(layout, chunk, wanted[chunk])
    return len(lost)


_NUMBERS = re.compile(r"\d+")
"""In which reasons may differ that are the same: of a line, of a text."""
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class BadReason:
    """Why rows have no vector."""

    outcome: str
    """What became of the attempts at them."""
    reason: str
    """Of the first of them; of the others it may differ in numbers."""
    rows: int
    """How many."""

    @property
    def words(self) -> str:
        """`27 rows: crashed: …`."""
        return f"{counted(self.rows, 'row')}: {self.outcome}: {self.reason}"


def reasons_of(rows: Iterable[Mapping[str, Any]]) -> tuple[BadReason, ...]:
    """The reasons of rows as a manifest lists them, the most frequent first."""
    first, counts = dict[tuple[str, str], tuple[str, str]](), dict[tuple[str, str], int]()
    for row in rows:
        outcome, reason = str(row["outcome"]), str(row["reason"])
        key = outcome, _NUMBERS.sub("0", reason)
        first.setdefault(key, (outcome, reason))
        counts[key] = counts.get(key, 0) + 1
    return tuple(BadReason(*first[key], counts[key]) for key in sorted(counts, key=lambda key: -counts[key]))


def reasons_in_words(reasons: Sequence[BadReason], rows: int) -> list[str]:
    """Lines about the reasons of so many rows, of which a manifest may list only the first."""
    if rows == 1:
        return [f"{each.outcome}: {each.reason}" for each in reasons]
    if len(reasons) == 1 and reasons[0].rows == rows:
        return [f"all {rows:,} for the same reason: {reasons[0].outcome}: {reasons[0].reason}"]
    lines = [each.words for each in reasons[:_SHOWN]]
    if others := reasons[_SHOWN:]:
        lines.append(f"{counted(sum(each.rows for each in others), 'row')}: {counted(len(others), 'other reason')}")
    if (unlisted := rows - sum(each.rows for each in reasons)) > 0:
        lines.append(f"{counted(unlisted, 'row')}: see the file that lists all of them")
    return lines
