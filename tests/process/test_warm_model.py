"""A real model, loaded once in a template and run in processes forked from it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import Workplace


@pytest.mark.model
@pytest.mark.soak(only=True)
def test_a_warm_model_makes_the_same_vectors(workplace: Workplace, minilm_path: Path) -> None:
    """A model loaded by one thread in the template computes in its workers what it computes in a fresh one."""
    texts = [f"{word} fix the {word} in module {number}" for number, word in enumerate(("parser", "a", "test") * 12)]
    vectors = []
    for start in ("fresh", "warm"):
        place = Workplace(workplace.folder / start)
        place.folder.mkdir()
        place.write_source(texts)
        changes: dict[str, Any] = {"workers.start": start, "model.name": str(minilm_path), "chunk.size": 18}
        place.write_config("sentence-transformers", **changes, encode={"truncate_dim": 64, "normalize": True})
        ended = place.run()
        assert ended.returncode == 0, ended.stderr
        events = [event for event in place.events() if event["event"] == "attempt_started"]
        assert [event["start"] for event in events] == [start] * 2
        vectors.append(place.vectors())

    assert vectors[0].shape == (36, 64)
    assert np.abs(vectors[0] - vectors[1]).max() <= 1e-7


@pytest.mark.model
@pytest.mark.parametrize("start", [pytest.param("fresh", marks=pytest.mark.soak(only=True)), "warm"])
def test_torch_has_all_its_threads(workplace: Workplace, start: str) -> None:
    """Torch and its MKL have the threads of the config, in a forked worker as in a fresh one."""
    workplace.write_source(["a", "b"])
    workplace.write_config("torch_threads:make", **{"workers.start": start}, env__OMP_NUM_THREADS="2")

    ended = workplace.run()

    assert ended.returncode == 0, ended.stderr
    assert workplace.vectors().tolist() == [[2, 2], [2, 2]]
