"""The last lines of a run: how to use the file."""

from pathlib import Path

import pytest

from chunkvisor.assemble.forms import Form
from chunkvisor.config.choices import FinalFormat
from chunkvisor.show.lines import how_to_read

TABLE = FinalFormat.PARQUET
SOURCE_ROW = "source_row there is the row of the source"


@pytest.mark.parametrize(
    ("form", "rows_table", "end"),
    [
        (Form(), None, 'mmap_mode="r"); row i is row i of the source'),
        (Form(2), None, "in the order of their names; row i of the source is row i of them all"),
        (Form(format=TABLE), None, 'read_parquet("/w/out")'),
        (Form(), "out.rows.parquet", f"row i is row i of out.rows.parquet next to it, and {SOURCE_ROW}"),
        (Form(2), "out.rows.parquet", f"row i is row i of out.rows.parquet next to it, and {SOURCE_ROW}"),
        (Form(format=TABLE), "out.rows.parquet", 'read_parquet("/w/out"); ' + SOURCE_ROW),
        (Form(2, TABLE), "out.rows.parquet", f"of their names; {SOURCE_ROW}"),
    ],
)
def test_how_to_read(form: Form, rows_table: str | None, end: str) -> None:
    """Where rows are left out, row i is not said to be row i of the source."""
    assert how_to_read(Path("/w/out"), form, rows_table).endswith(end)
