"""The rows of a final whose texts were cut at the model's maximum length: how many, and a file that lists them.

A text that was taken over counts as it did where it comes from; if that is not known there, the manifest says of how
many texts.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from chunkvisor.sources.table import StagedTable
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.ledger import Ledger
from chunkvisor.store.pickrows import pick_rows
from chunkvisor.store.reuse import ENCODED, Place, PlaceKind, Reuse
from chunkvisor_worker.contract.files import write_blocks

_ROWS_AT_ONCE = 1 << 18
_LINES_AT_ONCE = 1 << 14  # a row takes 4 bytes as a number, and 100 while it is written as a line


def record(
    ledger: Ledger, table: StagedTable, reuse: Reuse | None, on_block: Callable[[], None]
) -> dict[str, Any] | None:
    """What the manifest says of them, after they are noted by row in the state; None if the encoder does not count.

    Calls `on_block` now and then; it may raise to stop. Raises OSError.
    """
    layout = ledger.layout
    if ledger.facts is None or not ledger.facts.counts_cut:
        layout.cut_rows.unlink(missing_ok=True)
        return None
    own, unknown = layout.cut_texts(ledger.fingerprint), 0
    noted = {ENCODED: own} if own.exists() else {}
    for number, place in enumerate(reuse.places if reuse is not None else ()):
        if (there := _noted_at(layout, place)) is not None and there.exists():
            noted[number] = there
        else:
            unknown += place.texts
    write_blocks(layout.cut_rows, _tokens(table, reuse, noted, on_block))
    count, digest = 0, hashlib.sha256()
    for block, lines in _lines(layout.cut_rows):
        count += block
        digest.update(lines)
        on_block()
    said: dict[str, Any] = {"rows": count, "texts_not_counted": unknown}
    return said | ({"file": layout.truncated.name, "digest": f"sha256:{digest.hexdigest()}"} if count else {})


def write_list(layout: OutputLayout) -> None:
    """Write the file that lists them, a row and its tokens a line. Raises OSError."""
    write_blocks(layout.truncated, (lines for _, lines in _lines(layout.cut_rows)), made_in=layout.hidden)


def _noted_at(layout: OutputLayout, place: Place) -> Path | None:
    """Where it is noted, by row, which of the texts there were cut."""
    if place.kind is PlaceKind.EARLIER:
        return layout.earlier.cut_rows
    return OutputLayout(layout.workdir, place.output).cut_rows if place.kind is PlaceKind.OUTPUT else None


def _tokens(
    table: StagedTable, reuse: Reuse | None, noted: dict[int, Path], on_block: Callable[[], None]
) -> Iterator[bytes]:
    """Of each row the tokens before the cut, 0 if it is whole: int32, a block at a time."""
    for start in range(0, table.rows, _ROWS_AT_ONCE):
        stop = min(start + _ROWS_AT_ONCE, table.rows)
        tokens = np.zeros(stop - start, dtype="<i4")
        if noted:
            numbers = table.row_text(start, stop).astype(np.int64)
            places = np.full(len(numbers), ENCODED, dtype=np.int64)
            if reuse is not None:
                where = reuse.where_of(numbers)
                places, numbers = where["place"].astype(np.int64), where["row"].astype(np.int64)
            for place, file in noted.items():
                hits = places == place
                tokens[hits] = pick_rows(file, "<i4", 0, 1, numbers[hits])[:, 0]
        yield tokens.tobytes()
        on_block()


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(rows, their lines) in order, a block at a time."""
    start = 0
    with open(path, "rb") as file:
        while data := file.read(4 * _LINES_AT_ONCE):
            tokens = np.frombuffer(data, dtype="<i4")
            rows = np.flatnonzero(tokens)
            pairs = zip((rows + start).tolist(), tokens[rows].tolist(), strict=True)
            yield len(rows), b"".join(b'{"row": %d, "tokens": %d}\n' % pair for pair in pairs)
            start += len(tokens)
