"""`chunk.size: auto`: a round size from the rate of an earlier run, which the first run of an
output fixes.
"""

import pytest

from chunkvisor.supervise.opening import propose


@pytest.mark.parametrize(
    ("rate", "entry_s", "workers", "kind", "texts", "words"),
    [
        (69.0, 0.5, 1, "cuda", 3000, "at 69 texts/s of a worker, 43 s a chunk"),
        (50.0, 0.5, 2, "cpu", 1000, "at 25 texts/s of a worker, 40 s a chunk"),
        (0.5, 0.5, 1, "cpu", 100, "at 0.5 texts/s of a worker, 200 s a chunk"),
        (1e6, 0.5, 1, "cuda", 50_000, "at 1e+06 texts/s of a worker, 1 s a chunk"),
        (None, 0.5, 1, "cuda", 3000, "usual for cuda; no rate is known here yet"),
        (None, 0.5, 1, "cpu", 500, "usual for cpu; no rate is known here yet"),
        (100.0, 2.0, 1, "cuda", 20_000, "at 100 texts/s of a worker, 200 s a chunk"),
    ],
)
def test_proposal(
    rate: float | None, entry_s: float, workers: int, kind: str, texts: int, words: str
) -> None:
    """A round number within the bounds, with the reason."""
    assert propose(rate, entry_s, workers, kind) == (texts, words)


def test_within_the_target() -> None:
    """Wherever the bounds allow it, a chunk takes 25 to 60 s."""
    for tenth in range(25, 12_500):
        size, _ = propose(tenth / 10, 0.0, 1, "cuda")
        assert 25 <= size / (tenth / 10) <= 60


def test_entry_stays_small() -> None:
    """A worker that takes seconds to enter its device gets a chunk of which that is under 2 %."""
    for tenth in range(10, 100):
        size, _ = propose(20.0, tenth / 10, 1, "cuda")
        assert tenth / 10 < 0.02 * (size / 20.0 + tenth / 10)
