"""Staged tables of given rows, without a source."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from chunkvisor.sources.table import StagedTable, TableFiles, TableRecord, TableSource, seal_table


def first_come_first_numbered(rows: Sequence[int]) -> np.ndarray:
    """The same repetitions, the texts numbered in the order of their first row."""
    numbers: dict[int, int] = {}
    return np.array([numbers.setdefault(text, len(numbers)) for text in rows], dtype="<i8")


def make_table(folder: Path, row_text: np.ndarray) -> StagedTable:
    """A staged table of the rows."""
    folder.mkdir()
    paths = TableFiles(folder)
    distinct = int(row_text.max()) + 1
    texts = [b"%d" % number for number in range(distinct)]
    paths.texts.write_bytes(b"".join(texts))
    np.cumsum([0, *map(len, texts)]).astype("<u8").tofile(paths.offsets)
    row_text.tofile(paths.row_text)
    np.unique(row_text, return_index=True)[1].astype("<i8").tofile(paths.first_row)
    np.bincount(row_text).astype("<i8").tofile(paths.row_count)
    np.arange(1, len(row_text) + 1).tofile(paths.places)
    source = TableSource("/nowhere.txt", True, 0, len(row_text))
    seal_table(folder, TableRecord(len(row_text), distinct, 0, (source,)))
    return StagedTable.open(folder)
