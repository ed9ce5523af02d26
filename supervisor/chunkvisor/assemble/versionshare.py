"""How many rows of an output each set of library versions has computed, for the manifest.

Pure but for reading which row has which text.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from chunkvisor.ingest.table import StagedTable
from chunkvisor.store.versions import Stretch


def share_of_rows(
    stretches: Sequence[Stretch], first: Mapping[str, str], table: StagedTable
) -> list[tuple[int, dict[str, str]]]:
    """(rows, versions) for each set of versions, the output's own first."""
    owner = np.zeros(table.distinct, dtype=np.int32)
    sets: list[dict[str, str]] = [dict(first)]
    for stretch in stretches:
        if stretch.versions not in sets:
            sets.append(stretch.versions)
        owner[stretch.start : stretch.stop] = sets.index(stretch.versions)
    rows = np.zeros(len(sets), dtype=np.int64)
    for texts in table.row_blocks():
        rows += np.bincount(owner[texts[texts >= 0]], minlength=len(sets))  # the others' texts are not its own
    return [(int(count), versions) for count, versions in zip(rows, sets, strict=True) if count]
