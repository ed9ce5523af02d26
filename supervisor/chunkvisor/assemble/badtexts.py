"""The texts of a finished output that have no vector, as its manifest has them: what a lost record is made of again."""

from typing import Any

import numpy as np

from chunkvisor.assemble.badrows import count_of, every_row
from chunkvisor.decide.bisect import BadText
from chunkvisor.sources.table import StagedTable, rows_of
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.ledger import read_quarantine, write_quarantine
from chunkvisor.store.records import DamagedError
from chunkvisor_worker.contract.exits import Outcome


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
