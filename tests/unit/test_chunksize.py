"""`chunk.size: auto`: a round size from the rate of an earlier run, which the first run of an output fixes."""

import pytest

from chunkvisor.events.event import Event, RunStarted, WorkerEnded
from chunkvisor.events.journal import Entry
from chunkvisor.supervise.staging import LEAST_TEXTS, MOST_TEXTS, propose, worker_rate


@pytest.mark.parametrize(
    ("rate", "kind", "texts", "words"),
    [
        (69.0, "cuda", 3000, "at 69 texts/s, 43 s a chunk"),
        (25.0, "cpu", 1000, "at 25 texts/s, 40 s a chunk"),
        (1234.5, "cuda", 50_000, "at 1,234 texts/s, 41 s a chunk"),
        (0.5, "cpu", LEAST_TEXTS, "at 0.5 texts/s, 200 s a chunk"),
        (1e6, "cuda", MOST_TEXTS, "at 1,000,000 texts/s, 1 s a chunk"),
        (None, "cuda", 3000, "usual for cuda; no rate of this model is known here yet"),
        (None, "cpu", 500, "usual for cpu; no rate of this model is known here yet"),
    ],
)
def test_proposal(rate: float | None, kind: str, texts: int, words: str) -> None:
    """A round number within the bounds, with the reason."""
    proposed = propose(rate, kind)
    assert (proposed.texts, proposed.reason) == (texts, words)


def test_within_the_target() -> None:
    """Wherever the bounds allow it, a chunk takes 30 to 60 s."""
    for tenth in range(25, 12_500):
        assert 30 <= propose(tenth / 10, "cuda").texts / (tenth / 10) <= 60


def started(model: str = "m", device: str = "cpu") -> Event:
    """A run begins."""
    return RunStarted("w", device, model=model)


def ended(output: str = "out", texts: int = 10, busy_s: float = 2.0, returncode: int = 0) -> Event:
    """A worker ends."""
    return WorkerEnded(output, 0, 1, returncode, texts=texts, busy_s=busy_s)


@pytest.mark.parametrize(
    ("events", "rate"),
    [
        ([], None),
        ([started(), ended(), ended(texts=50, busy_s=4)], 10.0),
        ([started(), ended("other", 100), ended("third", 20)], 30.0),
        ([started(), ended("other", 100), ended(texts=20)], 10.0),
        ([started(), ended(texts=100), started(), ended(texts=20)], 10.0),
        ([started(), ended(texts=20), started(), ended(texts=0, busy_s=0.0)], 10.0),
        ([started("another"), ended()], None),
        ([started(device="NVIDIA H200 (GPU-1)"), ended()], None),
        ([started(), ended(returncode=20)], None),
        ([ended()], None),
    ],
)
def test_rate(events: list[Event], rate: float | None) -> None:
    """Of the last run with the same model on the same kind of device, of the output's own texts where there are any."""
    assert worker_rate((Entry(1, "r", event) for event in events), "m", "cpu", "out") == rate
