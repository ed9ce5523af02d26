"""How large a source is, told from its first rows: what the doctor says of the disk before a first run."""

import gzip
from pathlib import Path
from typing import Any

import duckdb
import pytest

from chunkvisor.sources import child
from chunkvisor.sources.child import SAMPLE_ROWS, SourceSize, measure_source
from chunkvisor.sources.request import IngestRequest
from chunkvisor.sources.stage import stage
from chunkvisor.sources.table import StagedTable

ROWS = 4000


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Measures the source of that name, without a child."""

    def stage_table(request: IngestRequest, folder: Path, _on_wait: object) -> StagedTable:
        folder.mkdir()
        stage(request, folder)
        return StagedTable.open(folder)

    monkeypatch.setattr(child, "stage_table", stage_table)

    def of(name: str, **wanted: Any) -> SourceSize | None:
        return measure_source(IngestRequest((str(tmp_path / name),), **wanted))

    return of


def make(folder: Path, kind: str) -> dict[str, Any]:
    """Write ROWS rows as `rows.KIND`; returns what a request needs to read them."""
    path, line = folder / f"rows.{kind}", '{{"text": "text number {:06}"}}\n'
    if kind == "parquet":
        with duckdb.connect() as connection:
            connection.execute(f"COPY (SELECT 'text ' || i AS text FROM range({ROWS}) AS t(i)) TO '{path}'")
    elif kind == "txt":
        path.write_text("".join(f"text number {row:06}\n" for row in range(ROWS)))
    elif kind == "csv":  # each row has two lines
        path.write_text("text\n" + "".join(f'"text\nnumber {row:06}"\n' for row in range(ROWS)))
    elif kind == "jsonl":
        path.write_text("".join(line.format(row) for row in range(ROWS)))
    elif kind == "txt.gz":
        path.write_bytes(gzip.compress(b"text\n" * ROWS))
    return {"column": "text"}


@pytest.mark.parametrize(("kind", "exact"), [("txt", False), ("csv", False), ("jsonl", False), ("parquet", True)])
def test_rows_and_bytes(measure: Any, tmp_path: Path, kind: str, exact: bool) -> None:
    """Rows are estimated to a percent, those of parquet are counted; the copy has room for texts and what is noted."""
    size = measure(f"rows.{kind}", **make(tmp_path, kind))
    assert size is not None
    assert abs(size.rows - ROWS) <= ROWS / 100
    assert size.exact == exact
    assert 50 * ROWS < size.staged_bytes < 200 * ROWS


def test_a_condition_counts(measure: Any, tmp_path: Path) -> None:
    """Of the rows that `where` leaves of the first ones, the share is taken for that of all; it is no count."""
    size = measure("rows.parquet", where="text LIKE '%1'", **make(tmp_path, "parquet"))
    assert size is not None
    assert (size.rows, size.exact) == (ROWS // 10, False)


def test_a_name_is_no_pattern(measure: Any, tmp_path: Path) -> None:
    """Of a parquet file whose name a pattern could be, its own rows are counted."""
    given = make(tmp_path, "parquet")
    (tmp_path / "rows.parquet").rename(tmp_path / "rows[1].parquet")
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT 'another' AS text) TO '{tmp_path / 'rows1.parquet'}'")
    size = measure("rows[1].parquet", **given)
    assert size is not None
    assert (size.rows, size.exact) == (ROWS, True)


def test_a_small_source_is_counted(measure: Any, tmp_path: Path) -> None:
    """Where the sample has all rows, nothing is estimated."""
    (tmp_path / "rows.txt").write_text("a\nb\nc\n")
    size = measure("rows.txt", column="text")
    assert size is not None
    assert (size.rows, size.exact) == (3, True)


def test_several_files(measure: Any, tmp_path: Path) -> None:
    """All files count by their size, with the first one as a measure."""
    for number, rows in enumerate((SAMPLE_ROWS // 2, 3 * SAMPLE_ROWS)):
        (tmp_path / f"rows{number}.txt").write_text("text\n" * rows)
    size = measure("rows*.txt", column="text")
    assert size is not None
    assert (size.rows, size.exact) == (3 * SAMPLE_ROWS + SAMPLE_ROWS // 2, False)


def test_what_cannot_be_told(measure: Any, tmp_path: Path) -> None:
    """The size of a compressed file says nothing of its rows."""
    assert measure("rows.txt.gz", **make(tmp_path, "txt.gz")) is None
