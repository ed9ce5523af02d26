"""What lies next to a final: the ranges of int8, the rows table, and the list of rows whose texts were cut.

The ranges are in the manifest as well, the table among the staged texts, and the list in the state, so that each can be
made again.
"""

import hashlib
import io
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from chunkvisor.sources.table import StagedTable, TableFiles
from chunkvisor.store.artifact import Vectors, pick_rows
from chunkvisor.store.layout import OutputLayout
from chunkvisor.store.ledger import ENCODED, Ledger, Place, PlaceKind, Reuse
from chunkvisor.store.records import digest_file
from chunkvisor_worker.contract.files import copy_atomic, set_aside, write_atomic, write_blocks

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


def describe_ranges(layout: OutputLayout, ranges: Vectors) -> dict[str, Any]:
    """The manifest's `ranges`: float32, shape (2, dimension), which JSON holds to the last digit."""
    low, high = (line.tolist() for line in ranges)
    digest = hashlib.sha256(_npy(ranges)).hexdigest()
    return {"file": layout.ranges.name, "digest": f"sha256:{digest}", "min": low, "max": high}


def ranges_of(manifest: dict[str, Any]) -> Vectors | None:
    """The ranges that the manifest has, None where it has none. Raises KeyError, ValueError for what are no ranges."""
    if "ranges" not in manifest:
        return None
    ranges = np.array([manifest["ranges"]["min"], manifest["ranges"]["max"]], dtype=np.float32)
    if ranges.shape != (2, manifest["dimension"]):
        raise ValueError(ranges.shape)
    return ranges


def side_files(layout: OutputLayout, manifest: dict[str, Any]) -> list[tuple[Path, str]]:
    """(file, its sha256 in hex) of all that lies beside the final."""
    beside = {
        layout.ranges: manifest.get("ranges"),
        layout.rows_table: manifest.get("carried"),
        layout.truncated: manifest.get("truncated"),
    }
    found = [(path, record["digest"]) for path, record in beside.items() if record is not None and "file" in record]
    return [(path, digest.removeprefix("sha256:")) for path, digest in found]


def digest_of_rows_table(manifest: dict[str, Any]) -> str:
    """sha256 of the rows table that is carried along, hex. Raises KeyError where there is none."""
    return str(manifest["carried"]["digest"]).removeprefix("sha256:")


def damaged_sides(layout: OutputLayout, manifest: dict[str, Any]) -> Iterator[tuple[Path, str | None]]:
    """(file, what is wrong with it; None = nothing) of all that lies beside the final. Raises OSError."""
    for path, digest in side_files(layout, manifest):
        if not path.exists():
            yield path, "is missing"
        else:
            as_recorded = digest_file(path) == digest
            yield path, None if as_recorded else "has another digest than the manifest says: it was changed or damaged"


def find_rows_table(layout: OutputLayout, digest: str) -> Path | None:
    """The rows table: among the staged texts, or beside the final; None where it is nowhere. Raises OSError."""
    places = (TableFiles(layout.table).rows, layout.rows_table)
    return next((place for place in places if place.exists() and digest_file(place) == digest), None)


def write_sides(layout: OutputLayout, manifest: dict[str, Any]) -> None:
    """Write what is missing or is not what the manifest says; what stands there is set aside. Raises OSError."""
    for path, problem in damaged_sides(layout, manifest):
        if problem is None:
            continue
        if path == layout.ranges:
            ranges = ranges_of(manifest)
            assert ranges is not None
            set_aside(path)
            write_atomic(path, _npy(ranges), made_in=layout.hidden)
        elif path == layout.truncated:
            if layout.cut_rows.exists():
                set_aside(path)
                write_list(layout)
        else:
            there = find_rows_table(layout, digest_of_rows_table(manifest))
            if there is None:
                continue  # the next run stages it again
            set_aside(path)
            copy_atomic(there, path, made_in=layout.hidden)


def remove_sides(layout: OutputLayout, manifest: dict[str, Any], but: Collection[Path] = ()) -> None:
    """Remove what is as the manifest says, but for some. Raises OSError."""
    for path, problem in damaged_sides(layout, manifest):
        if problem is None and path not in but:
            path.unlink()


def _npy(ranges: Vectors) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, ranges.astype("<f4", copy=False), allow_pickle=False)
    return buffer.getvalue()
