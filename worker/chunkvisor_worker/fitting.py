"""How many padded tokens fit the memory of a GPU, as one batch shows.

It guesses nothing from the model but the mask of a padded batch: attention kernels, activations and quantization
differ too much for a formula.
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


def fitting_tokens(tokens: int, took_bytes: int, free_bytes: int, unseen_bytes: int = 0) -> int:
    """Padded tokens that fit, where a batch of `tokens` took so much, and another may take `unseen_bytes` beside it.

    Never fewer than `tokens`, of which it is known that they fit, unless something is unseen.
    """
    if took_bytes <= 0:
        return tokens
    fits = int(_SHARE * free_bytes * tokens / (took_bytes + unseen_bytes))
    return max(1 if unseen_bytes else tokens, fits)


def unseen_mask_bytes(lengths: Indices, element_bytes: int) -> int:
    """What the masks of sdpa attention would have taken, at most, of a batch that had none or a small one.

    A batch without padding is computed without a mask, be it a single text or many of one length, and most others
    have one. It takes a byte for each pair of tokens of a row, and a number in the model's dtype, of `element_bytes`,
    where attention is computed; two where the row's length is no multiple of eight (torch 2.13: `pad_bias` copies the
    mask to wider rows; counted on the null GPU by tests/nullgpu/test_memory.py). Lengths are those of the batch.
    """
    longest = int(lengths.max(initial=0))
    seen = 0 if int(lengths.min(initial=longest)) == longest else 1 + element_bytes * (1 if longest % 8 == 0 else 2)
    return len(lengths) * longest**2 * (1 + 2 * element_bytes - seen)


def cut_measured(
    lengths: Indices, limits: Limits, needs: Needs, mask_element_bytes: int = 0, *, flat: bool = False
) -> Iterator[Indices]:
    """Batches like `cut`; the first is a small one, and those behind it are cut by what it shows.

    The first has the longest texts, which take the most memory for each token, so that it is no worse for the others;
    what a mask adds is reckoned, see `unseen_mask_bytes`: `mask_element_bytes` is the size of its numbers, 0 = there
    are no masks. `needs` is called once, when the second batch is asked for.
    """
    assert limits.tokens is not None
    first = cut(lengths, replace(limits, tokens=min(limits.tokens, PROBE_TOKENS)), flat=flat)[:1]
    yield from first
    rest = np.setdiff1d(np.arange(len(lengths)), np.concatenate([*first, np.zeros(0, np.int64)]))
    if not len(rest):
        return
    unseen = unseen_mask_bytes(lengths[first[0]], mask_element_bytes) if mask_element_bytes else 0
    fits = fitting_tokens(padded_tokens(lengths, first[0], flat=flat), *needs(), unseen)
    for batch in cut(lengths[rest], replace(limits, tokens=min(limits.tokens, fits)), flat=flat):
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
