"""How long the staged texts are, from the offsets of the table alone.

It never reads a text, and of a large table a sample only.
"""

from dataclasses import dataclass

import numpy as np

from chunkvisor.ingest.table import TableFiles
from chunkvisor.observe.histogram import Distribution, distribution
from chunkvisor.store.layout import OutputLayout

_SAMPLE = 200_000
_BLOCK = 10_000


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of the distinct texts of one output, in bytes of UTF-8."""

    output: str
    distribution: Distribution
    sampled: bool


def lengths_of(layout: OutputLayout) -> Lengths | None:
    """The distribution, or None where no table can be read."""
    try:
        offsets = np.memmap(TableFiles(layout.table).offsets, dtype="<u8", mode="r")
    except (OSError, ValueError):
        return None
    count = len(offsets) - 1
    if count < 1:
        return None
    if count <= _SAMPLE:
        sizes = np.diff(offsets.astype(np.int64))
    else:
        # Blocks all over the table: neighbours are often alike, and single reads would touch every page.
        starts = np.linspace(0, count - _BLOCK, _SAMPLE // _BLOCK).astype(int)
        sizes = np.concatenate([np.diff(offsets[at : at + _BLOCK + 1].astype(np.int64)) for at in starts])
    lengths = np.clip(sizes, 0, np.iinfo(np.int32).max).astype(np.int32)
    return Lengths(layout.name, distribution(lengths, None), count > _SAMPLE)
