"""The last lines of a run: how to use the file."""

from pathlib import Path

import pytest

from chunkvisor.assemble.forms import Form
from chunkvisor.config.choices import FinalFormat
from chunkvisor.show.lines import how_to_read

TABLE = FinalFormat.PARQUET


@pytest.mark.parametrize(
    ("form", "rows_table", "end"),
    [
        (Form(), "", 'mmap_mode="c"); row i is row i of the source'),
        (Form(2), "", "in the order of their names; row i is row i of the source"),
        (Form(format=TABLE), "out.rows.parquet", 'read_parquet("/w/out")'),
        (
            Form(),
            "out.rows.parquet",
            "row i of out.rows.parquet next to it, whose source_row is the row of the source",
        ),
    ],
)
def test_how_to_read(form: Form, rows_table: str, end: str) -> None:
    """Where rows are left out, row i is not said to be row i of the source."""
    assert how_to_read(Path("/w/out"), form, rows_table).endswith(end)
