"""De-duplication: which rows share a text, and the texts that are left.

It never holds all rows in memory: DuckDB groups their hashes and spills, and the texts are moved batch by batch.
"""

from collections.abc import Sequence
from pathlib import Path

import duckdb
import numpy as np

from chunkvisor.ingest.table import TableFiles

_FETCH_ROWS = 65_536


def number_texts(connection: duckdb.DuckDBPyConnection, files: TableFiles) -> int:
    """Write `row_text` and `first_row` from the table `hashes`; returns the number of distinct texts.

    Texts are numbered in the order of their first rows. Equal hashes are taken for equal texts, see `spool`.
    """
    connection.execute(
        "CREATE TABLE texts AS SELECT low, high, first, row_number() OVER (ORDER BY first) - 1 AS id "
        "FROM (SELECT low, high, min(row) AS first FROM hashes GROUP BY low, high)"
    )
    _write_column(connection, "SELECT id FROM hashes JOIN texts USING (low, high) ORDER BY row", files.row_text)
    return _write_column(connection, "SELECT first FROM texts ORDER BY id", files.first_row)


def drop_repeats(files: TableFiles, lengths: Path, batches: Sequence[tuple[int, int]]) -> None:
    """Leave only the first of equal texts in the text file, and write `offsets`.

    The file is compacted in place: a text only ever moves towards the start, behind what has been read.
    """
    kept_bytes, last_id = 0, -1
    with (
        open(files.texts, "rb") as source,
        open(files.texts, "r+b") as target,
        open(lengths, "rb") as lengths_file,
        open(files.row_text, "rb") as row_text,
        open(files.offsets, "wb") as offsets,
    ):
        offsets.write(np.zeros(1, dtype="<u8").tobytes())
        for rows, size_bytes in batches:
            text_lengths = np.frombuffer(lengths_file.read(4 * rows), dtype="<u4").astype(np.int64)
            texts = np.frombuffer(source.read(size_bytes), dtype=np.uint8)
            ids = np.frombuffer(row_text.read(8 * rows), dtype="<i8")
            # Ids rise with first rows: a row is the first of its text where its id is higher than any before.
            highest = np.maximum.accumulate(np.concatenate(([last_id], ids)))
            keep = ids > highest[:-1]
            last_id = int(highest[-1])
            ends = kept_bytes + np.cumsum(text_lengths[keep])
            offsets.write(ends.astype("<u8").tobytes())
            if len(ends):
                kept_bytes = int(ends[-1])
                target.write(texts[np.repeat(keep, text_lengths)].tobytes())
        target.truncate(kept_bytes)


def _write_column(connection: duckdb.DuckDBPyConnection, query: str, path: Path) -> int:
    written = 0
    cursor = connection.execute(query)
    with open(path, "wb") as file:
        while batch := cursor.fetchmany(_FETCH_ROWS):
            file.write(np.fromiter((value for (value,) in batch), dtype="<i8", count=len(batch)).tobytes())
            written += len(batch)
    return written
