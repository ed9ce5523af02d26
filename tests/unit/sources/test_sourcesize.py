"""How large a source is, told from its first rows: what the doctor says of the disk before a first run."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from chunkvisor.sources import child
from chunkvisor.sources.child import SourceSize, measure_source
from chunkvisor.sources.resolve import IngestRequest
from chunkvisor.sources.stage import stage
from chunkvisor.sources.table import StagedTable
from ingest_files import write_parquet

ROWS = 4000
LINES = [f"text number {row:06}\n" for row in range(ROWS)]
FILES = {
    "rows.txt": "".join(LINES),
    "rows.csv": "text\n" + "".join(f'"{line[:5]}\n{line[5:]}"\n' for line in LINES),  # each row has three lines
    "rows.jsonl": "".join(f'{{"text": "{line[:-1]}"}}\n' for line in LINES),
    "few.txt": "a\nb\nc\n",
    "part0.txt": "".join(LINES[:500]),
    "part1.txt": "".join(LINES[500:]),
}


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Measures the source of that name, without a child."""

    def stage_table(request: IngestRequest, folder: Path, _on_wait: object, **_: object) -> StagedTable:
        folder.mkdir()
        stage(request, folder)
        return StagedTable.open(folder)

    monkeypatch.setattr(child, "stage_table", stage_table)
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "rows.txt.gz").write_bytes(gzip.compress(FILES["rows.txt"].encode()))
    write_parquet(tmp_path / "rows[1].parquet", "text", [line[:-1] for line in LINES])

    def of(name: str, where: str | None = None) -> SourceSize | None:
        return measure_source(IngestRequest((str(tmp_path / name),), column="text", where=where))

    return of


@pytest.mark.parametrize(
    ("name", "rows", "exact"),
    [
        *(("rows.txt", ROWS, False), ("rows.csv", ROWS, False), ("rows.jsonl", ROWS, False)),
        *(("rows[[]1].parquet", ROWS, True), ("rows[1].parquet", ROWS, True)),
        *(("few.txt", 3, True), ("part*.txt", ROWS, False)),
    ],
)
def test_rows_and_bytes(measure: Any, name: str, rows: int, exact: bool) -> None:
    """Rows are estimated to a percent, or counted; the copy has room for the texts and what is noted of them."""
    size = measure(name)
    assert abs(size.rows - rows) <= rows / 100
    assert size.exact == exact
    assert 40 * rows < size.staged_bytes < 1000 * rows


def test_a_condition(measure: Any) -> None:
    """Of the rows that `where` leaves of the first ones, the share is taken for that of all; none says nothing."""
    size = measure("rows[1].parquet", "text LIKE '%1'")
    assert (size.rows, size.exact) == (ROWS // 10, False)
    assert measure("rows.txt", "text LIKE '%3999'") is None
    assert measure("rows.txt.gz") is None
