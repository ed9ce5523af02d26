"""What `chunkvisor plan` calculates from lengths and model folders, and how it is drawn."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkvisor.commands.plan import WIDTH, distribution, draw
from chunkvisor.config.model import ModelConfig
from chunkvisor.engine.modelfolder import read_model_folder


@pytest.mark.parametrize(
    ("lengths", "max_length", "bins", "truncated", "lost_share"),
    [
        ((0, 8, 9), None, [(0, 8, 2), (9, 16, 1)], 0, 0.0),
        ((10, 30), 20, [(0, 8, 0), (9, 16, 1), (17, 32, 1)], 1, 0.25),
        ((), 8, [], 0, 0.0),
    ],
)
def test_distribution(
    lengths: tuple[int, ...], max_length: int | None, bins: list[Any], truncated: int, lost_share: float
) -> None:
    """Bins double in width, and what is beyond the limit is counted."""
    found = distribution(np.array(lengths, dtype=np.int32), max_length)
    assert [tuple(each.values()) for each in found["bins"]] == bins
    assert (found["truncated"], found["lost_share"]) == (truncated, pytest.approx(lost_share))


FIRST = {"type": "sentence_transformers.models.Transformer", "path": ""}
POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
DENSE = {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}
BOTH = {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}


@pytest.mark.parametrize(
    ("files", "dimension"),
    [
        ({"config.json": {"hidden_size": 384}}, 384),
        ({"modules.json": [FIRST | {"path": "0_T"}], "0_T/config.json": {"hidden_size": 100}}, 100),
        ({"modules.json": [FIRST, POOLING], "config.json": {"hidden_size": 10}, "1_Pooling/config.json": BOTH}, 20),
        ({"modules.json": [FIRST, POOLING, DENSE], "2_Dense/config.json": {"out_features": 64}}, 64),
        ({"modules.json": [FIRST, {"type": "their.Own", "path": ""}], "config.json": {"hidden_size": 1}}, None),
    ],
)
def test_dimension_from_the_folder(tmp_path: Path, files: dict[str, Any], dimension: int | None) -> None:
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
def test_computed_dtype(tmp_path: Path, model: dict[str, Any], config: dict[str, Any], dtype: str | None) -> None:
    """What a worker computes in follows from the config and the model's files, or is not known."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_model_folder(tmp_path).computes_in(ModelConfig(name="m", **model)) == dtype


LENGTHS = np.array([5] * 90 + [200] * 9 + [500], dtype=np.int32)
OUTPUT: dict[str, Any] = {
    "rows": 107,
    "distinct_texts": 100,
    "duplicate_share": 7 / 107,
    "rows_empty": 0,
    "length_unit": "tokens",
    "lengths": distribution(LENGTHS, 256),
    "max_length": 256,
    "batches": 5,
    "padding_share": 0.042,
    "texts_known": 0,
    "chunks": 2,
    "chunks_done": 0,
    "chunk_size": 50,
    "chunk_size_reason": None,
    "dimension": 384,
    "final_bytes": 164_480,
    "texts_left": 100,
}
WHOLE: dict[str, Any] = {
    "outputs": {"titles": OUTPUT, "bodies": OUTPUT},
    "combine": {"both": ["titles", "bodies"]},
    "peak_disk_bytes": 1 << 20,
    "final_disk_bytes": 1 << 19,
    "free_disk_bytes": 1 << 36,
    "weights_bytes": 90 << 20,
    "workers": 2,
    "host_memory_bytes": 3 << 30,
    "total_memory_bytes": 24 << 30,
    "texts_per_s": 2.5,
    "time_s": 80.0,
    "notes": [],
}


def lines_of(**changes: Any) -> list[str]:
    """Draw a plan, with changes of the whole or of its outputs."""
    output = OUTPUT | {key: value for key, value in changes.items() if key in OUTPUT}
    whole = WHOLE | {"outputs": {"titles": output, "bodies": output}}
    return list(draw(whole | {key: value for key, value in changes.items() if key in WHOLE}))


def test_drawing() -> None:
    """It begins with a line for each output, their sum and each combination; no line is wider than a terminal."""
    lines = lines_of(notes=["a long note " * 20])
    assert lines[:5] == [
        "titles: 107 rows, 100 distinct texts, 2 chunks",
        "bodies: 107 rows, 100 distinct texts, 2 chunks",
        "all: 214 rows, 200 distinct texts, 4 chunks",
        "both: titles and bodies side by side",
        "time: about 80 s for 200 texts, at the rate of the last run: 2.5 texts/s,",
    ]
    assert max(map(len, lines)) <= WIDTH
    bars = [line[21:60].strip() for line in lines if " - " in line]
    assert (len(max(bars)), bars[-1]) == (39, "#"), "one text shows as well"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dimension": None, "final_bytes": None}, "the dimension is unknown until a run"),
        ({}, "1.0 % of the texts are longer than 256 and are cut: 8.9 % of all tokens"),
        ({"weights_bytes": None}, "1 GiB for its libraries and its weights: unknown)"),
        ({"rows_empty": 7}, "empty 7 rows, with one vector for all; `where` leaves them out"),
        ({"texts_left": 0, "time_s": 0}, "time: nothing is left to be done"),
        ({"texts_per_s": None, "time_s": None}, "time: unknown until a run has a rate"),
    ],
)
def test_what_is_unknown_is_said(changes: dict[str, Any], expected: str) -> None:
    """Nothing is made up, and what does not apply is left out."""
    assert expected in " ".join(" ".join(lines_of(**changes)).split())
