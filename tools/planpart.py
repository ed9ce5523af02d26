"""The sample of docs/reference/checks.md: the figures of one plan, drawn as `chunkvisor plan` draws them today.

They are of 17,666 commit messages and all-MiniLM-L6-v2, on the CPU of a machine with two cores.
"""

from itertools import pairwise
from typing import Any

from chunkvisor.commands.plan import LIBRARIES_BYTES, activation_bytes, draw
from chunkvisor.engine.modelfolder import ModelShape

_ROWS, _TEXTS, _DIMENSION, _MAX_LENGTH, _BATCH_TOKENS = 17_666, 16_969, 384, 256, 2048
_COUNTS = {8: 1203, 16: 3782, 32: 6118, 64: 4017, 128: 1065, 256: 658, 512: 102, 1024: 16, 2048: 5, 4096: 3}
"""Texts by the most tokens of their bin."""
_MIB = 1 << 20
_WEIGHTS_BYTES = int(86.7 * _MIB)
_SHAPE = ModelShape(hidden=384, intermediate=1536, queries=384, keys=384, gated=False, heads=12)


def sample() -> str:
    """As a block of text."""
    return "\n".join(["```text", *draw(forecast()), "```"])


def forecast() -> dict[str, Any]:
    """As `plan --json` gives it."""
    batch = activation_bytes(_SHAPE, 4, _BATCH_TOKENS // _MAX_LENGTH, _MAX_LENGTH)
    bins = [{"low": low + 1, "high": high, "count": _COUNTS[high]} for low, high in pairwise((-1, *_COUNTS))]
    lengths = {"count": _TEXTS, "median": 25, "p95": 119, "longest": 3553, "bins": bins}
    output = {
        "rows": _ROWS,
        "distinct_texts": _TEXTS,
        "duplicate_share": 1 - _TEXTS / _ROWS,
        "rows_empty": 0,
        "length_unit": "tokens",
        "lengths": {**lengths, "truncated": 126, "lost_share": 0.046},
        "max_length": _MAX_LENGTH,
        "batches": 505,
        "padding_share": 0.042,
        "batch_rows": _BATCH_TOKENS,
        "batch_tokens": _BATCH_TOKENS,
        "texts_known": 0,
        "chunks": 17,
        "chunks_done": 0,
        "chunk_size": 1000,
        "chunk_size_reason": None,
        "dimension": _DIMENSION,
        "final_bytes": 4 * _DIMENSION * _ROWS + 128,
        "activation_bytes": batch,
        "texts_left": _TEXTS,
    }
    return {
        "outputs": {"commits": output},
        "peak_disk_bytes": int(53.1 * _MIB),
        "final_disk_bytes": output["final_bytes"],
        "free_disk_bytes": int(75.6 * 1024 * _MIB),
        "weights_bytes": _WEIGHTS_BYTES,
        "workers": 2,
        "per_gpu": False,
        "host_memory_bytes": 2 * (LIBRARIES_BYTES + _WEIGHTS_BYTES) + batch,
        "total_memory_bytes": int(23.5 * 1024 * _MIB),
        "gpu_memory_bytes": None,
        "texts_per_s": None,
        "time_s": None,
        "notes": [],
    }
