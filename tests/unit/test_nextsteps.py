"""The last lines of a run: how to use the file."""

from pathlib import Path

import pytest

from chunkvisor.show.lines import how_to_read


@pytest.mark.parametrize(
    ("name", "rows_table", "end"),
    [
        ("out.npy", "", 'mmap_mode="c"); row i is row i of the source'),
        ("out.parquet", "out.rows.parquet", 'read_parquet("/w/out.parquet")'),
        (
            "out.npy",
            "out.rows.parquet",
            "row i of out.rows.parquet next to it, whose source_row is the row of the source",
        ),
    ],
)
def test_how_to_read(name: str, rows_table: str, end: str) -> None:
    """Where rows are left out, row i is not said to be row i of the source."""
    assert how_to_read(Path("/w", name), rows_table).endswith(end)
