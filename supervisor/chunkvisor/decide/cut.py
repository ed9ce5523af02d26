"""Which vectors can be cut from others instead of being encoded: where that is the arithmetic of the worker, to 1e-6.

A worker cuts a vector to its first `truncate_dim` numbers, then normalizes them, in the dtype of the model. To leave
numbers out is exact in every dtype. To normalize is the same here only in float32, to a few parts in 10^7. A vector
that was normalized before it is cut comes out the same once it is normalized again, since only its length differs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

FLOAT32 = "float32"


@dataclass(frozen=True, slots=True)
class Shape:
    """What an output wants of the vectors that a model computes."""

    truncate_dim: int | None = None
    """None = all numbers."""
    normalize: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """What is done to a vector to make another one of it, in this order; by default nothing."""

    dimension: int | None = None
    """The first numbers are kept, as many as this; None = all."""
    normalize: bool = False

    def __bool__(self) -> bool:
        """Whether anything is done."""
        return self != Cut()

    def __str__(self) -> str:
        kept = f"cut to {self.dimension:,} numbers" if self.dimension is not None else ""
        return " and ".join(filter(None, [kept, "normalized" if self.normalize else ""]))

    def is_exact(self, dtype: str | None) -> bool:
        """Whether it gives what a worker gives that computes in this dtype; None = not known."""
        return not self.normalize or dtype == FLOAT32


def cut_between(there: Shape, wanted: Shape) -> Cut | None:
    """What makes vectors as they are wanted of those that are there; None where nothing does."""
    if there.normalize and not wanted.normalize:
        return None
    if wanted.truncate_dim == there.truncate_dim:
        return Cut(None, normalize=wanted.normalize and not there.normalize)
    # What all numbers are, nobody knows here: a longer vector cannot be had, and `null` may be longer.
    if wanted.truncate_dim is None or (there.truncate_dim is not None and there.truncate_dim < wanted.truncate_dim):
        return None
    return Cut(wanted.truncate_dim, normalize=wanted.normalize)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One output, as far as it matters to others."""

    encoding: str
    """Fingerprint of all that makes its vectors, but for their shape."""
    shape: Shape
    gives: bool = True
    """Whether its final holds the vectors as they are, so that others can take them."""


def in_order(outputs: Sequence[Wanted]) -> list[int]:
    """Their numbers in the order in which to encode them: one that serves others before these, else as they are."""
    left, found = list(range(len(outputs))), list[int]()
    while left:
        ready = (each for each in left if not any(_serves(outputs[other], outputs[each]) for other in left))
        found.append(next(ready))
        left.remove(found[-1])
    return found


def _serves(one: Wanted, other: Wanted) -> bool:
    """Whether the other can take over from the one, and not the other way round."""
    return _gives(one, other) and not _gives(other, one)


def _gives(one: Wanted, other: Wanted) -> bool:
    alike = one.gives and one.encoding == other.encoding
    return alike and cut_between(one.shape, other.shape) is not None
