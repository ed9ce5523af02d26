"""Cuts a chunk into batches of like length, by rows and padded tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor_worker.contract.messages import Limits

Indices = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

NONE_CUT: Indices = np.zeros((0, 2), dtype=np.int64)  # for an encoder that has cut no text
# Of UTF-8. English has 4 to 5, Chinese about 3: estimates of tokens are rather too high.
BYTES_PER_TOKEN = 3
# Padded tokens of the batch that is measured: it fits most GPUs, and shows what a token takes.
PROBE_TOKENS = 4096
# The share of free memory that a batch may take: blocks of the allocator leave gaps, and a mask,
# which the first batch has not if it had no padding, takes memory as well.
_SHARE = 0.5

# (bytes that the last batch took at its peak, bytes that are free without it)
Needs = Callable[[], tuple[int, int]]


def estimated_tokens(size_bytes: int) -> int:
    """Estimate the tokens of a text of `size_bytes` in UTF-8, two special ones included."""
    return 2 + size_bytes // BYTES_PER_TOKEN


def batches_of(
    lengths: Sequence[int] | Indices, limits: Limits, *, flat: bool = False
) -> list[Indices]:
    """Cut texts of these lengths into batches: arrays of positions, int64 of shape (n,).

    The longest texts come first, so that a batch too large for the device fails in the first
    seconds; equal lengths keep their order. A text longer than `limits.tokens` is a batch by
    itself. `limits.padding` bounds the padding of a batch; its best value is the number of tokens
    that a device computes in the time that one more batch costs (the ski-rental rule). `flat`
    batches are not padded: `limits.tokens` bounds the sum of their lengths.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    batches = []
    start = 0
    while start < len(order):
        longest = max(1, int(sizes[order[start]]))
        rows = limits.rows
        if limits.tokens is not None and flat:
            sums = np.cumsum(sizes[order[start : start + rows]])
            rows = max(1, int(np.searchsorted(sums, limits.tokens, side="right")))
        elif limits.tokens is not None:
            rows = min(rows, max(1, limits.tokens // longest))
        if limits.padding is not None and not flat:
            padding = np.cumsum(longest - sizes[order[start : start + rows]])
            rows = max(1, int(np.searchsorted(padding, limits.padding, side="right")))
        batches.append(order[start : start + rows])
        start += rows
    return batches


def padded_tokens(lengths: Sequence[int] | Indices, batch: Indices, *, flat: bool = False) -> int:
    """Count the tokens that the device computes: each text of a batch has the longest length.

    Without padding if it is `flat`.
    """
    sizes = np.asarray(lengths, dtype=np.int64)[batch]
    return int(sizes.sum() if flat else len(sizes) * sizes.max(initial=0))


def measured_batches(
    lengths: Indices, limits: Limits, needs: Needs, *, flat: bool = False
) -> Iterator[Indices]:
    """Yield batches as `batches_of` does, but first a small one, of the longest texts.

    What it took and left free, as `needs` says, limits the others.
    """
    assert limits.tokens is not None
    small = replace(limits, tokens=min(limits.tokens, PROBE_TOKENS))
    if not len(lengths):
        return
    first = batches_of(lengths, small, flat=flat)[0]
    yield first
    rest = np.setdiff1d(np.arange(len(lengths)), first)
    if not len(rest):
        return
    fits = padded_tokens(lengths, first, flat=flat)
    took_bytes, free_bytes = needs()
    if took_bytes > 0:
        fits = max(fits, int(_SHARE * free_bytes * fits / took_bytes))
    limits = replace(limits, tokens=min(limits.tokens, fits))
    for batch in batches_of(lengths[rest], limits, flat=flat):
        yield rest[batch]


def gpu_needs(torch: Any) -> Needs:
    """Measure torch's current GPU from now on.

    Memory that torch has reserved and not allocated counts as free.
    """
    before_bytes = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()

    def needs() -> tuple[int, int]:
        took = torch.cuda.max_memory_allocated() - before_bytes
        return took, torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - before_bytes

    return needs
