"""Batches of the measured budget fit a GPU's memory: torch's own allocator, for models of real
shapes.

Activations are allocated by host code, so that a null GPU counts what a card would; what kernels
take inside is not seen.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from chunkvisor.config.model import AUTO_TOKENS
from nullgpu import GIB, NullGpu

# Two layers of each: without gradients, and without a cache of keys, no layer's activations outlive
# it.
SHAPES: dict[str, dict[str, Any]] = {
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

_PROGRAM = """
import json, sys, numpy, torch
from transformers import AutoConfig, AutoModel
from chunkvisor_worker.contract.messages import Limits
from chunkvisor_worker.batching import measured_batches, gpu_needs
from chunkvisor_worker.sentence_transformer import repeat_keys_without_fused_kernel

asked = json.loads(sys.argv[1])
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

repeat_keys_without_fused_kernel(dtype)  # as a worker does
forward(1, 8)  # cuBLAS takes its workspace with the first call
found = []
for name, sizes in asked["sizes"].items():
    sizes = numpy.concatenate([numpy.full(count, length) for length, count in sizes])
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    limits = Limits(rows=10**9, tokens=10**9, measured=True)
    batches, error = [], ""
    try:
        for batch in measured_batches(sizes, limits, gpu_needs(torch)):
            forward(len(batch), int(sizes[batch].max()))
            batches.append(len(batch) * int(sizes[batch].max()))
    except torch.OutOfMemoryError as fault:
        error = str(fault)
    found.append([name, batches, (torch.cuda.max_memory_allocated() - before) / free, error])
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("name", "dtype", "memory"),
    [
        ("bert-base", "float32", 8),
        ("bert-base", "bfloat16", 80),
        ("qwen2-1.5b", "bfloat16", 8),
        ("qwen2-1.5b", "float32", 24),
    ],
)
def test_the_measured_budget_fits(
    make_gpu: Callable[..., NullGpu], name: str, dtype: str, memory: int
) -> None:
    """After one small batch no further one runs out of memory, from 128 to 32k tokens, and they use
    what there is.
    """
    gpu = make_gpu([memory * GIB], bool=0)
    sizes = {str(length): [(length, max(4, 1_000_000 // length))] for length in LENGTHS}
    sizes["mixed"] = [(length, 500_000 // length) for length in LENGTHS]
    asked = {"shape": SHAPES[name], "dtype": dtype, "sizes": sizes}
    ended = gpu.call(sys.executable, "-c", _PROGRAM, json.dumps(asked))
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert len(found) == len(sizes)
    for which, batches, share, error in found:
        assert not error, (which, batches[:4])
        assert share < 0.9, which
        if (
            len(batches) > 2 and which.isdecimal()
        ):  # of a longer text there may be room for one at a time
            enough = share > 0.25 or max(batches) >= AUTO_TOKENS["cuda"]
            assert enough or max(batches) == int(which), (which, share)
