"""Files in every format, for the ingest tests."""

import csv
import gzip
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb
import pytest

from chunkvisor.sources.table import StagedTable

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Stage = Callable[..., StagedTable]
"""What the fixture `stage_here` gives."""
duckdb_of_today = pytest.mark.skipif(
    duckdb.__version__.startswith("1."),
    reason="DuckDB before 2.0 has no such function, or another answer",
)
"""For rows of tables that `make test-lowest` leaves out."""


def wrap(name: str, data: bytes) -> bytes:
    """The data as a file of that name holds it."""
    if name.endswith(".gz"):
        return gzip.compress(data, mtime=0)  # the same each time: a test may be named by it
    return zstd.compress(data) if name.endswith(".zst") else data


def unwrap(name: str, data: bytes) -> bytes:
    """What a file of that name holds: of several compressed files, one after the other, all."""
    if name.endswith(".gz"):
        return gzip.decompress(data)
    return zstd.decompress(data) if name.endswith(".zst") else data


def rows_of(table: StagedTable) -> list[str]:
    """The text of every row of a table."""
    texts = table.texts(0, table.distinct)
    return [texts[number] for number in table.row_text(0, table.rows)]


def write_texts(path: Path, texts: Sequence[str | None], column: str = "text") -> None:
    """A file whose suffix says the format, with the texts and a column `id` before them (not in
    .txt).
    """
    bare = path.name.removesuffix(".gz").removesuffix(".zst")
    if bare.endswith(".parquet"):
        write_parquet(path, f"id, text AS {column}", texts)
        return
    out = io.StringIO(newline="")
    if bare.endswith((".csv", ".tsv")):
        writer = csv.writer(out, delimiter="\t" if bare.endswith(".tsv") else ",")
        writer.writerow(["id", column])
        writer.writerows([f"{index:03}", text] for index, text in enumerate(texts))
    elif bare.endswith((".jsonl", ".ndjson")):
        out.writelines(
            json.dumps({"id": index, column: text}) + "\n" for index, text in enumerate(texts)
        )
    else:
        out.writelines((text or "") + "\n" for text in texts)
    path.write_bytes(wrap(path.name, out.getvalue().encode()))


def write_parquet(path: Path, select: str, texts: Sequence[str | None] = ("",)) -> None:
    """A parquet file, uncompressed so that tests can alter its bytes; `select` may use `id` and
    `text`.
    """
    plain = path.with_name("plain.parquet")  # DuckDB has its own idea of what a quote in a name is
    with duckdb.connect() as connection:
        columns = [list(range(len(texts))), list(texts)]
        connection.execute(
            "CREATE TABLE source AS SELECT unnest(?::BIGINT[]) AS id, unnest(?::VARCHAR[]) AS text",
            columns,
        )
        connection.execute(
            f"COPY (SELECT {select} FROM source) TO '{plain}' (COMPRESSION uncompressed)"
        )
    plain.rename(path)
