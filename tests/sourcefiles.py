"""Rows of an id and a text, written as each kind of source that a config may name."""

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ingest_files import wrap

Row = tuple[int, str | None]
"""Its id and its text."""
Rows = Sequence[Row]


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


KINDS: dict[str, Callable[[Path, Rows], str]] = {
    "csv": lambda folder, rows: _cells(folder, rows, "csv"),
    "tsv.gz": lambda folder, rows: _cells(folder, rows, "tsv.gz", "\t"),
    "jsonl": lambda folder, rows: _lines(folder, rows, "jsonl"),
    "jsonl.gz": lambda folder, rows: _lines(folder, rows, "jsonl.gz"),
    "jsonl.zst": lambda folder, rows: _lines(folder, rows, "jsonl.zst"),
    "several": _several,
    "parquet": _parquet,
}
"""Writes the rows into the folder, over what is there; gives the source."""
