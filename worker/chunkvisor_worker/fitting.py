"""How many padded tokens fit the memory of a GPU, as one batch shows.

It never guesses from the model: attention kernels, activations and quantization differ too much for a formula.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from chunkvisor_worker.batching import Indices, cut, padded_tokens
from chunkvisor_worker.contract.messages import Limits

PROBE_TOKENS = 4096
"""Padded tokens of the batch that is measured: small enough for most GPUs, and enough to tell what a token takes."""

_SHARE = 0.6
"""Of the free memory that a batch may take: the allocator's blocks do not fit each other exactly."""

Needs = Callable[[], tuple[int, int]]
"""(bytes that the batch just computed took at its peak, bytes that are free without it)."""


def fitting_tokens(tokens: int, took_bytes: int, free_bytes: int) -> int:
    """Padded tokens that fit, where a batch of `tokens` took so much; never fewer than those."""
    if took_bytes <= 0:
        return tokens
    return max(tokens, int(_SHARE * free_bytes * tokens / took_bytes))


def cut_measured(lengths: Indices, limits: Limits, needs: Needs) -> Iterator[Indices]:
    """Batches like `cut`; the first is a small one, and those behind it are cut by what it shows.

    The first has the longest texts, which take the most memory for each token, so that it is no worse for the others.
    `needs` is called once, when the second batch is asked for.
    """
    assert limits.tokens is not None
    first = cut(lengths, replace(limits, tokens=min(limits.tokens, PROBE_TOKENS)))[:1]
    yield from first
    rest = np.setdiff1d(np.arange(len(lengths)), np.concatenate([*first, np.zeros(0, np.int64)]))
    if not len(rest):
        return
    fits = fitting_tokens(padded_tokens(lengths, first[0]), *needs())
    for batch in cut(lengths[rest], replace(limits, tokens=min(limits.tokens, fits))):
        yield rest[batch]


class GpuMemory:
    """The memory of torch's current GPU, from the moment this is made."""

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._before_bytes = self._cuda.memory_allocated()
        self._cuda.reset_peak_memory_stats()

    def needs(self) -> tuple[int, int]:
        """As `Needs`: what torch has reserved and not allocated is free as well."""
        took = self._cuda.max_memory_allocated() - self._before_bytes
        reserved = self._cuda.memory_reserved() - self._before_bytes
        return took, self._cuda.mem_get_info()[0] + reserved
