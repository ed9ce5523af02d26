"""How many rows have a text: asked for few texts, so each question reads once which row has which.

It holds no more than a block of rows.
"""

from collections.abc import Sequence

import numpy as np

from chunkvisor.ingest.table import StagedTable


def rows_of(table: StagedTable, texts: Sequence[int]) -> dict[int, int]:
    """Rows of each of the texts, by its number. Raises DamagedError, OSError."""
    if table.rows == table.distinct:
        return dict.fromkeys(texts, 1)
    wanted = np.unique(np.asarray(texts, dtype=np.int64))
    counts = np.zeros(len(wanted), dtype=np.int64)
    for found in table.row_blocks() if len(wanted) else ():
        hits = found[np.isin(found, wanted)]
        counts += np.bincount(np.searchsorted(wanted, hits), minlength=len(wanted))
    return dict(zip(wanted.tolist(), counts.tolist(), strict=True))
