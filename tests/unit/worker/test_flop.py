"""How many operations a batch takes, by the shapes of a model's layers, and what they are compared with."""

import itertools
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chunkvisor_worker import flop
from chunkvisor_worker.batching import computed_lengths
from chunkvisor_worker.contract.arithmetic import LinearKernel
from chunkvisor_worker.contract.layershapes import LayerShapes
from late import Late, needs

torch: Any = Late("torch")


@pytest.mark.parametrize(
    ("shapes", "lengths", "expected"),
    [
        (LayerShapes(), [5, 7], 0),
        (LayerShapes(attention_width=8), [5], 0),  # the matrices are not known
        (LayerShapes(100), [5], 2 * 100 * 5),
        (LayerShapes(100, 8), [5], 2 * 100 * 5 + 4 * 8 * 25),
        (LayerShapes(100, 8), [5, 5], 2 * (2 * 100 * 5 + 4 * 8 * 25)),
        (LayerShapes(100, 8), [5, 2], 2 * 100 * 7 + 4 * 8 * (25 + 4)),
        (LayerShapes(100, 8), [], 0),
        # MiniLM: six layers of 4 x 384² + 2 x 384 x 1536, twelve heads of 32, for a text of 256 tokens.
        (LayerShapes(6 * 1_769_472, 6 * 384), [256], 6_039_797_760),
    ],
)
def test_operations_of_texts(shapes: LayerShapes, lengths: list[int], expected: int) -> None:
    """Two for each weight and token, four for each pair of tokens and unit of attention's width."""
    assert shapes.flop(lengths) == expected


@pytest.mark.parametrize(("flat", "expected"), [(False, [7, 7, 7]), (True, [5, 7, 2])])
def test_what_the_device_computes_of_a_batch(*, flat: bool, expected: list[int]) -> None:
    """Padded texts count as long as the longest of their batch."""
    assert computed_lengths([5, 9, 7, 2], np.array([0, 2, 3]), flat=flat).tolist() == expected


def transformer(**config: Any) -> Any:
    """A model of an embedding, two layers, a norm and a pooler, with a config."""
    model = torch.nn.ModuleDict(
        {
            "embedding": torch.nn.Embedding(50, 8),
            "layers": torch.nn.Sequential(torch.nn.Linear(8, 24), torch.nn.LayerNorm(24), torch.nn.Linear(24, 8)),
            "pooler": torch.nn.Linear(8, 8),
        }
    )
    known = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 8}
    model.config = SimpleNamespace(**{**known, **config})
    return model


@needs("torch")
@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, LayerShapes(2 * 8 * 24, 2 * 4 * 2)),
        ({"head_dim": 5}, LayerShapes(2 * 8 * 24, 2 * 4 * 5)),
        ({"num_attention_heads": None}, LayerShapes(2 * 8 * 24)),
        ({"num_experts": 8}, LayerShapes()),
        ({"num_experts": 0}, LayerShapes(2 * 8 * 24, 2 * 4 * 2)),
        ({"num_hidden_groups": 1}, LayerShapes()),
    ],
)
def test_the_shapes_of_a_model(config: dict[str, Any], expected: LayerShapes) -> None:
    """The matrices of all tokens count: no table, norm or pooler; of experts and shared layers nothing is known."""
    assert flop.layer_shapes(transformer(**config)) == expected


@needs("torch")
def test_a_convolution_is_not_guessed() -> None:
    """Nor is a model of no transformers class."""
    model = transformer()
    model["convolution"] = torch.nn.Conv1d(8, 8, 3)
    assert flop.layer_shapes(model) == LayerShapes()
    assert flop.layer_shapes(None) == LayerShapes()


@needs("torch")
def test_the_rate_is_that_of_the_kernel_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed weights do as much more as was measured of them; of torch's own, one product tells."""
    monkeypatch.setattr(flop, "core_rate", lambda _product: 90.0)
    kernels = [LinearKernel("torch", 1.1), LinearKernel("onednn", 0.5), LinearKernel("onednn"), LinearKernel("torch")]
    assert [flop.cpu_rate(torch.float32, each) for each in kernels] == [90, 180, 90, 90]


def test_several_products_are_timed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that is a second later at each look: as many operations as they have together."""
    seconds = itertools.count()
    monkeypatch.setattr(time, "thread_time", lambda: float(next(seconds)))
    assert [flop.core_rate(lambda: None, products) for products in (1, 3)] == [2 * 512**3, 3 * 2 * 512**3]


@needs("torch")
def test_a_product_is_timed() -> None:
    """By one thread, and torch has as many as before."""
    threads = torch.get_num_threads()
    assert flop.cpu_rate(torch.float32, LinearKernel("torch")) > 0
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(("threads", "expected"), [(0, 3), (1, 1), (3, 3), (5, 3)])
def test_two_threads_of_a_core_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, expected: int
) -> None:
    """Of five CPUs two pairs share a core, and of the fifth nothing is known."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3, 4})
    monkeypatch.setattr(flop, "_TOPOLOGY", tmp_path)
    for cpu, together in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{together}\n")
    assert flop.cores(threads) == expected
