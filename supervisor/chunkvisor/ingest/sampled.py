"""A sample of the texts of staged tables, from the shortest to the longest: the same each time."""

from collections.abc import Sequence

import numpy as np

from chunkvisor.ingest.table import StagedTable

_LOOKED_AT = 20_000
"""Texts of a table, evenly spread, among which the sample is chosen by length."""


def sampled(tables: Sequence[StagedTable], count: int) -> list[list[str]]:
    """About so many texts of all tables together, by their shares, at least one of each; a list for each table.

    Raises DamagedError, OSError.
    """
    total, chosen = sum(table.distinct for table in tables), []
    for table in tables:
        numbers = np.arange(0, table.distinct, max(1, table.distinct // _LOOKED_AT))
        picked = pick(table.sizes_of(numbers).tolist(), max(1, round(count * table.distinct / total)))
        chosen.append(table.texts_of(numbers[picked]))
    return chosen


def pick(sizes: Sequence[int], count: int) -> list[int]:
    """Numbers of `count` of the texts, by their sizes: evenly spread from the shortest to the longest."""
    order = sorted(range(len(sizes)), key=lambda number: (sizes[number], number))
    if count >= len(order):
        return sorted(order)
    step = len(order) / count
    return sorted(order[int((place + 0.5) * step)] for place in range(count))
