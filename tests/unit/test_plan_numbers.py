"""What `chunkvisor plan` calculates from lengths, model folders and rates."""

import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkvisor.commands.plan import _too_large, distribution
from chunkvisor.config.load import from_values
from chunkvisor.config.model import ModelConfig
from chunkvisor.engine.modelfolder import read_model_folder
from chunkvisor.supervise.opening import propose


@pytest.mark.parametrize(
    ("lengths", "max_length", "bins", "truncated", "lost_share"),
    [
        ((0, 8, 9), None, [(0, 8, 2), (9, 16, 1)], 0, 0.0),
        ((10, 30), 20, [(0, 8, 0), (9, 16, 1), (17, 32, 1)], 1, 0.25),
        ((), 8, [], 0, 0.0),
    ],
)
def test_distribution(
    lengths: tuple[int, ...],
    max_length: int | None,
    bins: list[Any],
    truncated: int,
    lost_share: float,
) -> None:
    """Bins double in width, and what is beyond the limit is counted."""
    found = distribution(np.array(lengths, dtype=np.int32), max_length)
    assert [tuple(each.values()) for each in found["bins"]] == bins
    assert (found["truncated"], found["lost_share"]) == (truncated, pytest.approx(lost_share))


@pytest.mark.parametrize(
    ("limit", "noted"),
    [(80_256, []), (80_255, ["both"]), (40_127, ["one", "both"]), (39_999, ["one", "two", "both"])],
)
def test_final_files_that_are_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, noted: list[str]
) -> None:
    """Files larger than `ulimit -f` are noted before anything is encoded: final files, the float32
    rows from which one of float16 is made, and combinations.
    """
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    source = {"source": "a.csv", "column": "a"}
    values = {
        "workdir": str(tmp_path),
        "model": {"name": "m"},
        "outputs": {"one": source, "two": source | {"dtype": "float16"}, "three": source},
        "combine": {"both": ["one", "three"]},
    }
    sizes = {"rows": 1000, "dimension": 10}
    outputs: dict[str, dict[str, Any]] = {
        "one": sizes | {"final_bytes": 40_128},
        "two": sizes | {"final_bytes": 20_128},
        "three": {"rows": 1000, "dimension": 1, "final_bytes": 40_128},
    }
    found = [*_too_large(from_values(values, tmp_path), outputs)]
    names = [note.partition(":")[0] for note in found]
    assert [name for name in names if name != "three"] == noted
    assert all("ulimit -f unlimited" in note for note in found)


FIRST = {"type": "sentence_transformers.models.Transformer", "path": ""}
POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
DENSE = {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}
BOTH = {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}


@pytest.mark.parametrize(
    ("files", "dimension"),
    [
        ({"config.json": {"hidden_size": 384}}, 384),
        ({"modules.json": [FIRST | {"path": "0_T"}], "0_T/config.json": {"hidden_size": 100}}, 100),
        (
            {
                "modules.json": [FIRST, POOLING],
                "config.json": {"hidden_size": 10},
                "1_Pooling/config.json": BOTH,
            },
            20,
        ),
        (
            {"modules.json": [FIRST, POOLING, DENSE], "2_Dense/config.json": {"out_features": 64}},
            64,
        ),
        (
            {
                "modules.json": [FIRST, {"type": "their.Own", "path": ""}],
                "config.json": {"hidden_size": 1},
            },
            None,
        ),
    ],
)
def test_dimension_from_the_folder(
    tmp_path: Path, files: dict[str, Any], dimension: int | None
) -> None:
    """The dimension follows from the modules' JSON files; what is strange is unknown, not guessed."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))
    assert read_model_folder(tmp_path).dimension == dimension


@pytest.mark.parametrize(
    ("model", "config", "dtype"),
    [
        ({}, {"torch_dtype": "bfloat16"}, "bfloat16"),
        ({}, {"model_type": "bert"}, "float32"),
        ({"dtype": "float32"}, {"dtype": "bfloat16"}, "float32"),
        ({"dtype": "float32"}, {"quantization_config": {"bits": 4}}, None),
        ({"dtype": "float32", "kwargs": {"backend": "onnx"}}, {"dtype": "float32"}, None),
    ],
)
def test_computed_dtype(
    tmp_path: Path, model: dict[str, Any], config: dict[str, Any], dtype: str | None
) -> None:
    """What a worker computes in follows from the config and the model's files, or is not known."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_model_folder(tmp_path).computes_in(ModelConfig(name="m", **model)) == dtype


# --- `chunk.size: auto`: a round size from the rate of an earlier run


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
