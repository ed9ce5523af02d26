"""What `chunkvisor plan` calculates from lengths and model folders, and how it is drawn."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planpart
from chunkvisor.commands.plan import WIDTH, activation_bytes, distribution, draw
from chunkvisor.config.model import ModelConfig
from chunkvisor.engine.modelfolder import computed_dtype, read_model_folder, shape_of


def lengths_of(*values: int) -> np.ndarray:
    """Return an array as the worker leaves it."""
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize(
    ("lengths", "max_length", "bins", "truncated", "lost_share"),
    [
        ((0, 8, 9), None, [(0, 8, 2), (9, 16, 1)], 0, 0.0),
        ((3,), 4, [(0, 4, 1), (5, 8, 0)], 0, 0.0),
        ((10, 30), 20, [(0, 8, 0), (9, 16, 1), (17, 20, 0), (21, 32, 1)], 1, 0.25),
        ((), 8, [], 0, 0.0),
    ],
)
def test_distribution(
    lengths: tuple[int, ...], max_length: int | None, bins: list[Any], truncated: int, lost_share: float
) -> None:
    """Bins double in width, the limit always ends one, and what is beyond it is counted."""
    found = distribution(lengths_of(*lengths), max_length)
    assert [tuple(each.values()) for each in found["bins"]] == bins
    assert (found["truncated"], found["lost_share"]) == (truncated, pytest.approx(lost_share))


MINILM = {"model_type": "bert", "hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 12}
QWEN2 = {"model_type": "qwen2", "hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12}
QWEN2 |= {"num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("config", "element_bytes", "rows", "length", "math_kernel", "counted"),
    [
        # Peak of torch 2.13.0+cu130's allocator on a null GPU, 2026-11-21, by tests/nullgpu/test_memory.py.
        (MINILM, 4, 256, 128, False, 562_036_736),
        (MINILM, 4, 1, 32768, False, 5_670_699_008),
        (QWEN2, 2, 16, 2048, False, 2_299_543_552),
        # In bfloat16 on a GPU of capability 7.5, 2026-11-24: each head takes memory for all pairs of tokens.
        (MINILM, 2, 8, 1001, True, 973_045_248),
    ],
)
def test_what_a_batch_takes(
    config: dict[str, Any], element_bytes: int, rows: int, length: int, math_kernel: bool, counted: int
) -> None:
    """The formula is within 5 % of what torch's allocator took, for short and long texts, plain and gated models."""
    shape = shape_of(config)
    assert shape is not None
    found = activation_bytes(shape, element_bytes, rows, length, math_kernel=math_kernel)
    assert found == pytest.approx(counted, rel=0.05)
    assert shape_of(config | {"model_type": "nomic_bert"}) is None, "nothing is made up for other layers"


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
        ({"dtype": "float32", "kwargs": {"backend": "onnx"}}, {}, None),
    ],
)
def test_computed_dtype(tmp_path: Path, model: dict[str, Any], config: dict[str, Any], dtype: str | None) -> None:
    """What a worker computes in follows from the config and the model's files, or is not known."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert computed_dtype(ModelConfig(name="m", **model), str(tmp_path)) == dtype


def lines_of(**changes: Any) -> list[str]:
    """Draw the sample of the page, with changes of the whole or of the output."""
    whole = planpart.forecast()
    (output,) = whole["outputs"].values()
    for key, value in changes.items():
        (output if key in output else whole)[key] = value
    return list(draw(whole))


def test_drawing() -> None:
    """The limit is marked where it cuts, the fewest texts show, and no line is wider than a terminal."""
    lines = lines_of(notes=["a long note " * 20])
    assert max(map(len, lines)) <= WIDTH
    marked = next(number for number, line in enumerate(lines) if "max_length 256" in line)
    assert "129 - 256" in lines[marked - 1]
    assert "257 - 512" in lines[marked + 1]
    bars = [line[21:60].strip() for line in lines if " - " in line]
    assert (len(max(bars)), len(min(bars))) == (39, 1)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dimension": None, "final_bytes": None}, "the dimension is unknown until a run"),
        ({"texts_per_s": 9.5, "time_s": 60}, "about 60 s of computing: 16,969 texts at the 9.5 texts/s of the last"),
        ({"weights_bytes": None}, "memory unknown until a run has downloaded the weights"),
        ({"gpu_memory_bytes": 5 << 30}, "GPU about 5.0 GiB of each GPU, an estimate: 0.5 GiB for CUDA, 86.7 MiB of"),
        ({"rows_empty": 7}, "empty 7 rows, with one vector for all; `where` leaves them out"),
        ({"batch_rows": 32}, "a batch at most 32 texts and 2,048 padded tokens"),
        ({"batch_tokens": None, "batches": None, "padding_share": None}, "a batch at most 2,048 texts"),
        ({"texts_left": 0, "texts_per_s": 9.5, "time_s": 0}, "time nothing is left to be done"),
    ],
)
def test_what_is_unknown_is_said(changes: dict[str, Any], expected: str) -> None:
    """Nothing is made up, and what does not apply is left out."""
    assert expected in " ".join(" ".join(lines_of(**changes)).split())
