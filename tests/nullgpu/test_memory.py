"""Batches of the measured budget fit a GPU's memory: torch's own allocator, for models of real shapes.

Activations are allocated by host code, so that a null GPU counts what a card would; what kernels take inside is not
seen.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from asking import ask_each

from chunkvisor.config.model import AUTO_TOKENS
from nullgpu import GIB, NullGpu

# Two layers of each: without gradients, and without a cache of keys, no layer's activations outlive it.
SHAPES: dict[str, dict[str, Any]] = {
    "minilm": {
        "model_type": "bert",
        "hidden_size": 384,
        "intermediate_size": 1536,
        "num_attention_heads": 12,
        "num_hidden_layers": 2,
    },
    "bert-base": {
        "model_type": "bert",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "num_hidden_layers": 2,
    },
    "qwen2-1.5b": {
        "model_type": "qwen2",
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
    },
}
LENGTHS = [128, 512, 1001, 2048, 8192, 16385, 32768]
"""Most of them multiples of eight, some not: that decides how often the mask is copied."""

_PRELUDE = """
import json, numpy, torch
from transformers import AutoConfig, AutoModel
from transformers.models import bert, qwen2
from chunkvisor.config.model import AUTO_TOKENS
from chunkvisor_worker.contract.messages import Limits
from chunkvisor_worker.batching import cut_measured, gpu_needs
from chunkvisor_worker.sentence_transformer import repeat_keys_without_fused_kernel
bert.BertModel, qwen2.Qwen2Model
"""
"""What takes seconds: it is imported once, for all the models."""

_MODEL = """
kind, dtype = asked["shape"].pop("model_type"), getattr(torch, asked["dtype"])
config = AutoConfig.for_model(kind, vocab_size=1000, max_position_embeddings=32770, **asked["shape"])
config._attn_implementation = "sdpa"
config.use_cache = False  # as sentence-transformers has it
with torch.device("meta"):
    model = AutoModel.from_config(config)
model = model.to(dtype).to_empty(device="cuda").eval()  # nobody computes with the weights

def forward(rows, length):
    ids = torch.zeros(rows, length, dtype=torch.long, device="cuda")
    with torch.inference_mode():
        return model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state.mean(1)

def begin():
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()

repeat_keys_without_fused_kernel(dtype)  # as a worker does
forward(1, 8)  # cuBLAS takes its workspace with the first call
"""

_BUDGET = """
found = []
for name, sizes in asked["sizes"].items():
    sizes = numpy.concatenate([numpy.full(count, length) for length, count in sizes])
    before = begin()
    free = torch.cuda.mem_get_info()[0]
    limits = Limits(rows=10**9, tokens=10**9, measured=True)
    batches, error = [], ""
    try:
        for batch in cut_measured(sizes, limits, gpu_needs(torch)):
            forward(len(batch), int(sizes[batch].max()))
            batches.append(len(batch) * int(sizes[batch].max()))
    except torch.OutOfMemoryError as fault:
        error = str(fault)
    found.append([name, batches, (torch.cuda.max_memory_allocated() - before) / free, error])
say("found", found)
"""


def answer(gpu: NullGpu, code: str, **asked: Any) -> list[Any]:
    """What the code said about a model of this shape."""
    (said,) = ask_each(gpu, f"asked = json.loads({json.dumps(asked)!r})\n{_MODEL}{code}", prelude=_PRELUDE)
    found = said["found"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize(
    ("name", "dtype", "memory"),
    [
        ("minilm", "float32", 8),
        ("bert-base", "float32", 8),
        ("bert-base", "bfloat16", 80),
        ("qwen2-1.5b", "bfloat16", 8),
        ("qwen2-1.5b", "bfloat16", 24),
        ("qwen2-1.5b", "float32", 24),
    ],
)
def test_the_measured_budget_fits(make_gpu: Callable[..., NullGpu], name: str, dtype: str, memory: int) -> None:
    """After one small batch no further one runs out of memory, from 128 to 32k tokens, and they use what there is."""
    gpu = make_gpu([memory * GIB], bool=0)
    sizes = {str(length): [(length, max(4, 1_000_000 // length))] for length in LENGTHS}
    sizes["mixed"] = [(length, 500_000 // length) for length in LENGTHS]
    found = answer(gpu, _BUDGET, shape=SHAPES[name], dtype=dtype, sizes=sizes)
    assert len(found) == len(sizes)
    for which, batches, share, error in found:
        assert not error, (which, batches[:4])
        assert share < 0.9, which
        if len(batches) > 2 and which.isdecimal():  # of a longer text there may be room for one at a time
            enough = share > 0.25 or max(batches) >= AUTO_TOKENS["cuda"]
            assert enough or max(batches) == int(which), (which, share)
