"""Cuts a chunk into batches of like length, by rows and padded tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkvisor_worker.contract.messages import Limits

Indices = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

NONE_CUT: Indices = np.zeros((0, 2), dtype=np.int64)  # no text of those that an encoder has is cut
# If tokens cannot be counted ahead: English has 4 to 5, Chinese about 3, so that the count is
# rather too high.
BYTES_PER_TOKEN = 3
# Padded tokens of the batch that is measured: small enough for most GPUs, and enough to tell what a
# token takes.
PROBE_TOKENS = 4096
# Of the free memory that a batch may take: the allocator's blocks do not fit each other exactly,
# and the first batch may have had no padding, and so no mask.
_SHARE = 0.5

# (bytes that the last batch took at its peak, bytes that are free without it)
Needs = Callable[[], tuple[int, int]]


def estimated_tokens(size_bytes: int) -> int:
    """Tokens of a text of `size_bytes` in UTF-8, two special ones included."""
    return 2 + size_bytes // BYTES_PER_TOKEN


def cut(lengths: Sequence[int] | Indices, limits: Limits, *, flat: bool = False) -> list[Indices]:
    """Batches of positions in `lengths`, int64 of shape (n,).

    Longest texts first, equal lengths in their given order.

    So a batch too large for the device fails in the first seconds. A batch also ends if the next
    text would bring its padding above `limits.padding`: at best the tokens that a device computes
    in the time that one more batch costs it (the ski-rental rule). A text longer than
    `limits.tokens` is a batch alone. `flat` batches are not padded: `limits.tokens` bounds their
    sum.
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
    """Tokens the device works on: the longest length for each text of the batch.

    Of a `flat` one, their sum.
    """
    sizes = np.asarray(lengths, dtype=np.int64)[batch]
    return int(sizes.sum() if flat else len(sizes) * sizes.max(initial=0))


def cut_measured(
    lengths: Indices, limits: Limits, needs: Needs, *, flat: bool = False
) -> Iterator[Indices]:
    """Batches like `cut`.

    The first is small, of the longest texts, and `needs` then says what fits behind it.
    """
    assert limits.tokens is not None
    first = cut(lengths, replace(limits, tokens=min(limits.tokens, PROBE_TOKENS)), flat=flat)[:1]
    yield from first
    rest = np.setdiff1d(np.arange(len(lengths)), np.concatenate([*first, np.zeros(0, np.int64)]))
    if not len(rest):
        return
    fits = padded_tokens(lengths, first[0], flat=flat)
    took_bytes, free_bytes = needs()
    if took_bytes > 0:
        fits = max(fits, int(_SHARE * free_bytes * fits / took_bytes))
    for batch in cut(lengths[rest], replace(limits, tokens=min(limits.tokens, fits)), flat=flat):
        yield rest[batch]


def gpu_needs(torch: Any) -> Needs:
    """Those of torch's current GPU, from this moment on.

    What torch has reserved and not allocated is free as well.
    """
    before_bytes = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()

    def needs() -> tuple[int, int]:
        took = torch.cuda.max_memory_allocated() - before_bytes
        return took, torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - before_bytes

    return needs
