"""The texts of a table that are to be encoded, where others have a vector: numbered by themselves, as chunks are."""

from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from chunkvisor.ingest.table import StagedTable
from chunkvisor.store.reuse import ENCODED, Reuse


@dataclass(frozen=True, slots=True)
class FreshTable(StagedTable):
    """A staged table, in which `distinct` and the numbers of texts are of those that are encoded."""

    full: StagedTable = field(kw_only=True)
    reuse: Reuse = field(kw_only=True)

    def texts(self, start: int, stop: int) -> list[str]:
        """See StagedTable."""
        return self.full.texts_of(self.reuse.texts_of(start, stop))

    def first_row(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """See StagedTable."""
        return self.full.first_rows_of(self.reuse.texts_of(start, stop))

    def row_text(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """See StagedTable; -1 for rows whose text is not encoded."""
        where = self.reuse.where_of(self.full.row_text(start, stop))
        return np.where(where["place"] == ENCODED, where["row"], -1)


def fresh_of(table: StagedTable, reuse: Reuse | None) -> StagedTable:
    """The table as chunks see it."""
    if reuse is None:
        return table
    values = {each.name: getattr(table, each.name) for each in fields(table)}
    return FreshTable(**values | {"distinct": reuse.encoded}, full=table, reuse=reuse)
