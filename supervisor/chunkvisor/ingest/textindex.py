"""Which texts two sources have in common: their hashes, each source's sorted by itself, compared as in a merge.

It holds a block of each at a time, and never a text.
"""

from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor_worker.contract.files import open_regular

RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<i8")])
"""The two halves of a text's hash (BLAKE2b, 128 bits, see `spool`) and the text's first row; sorted, each text once."""

_BLOCK = 1 << 17
"""Records: 3 MiB."""

Rows = npt.NDArray[np.int64]


def records(hashes: npt.NDArray[np.uint64], rows: Rows) -> npt.NDArray[np.void]:
    """The RECORD of each text, by its hash, of shape (texts, 2), and its first row."""
    found = np.empty(len(rows), dtype=RECORD)
    found["low"], found["high"], found["row"] = hashes[:, 0], hashes[:, 1], rows
    return found


def matches(ours: Path, theirs: Path) -> Iterator[tuple[Rows, Rows]]:
    """First rows, here and there, of the texts that both indexes have, some at a time. Raises OSError."""
    with open_regular(ours) as our_file, open_regular(theirs) as their_file:
        here, there = _read(our_file), _read(their_file)
        while len(here) and len(there):
            # Up to the lower of the two ends, nothing in the rest of either file can be equal.
            bound = min(_key(here[-1]), _key(there[-1]))
            our_end, their_end = _upto(here, bound), _upto(there, bound)
            at_ours, at_theirs = _common(here[:our_end], there[:their_end])
            if len(at_ours):
                yield here["row"][at_ours], there["row"][at_theirs]
            here = here[our_end:] if our_end < len(here) else _read(our_file)
            there = there[their_end:] if their_end < len(there) else _read(their_file)


def _read(file: BufferedReader) -> npt.NDArray[np.void]:
    data = file.read(_BLOCK * RECORD.itemsize)
    return np.frombuffer(data[: len(data) // RECORD.itemsize * RECORD.itemsize], dtype=RECORD)


def _key(record: Any) -> tuple[int, int]:
    return int(record["high"]), int(record["low"])


def _upto(block: npt.NDArray[np.void], bound: tuple[int, int]) -> int:
    """How many of the block's records are not above the bound."""
    high, low = (np.uint64(half) for half in bound)
    first, last = (int(np.searchsorted(block["high"], high, side=side)) for side in ("left", "right"))
    return first + int(np.searchsorted(block["low"][first:last], low, side="right"))


def _common(here: npt.NDArray[np.void], there: npt.NDArray[np.void]) -> tuple[Rows, Rows]:
    """Positions of the hashes that both blocks have, in order."""
    if not len(here) or not len(there):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    highs, lows = np.ascontiguousarray(there["high"]), there["low"]
    at = np.searchsorted(highs, here["high"])
    inside = np.minimum(at, len(there) - 1)
    alike = (at < len(there)) & (highs[inside] == here["high"])
    same = alike & (lows[inside] == here["low"])
    for place in np.flatnonzero(alike & ~same):  # two hashes that differ in one half only: hardly ever
        last = int(np.searchsorted(highs, here["high"][place], side="right"))
        hit = at[place] + np.flatnonzero(lows[at[place] : last] == here["low"][place])
        if len(hit):
            inside[place], same[place] = hit[0], True
    return np.flatnonzero(same), inside[same]
