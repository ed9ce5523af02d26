"""What the candidates' vectors are worth against those of float32, and which candidate is recommended. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chunkvisor.commands.tune.candidates import Candidate

Vectors = npt.NDArray[np.float32]
"""Of shape (texts, dimension)."""

NEIGHBOURS = 10

_MATTERS = 1.05


@dataclass(frozen=True, slots=True)
class Likeness:
    """How near vectors are to those of float32."""

    mean_cosine: float
    least_cosine: float
    neighbours: float
    """Share of the ten nearest texts, by cosine, that are the same."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What became of a candidate."""

    candidate: Candidate
    texts_per_s: float = 0.0
    """On one device, while it computes; the start of a worker is not in it."""
    likeness: Likeness | None = None
    """None where it failed."""
    problem: str = ""
    """Why it failed."""

    def fits(self, least_cosine: float) -> bool:
        """Whether its vectors are near enough to be recommended."""
        return self.likeness is not None and self.likeness.least_cosine >= least_cosine


def likeness(vectors: Vectors, reference: Vectors) -> Likeness:
    """Compare vectors row by row, and by who is near to whom."""
    one, other = _unit(vectors), _unit(reference)
    cosines = np.einsum("ij,ij->i", one, other)
    cosines[~other.any(axis=1) & ~one.any(axis=1)] = 1.0  # of blank texts, whose vectors may be zero
    return Likeness(float(cosines.mean()), float(cosines.min()), _shared_neighbours(one, other))


def best_of(measured: Sequence[Measured], least_cosine: float) -> Measured | None:
    """The fastest whose vectors are near enough, or one before it that is as fast but for chance; None = there is none.

    They are tried from the plain to the unusual: what gains less than a twentieth is no reason to change a config.
    """
    best: Measured | None = None
    for each in measured:
        if each.fits(least_cosine) and (best is None or each.texts_per_s > best.texts_per_s * _MATTERS):
            best = each
    return best


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
