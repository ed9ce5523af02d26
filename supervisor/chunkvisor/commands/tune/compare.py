"""What came of the candidates, and which of them is recommended. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from chunkvisor.commands.tune.candidates import Candidate
from chunkvisor.decide.likeness import Likeness

_MATTERS = 1.05


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


def best_of(measured: Sequence[Measured], least_cosine: float) -> Measured | None:
    """The fastest whose vectors are near enough, or one before it that is as fast but for chance; None = there is none.

    They are tried from the plain to the unusual: what gains less than a twentieth is no reason to change a config.
    """
    best: Measured | None = None
    for each in measured:
        if each.fits(least_cosine) and (best is None or each.texts_per_s > best.texts_per_s * _MATTERS):
            best = each
    return best
