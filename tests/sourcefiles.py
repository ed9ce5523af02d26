"""Rows of an id and a text, written as each kind of source that a config may name."""

import csv
import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb

from ingest_files import wrap

Row = tuple[int, str | None]
"""Its id and its text."""
Rows = Sequence[Row]
Source = str | list[str] | dict[str, str]
"""What stands under `source` in the config."""


def _lines(folder: Path, rows: Rows, suffix: str) -> str:
    path = folder / f"rows.{suffix}"
    lines = "".join(json.dumps({"id": id_, "text": text}, ensure_ascii=False) + "\n" for id_, text in rows)
    path.write_bytes(wrap(path.name, lines.encode()))
    return str(path)


def _cells(folder: Path, rows: Rows, suffix: str, delimiter: str = ",") -> str:
    path = folder / f"rows.{suffix}"
    plain = folder / "plain.tmp"
    with plain.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["id", "text"])
        writer.writerows(rows)
    path.write_bytes(wrap(path.name, plain.read_bytes()))
    plain.unlink()
    return str(path)


def _several(folder: Path, rows: Rows) -> str:
    half = len(rows) // 2
    for number, part in enumerate(part for part in (rows[:half], rows[half:]) if part):
        _lines(folder, part, f"{number}.jsonl")
    if not half:
        (folder / "rows.1.jsonl").unlink(missing_ok=True)
    return str(folder / "rows.*.jsonl")


def _arrow(rows: Rows) -> Any:
    import pyarrow as pa

    ids, texts = [id_ for id_, _ in rows], [text for _, text in rows]
    return pa.table({"id": pa.array(ids, pa.int64()), "text": pa.array(texts, pa.string())})


def _parquet(folder: Path, rows: Rows) -> str:
    import pyarrow.parquet as pq

    pq.write_table(_arrow(rows), folder / "rows.parquet", row_group_size=3)
    return str(folder / "rows.parquet")


def _arrow_file(folder: Path, rows: Rows, *, stream: bool = False, name: str = "rows.arrow") -> str:
    import pyarrow as pa

    table, path = _arrow(rows), folder / name
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return str(path)


def _feather(folder: Path, rows: Rows) -> str:
    from pyarrow import feather

    feather.write_feather(_arrow(rows), str(folder / "rows.feather"))
    return str(folder / "rows.feather")


def _saved(folder: Path, rows: Rows) -> str:
    """As `Dataset.save_to_disk` of Hugging Face `datasets` leaves it, which is used where it is installed."""
    place = folder / "saved"
    place.mkdir(exist_ok=True)
    half = -(-len(rows) // 2)
    names = [f"data-{number:05d}-of-00002.arrow" for number in range(2)]
    for name, part in zip(names, (rows[:half], rows[half:]), strict=True):
        _arrow_file(place, part, stream=True, name=name)
    (place / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return str(place)


_QUERY = "SELECT id, text FROM rows ORDER BY place"


def _database(folder: Path, rows: Rows, connect: Callable[[str], Any], name: str) -> dict[str, str]:
    path = folder / name
    path.unlink(missing_ok=True)
    connection = connect(str(path))
    connection.execute("BEGIN")
    connection.execute("CREATE TABLE rows (place BIGINT, id BIGINT, text VARCHAR)")
    # As a table is that has grown: the order on the disk is none.
    placed = [(place, *row) for place, row in enumerate(rows)]
    connection.executemany("INSERT INTO rows VALUES (?, ?, ?)", placed[1::2] + placed[::2])
    connection.commit()
    connection.close()
    return {"database": str(path), "query": _QUERY}


KINDS: dict[str, Callable[[Path, Rows], Source]] = {
    "csv": lambda folder, rows: _cells(folder, rows, "csv"),
    "tsv.gz": lambda folder, rows: _cells(folder, rows, "tsv.gz", "\t"),
    "jsonl": lambda folder, rows: _lines(folder, rows, "jsonl"),
    "jsonl.gz": lambda folder, rows: _lines(folder, rows, "jsonl.gz"),
    "jsonl.zst": lambda folder, rows: _lines(folder, rows, "jsonl.zst"),
    "several": _several,
    "parquet": _parquet,
    "arrow": _arrow_file,
    "arrow stream": lambda folder, rows: _arrow_file(folder, rows, stream=True),
    "feather": _feather,
    "save_to_disk": _saved,
    "duckdb": lambda folder, rows: _database(folder, rows, duckdb.connect, "rows.duckdb"),
    "sqlite": lambda folder, rows: _database(folder, rows, sqlite3.connect, "rows.sqlite"),
}
"""Writes the rows into the folder, over what is there; gives the source."""
