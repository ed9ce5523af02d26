"""How much of a large source is encoded while the rest is read, and of which sources nothing is."""

from pathlib import Path
from typing import Any

import pytest

from chunkvisor.ingest import headsize
from chunkvisor.ingest.headsize import begins_cheaply, head_rows
from chunkvisor.ingest.request import IngestRequest
from chunkvisor.ingest.sourcesize import SourceSize


def request(folder: Path, size_bytes: int = 1, **wanted: Any) -> IngestRequest:
    """For a file of so many bytes, which nobody reads."""
    path = folder / "rows.jsonl"
    with path.open("wb") as file:
        file.truncate(size_bytes)
    return IngestRequest((str(path),), **{"column": "text", **wanted})


@pytest.mark.parametrize(
    ("size_bytes", "size", "devices", "chunk_size", "rows"),
    [
        (1 << 20, SourceSize(14_700_000, 2_000_000_000), 1, 1000, None),
        (1 << 30, None, 1, 1000, None),
        (1 << 30, SourceSize(1_000_000, 1_000_000_000), 1, 1000, None),
        (1 << 30, SourceSize(14_700_000, 2_000_000_000), 1, 1000, 113_500),
        (1 << 30, SourceSize(14_700_000, 2_000_000_000), 2, 1000, 227_000),
        (1 << 30, SourceSize(14_700_000, 2_000_000_000), 100, 1000, 1_135_000),
        (1 << 30, SourceSize(14_700_000, 2_000_000_000), 1, 100_000, 300_000),
        (1 << 30, SourceSize(14_700_000, 2_000_000_000), 1, 1_000_000, 1_135_000),
    ],
    ids=["small", "no estimate", "soon read", "one device", "two", "many", "large chunks", "very large chunks"],
)
def test_rows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size_bytes: int,
    size: SourceSize | None,
    devices: int,
    chunk_size: int,
    rows: int | None,
) -> None:
    """The rows that the devices are thought to do meanwhile, a twentieth of the source at most, or none."""
    monkeypatch.setattr(headsize, "measure_source", lambda _: size)
    assert head_rows(request(tmp_path, size_bytes), devices, chunk_size) == rows


@pytest.mark.parametrize(
    ("wanted", "cheap"),
    [
        ({}, True),
        ({"column": None, "template": "{a} {b}"}, True),
        ({"columns": ("id",)}, True),
        ({"column": None, "sql": "a || b"}, False),
        ({"where": "a = 1"}, False),
    ],
    ids=str,
)
def test_begins_cheaply(tmp_path: Path, wanted: dict[str, Any], cheap: bool) -> None:
    """What DuckDB might read all rows for has no head."""
    assert begins_cheaply(request(tmp_path, **wanted)) == cheap


def test_what_cannot_be_read_has_none(tmp_path: Path) -> None:
    """Nobody but the reader of a source says what is wrong with it."""
    assert head_rows(IngestRequest((str(tmp_path / "gone.jsonl"),), column="text"), 1, 1000) is None
