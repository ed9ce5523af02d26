"""What a batch takes of the memory, by the shape of the model."""

from typing import Any

import pytest

from chunkvisor.commands.planning.survey import activation_bytes
from chunkvisor.engine.modelfolder import shape_of

MINILM = {"model_type": "bert", "hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 12}
BERT = {"model_type": "bert", "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
QWEN2 = {
    "model_type": "qwen2",
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
}

COUNTED = [
    # Peak of torch 2.13.0+cu130's allocator on a null GPU, 2026-11-21, by tests/nullgpu/test_memory.py.
    (MINILM, 4, 256, 128, 562_036_736),
    (MINILM, 4, 64, 512, 570_425_344),
    (MINILM, 4, 16, 2048, 637_534_208),
    (MINILM, 4, 4, 8192, 1_644_167_168),
    (MINILM, 4, 1, 32768, 5_670_699_008),
    (MINILM, 2, 256, 128, 281_018_368),
    (MINILM, 2, 1, 32768, 3_372_220_416),
    (QWEN2, 4, 256, 128, 4_467_065_856),
    (QWEN2, 4, 64, 512, 4_480_045_056),
    (QWEN2, 4, 4, 8192, 4_739_629_056),
    (QWEN2, 4, 1, 32768, 6_946_029_568),
    (QWEN2, 2, 64, 512, 2_248_413_184),
    (QWEN2, 2, 16, 2048, 2_299_543_552),
    (QWEN2, 2, 1, 32768, 4_010_016_768),
]


@pytest.mark.parametrize(("config", "element_bytes", "rows", "length", "counted"), COUNTED)
def test_as_the_allocator_counts(
    config: dict[str, Any], element_bytes: int, rows: int, length: int, counted: int
) -> None:
    """The formula is within 5 % of what torch's allocator took, for short and long texts, plain and gated models."""
    shape = shape_of(config)
    assert shape is not None
    assert activation_bytes(shape, element_bytes, rows, length) == pytest.approx(counted, rel=0.05)


@pytest.mark.parametrize(
    ("config", "rows", "length", "counted"),
    [
        # The same, in bfloat16 on a GPU of capability 7.5, 2026-11-24.
        (MINILM, 64, 128, 198_410_752),
        (MINILM, 8, 1001, 973_045_248),
        (MINILM, 1, 8192, 7_531_102_720),
        (BERT, 64, 128, 293_601_280),
        (BERT, 16, 512, 629_375_488),
        (BERT, 1, 8193, 7_614_734_336),
        (QWEN2, 64, 128, 542_311_424),
        (QWEN2, 16, 512, 826_774_016),
        (QWEN2, 1, 8192, 7_814_283_776),
    ],
)
def test_bfloat16_by_the_math_kernel(config: dict[str, Any], rows: int, length: int, counted: int) -> None:
    """On a card without bfloat16 each head of each text takes memory for all pairs of tokens."""
    shape = shape_of(config)
    assert shape is not None
    assert activation_bytes(shape, 2, rows, length, math_kernel=True) == pytest.approx(counted, rel=0.05)


@pytest.mark.parametrize(
    "changes",
    [{"model_type": "nomic_bert"}, {"model_type": None}, {"hidden_size": None}, {"intermediate_size": "4h"}],
)
def test_unknown_shapes(changes: dict[str, Any]) -> None:
    """Of a model whose layers are not known nothing is made up."""
    assert shape_of(BERT | changes) is None


def test_key_heads_and_widths() -> None:
    """Grouped key heads and a width of their own count as the config has them."""
    shape = shape_of(QWEN2 | {"model_type": "qwen3", "head_dim": 256})
    assert shape is not None
    assert (shape.queries, shape.keys, shape.gated) == (12 * 256, 2 * 256, True)
