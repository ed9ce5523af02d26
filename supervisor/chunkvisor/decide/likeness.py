"""How near vectors are to those of float32: row by row, and by who is near to whom. Pure."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
"""Of shape (texts, dimension)."""

NEIGHBOURS = 10


@dataclass(frozen=True, slots=True)
class Likeness:
    """How near vectors are to those of float32."""

    mean_cosine: float
    least_cosine: float
    neighbours: float
    """Share of the ten nearest texts, by cosine, that are the same."""


def likeness(vectors: Vectors, reference: Vectors) -> Likeness:
    """Compare vectors row by row, and by who is near to whom."""
    one, other = _unit(vectors), _unit(reference)
    cosines = np.einsum("ij,ij->i", one, other)
    cosines[~other.any(axis=1) & ~one.any(axis=1)] = 1.0  # of blank texts, whose vectors may be zero
    return Likeness(float(cosines.mean()), float(cosines.min()), _shared_neighbours(one, other))


def _unit(vectors: Vectors) -> npt.NDArray[np.float64]:
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    unit: npt.NDArray[np.float64] = np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0)
    return unit


def _shared_neighbours(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
    count = min(NEIGHBOURS, len(one) - 1)
    if count < 1:
        return 1.0
    found = [_nearest(vectors, count) for vectors in (one, other)]
    shared = [len(np.intersect1d(a, b)) for a, b in zip(*found, strict=True)]
    return float(np.mean(shared)) / count


def _nearest(vectors: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.intp]:
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    nearest: npt.NDArray[np.intp] = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
    return nearest
