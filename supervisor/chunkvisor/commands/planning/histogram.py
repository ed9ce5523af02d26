"""The distribution of text lengths: bins, quantiles, what a limit cuts, and the longest."""

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Lengths = npt.NDArray[np.int32]

_LISTED = 3


@dataclass(frozen=True, slots=True)
class Bin:
    """Texts whose length is at least `low` and at most `high`."""

    low: int
    high: int
    count: int


@dataclass(frozen=True, slots=True)
class Distribution:
    """Lengths in short; counts are of the texts that were looked at."""

    count: int
    median: int
    p95: int
    """95 of 100 texts are not longer."""
    longest: int
    bins: tuple[Bin, ...]
    """Each twice as wide as the one before; `max_length` always ends one."""
    truncated: int
    """Texts longer than `max_length`."""
    lost_share: float
    """Of all that the texts have, as much as is beyond `max_length`, from 0 to 1."""


def distribution(lengths: Lengths, max_length: int | None) -> Distribution:
    """Summarise lengths of shape (texts,); without texts all is 0."""
    if not len(lengths):
        return Distribution(0, 0, 0, 0, (), 0, 0.0)
    median, p95 = (int(value) for value in np.quantile(lengths, (0.5, 0.95), method="higher"))
    truncated, lost = 0, 0
    if max_length is not None:
        beyond = np.maximum(lengths.astype(np.int64) - max_length, 0)
        truncated, lost = int(np.count_nonzero(beyond)), int(beyond.sum())
    total = int(lengths.sum(dtype=np.int64))
    longest = int(lengths.max())
    bins = _bins(lengths, longest, max_length)
    return Distribution(len(lengths), median, p95, longest, bins, truncated, lost / total if total else 0.0)


def longest_texts(lengths: Lengths) -> list[int]:
    """Positions of the longest texts, longest first, of equals the first; at most three."""
    # A stable sort of all is dear for a million; only those as long as the third longest come into question.
    if not len(lengths):
        return []
    third = np.partition(lengths, -min(_LISTED, len(lengths)))[-min(_LISTED, len(lengths))]
    candidates = np.flatnonzero(lengths >= third)
    order = np.argsort(-lengths[candidates].astype(np.int64), kind="stable")
    return [int(position) for position in candidates[order][:_LISTED]]


def _bins(lengths: Lengths, longest: int, max_length: int | None) -> tuple[Bin, ...]:
    highs, high = set[int](), 8
    while high < longest:
        highs.add(high)
        high *= 2
    highs.add(high)
    if max_length is not None and max_length < high:
        highs.add(max_length)
    edges = [-1, *sorted(highs)]
    # A bin takes what is above the edge before it, up to and with its own.
    below = [int(np.count_nonzero(lengths <= edge)) for edge in edges]
    return tuple(
        Bin(edge + 1, top, upto - before)
        for (edge, top), (before, upto) in zip(itertools.pairwise(edges), itertools.pairwise(below), strict=True)
    )
