"""How many rows have a text."""

import numpy as np
import pytest

from chunkvisor.sources import table
from chunkvisor.sources.table import StagedTable, rows_of


class Table:
    """Seven rows of three texts."""

    rows, distinct = 7, 3
    row_blocks = StagedTable.row_blocks

    def row_text(self, start: int, stop: int) -> object:
        """As of a staged table."""
        return np.array([0, 1, 1, 2, 1, 0, 1])[start:stop]


def test_rows_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text has its own count, over blocks of rows; none is asked for, none is told."""
    monkeypatch.setattr(table, "_ROWS_AT_ONCE", 2)
    assert rows_of(Table(), [1, 0]) == {0: 2, 1: 4}  # type: ignore[arg-type]  # all that it asks
    assert rows_of(Table(), []) == {}  # type: ignore[arg-type]  # all that it asks
