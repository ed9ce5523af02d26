"""Cuts the texts of a chunk into batches of like length, under a row cap and a padded-token budget."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from chunkvisor_worker.contract.messages import Limits

Indices = npt.NDArray[np.int64]

SLICE_ROWS = 256
"""Texts tokenized between two signs of life."""

SLICE_BYTES = 1_000_000
"""UTF-8 bytes tokenized between two signs of life; one longer text is a slice of its own."""

BYTES_PER_TOKEN = 3
"""Where tokens cannot be counted ahead: English has 4 to 5, Chinese about 3, so that the count is rather too high."""


def estimated_tokens(size_bytes: int) -> int:
    """Tokens of a text of `size_bytes` in UTF-8, two special ones included."""
    return 2 + size_bytes // BYTES_PER_TOKEN


def cut(lengths: Sequence[int] | Indices, limits: Limits, *, flat: bool = False) -> list[Indices]:
    """Batches of positions in `lengths`, longest texts first, equal lengths in their given order.

    The longest come first so that a batch too large for the device fails in the first seconds, not at the end of the
    chunk; sorting by tokens pads less than sorting by characters does.

    A batch also ends where the next text would bring its padding above `limits.padding`: with that at the tokens a
    device computes in the time that one more batch costs it, batches come near to the best that can be (the ski-rental
    rule: at most twice the best; 2 to 4 % above it on commit messages).

    `flat` batches have no padding: of them, `limits.tokens` bounds the sum.

    `lengths` are tokens, special tokens included. Each batch is int64 of shape (n,), 1 <= n <= `limits.rows`, and
    its `padded_tokens` <= `limits.tokens`, except for a text longer than that, which is a batch of its own.
    Each position stands in exactly one batch. Raises ValueError where `limits.rows` is below 1.
    """
    if limits.rows < 1:
        raise ValueError(f"a batch holds at least 1 row, limits.rows is {limits.rows}")
    sizes = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    batches = []
    start = 0
    while start < len(order):
        longest = max(1, int(sizes[order[start]]))
        rows, tokens = limits.rows, limits.tokens
        if tokens is not None and flat:
            sums = np.cumsum(np.maximum(1, sizes[order[start : start + min(rows, tokens)]]))
            rows = max(1, int(np.searchsorted(sums, tokens, side="right")))
        elif tokens is not None:
            rows = min(rows, max(1, tokens // longest))
        if limits.padding is not None and not flat:
            padding = np.cumsum(longest - sizes[order[start : start + rows]])
            rows = max(1, int(np.searchsorted(padding, limits.padding, side="right")))
        batches.append(order[start : start + rows])
        start += rows
    return batches


def computed_lengths(lengths: Sequence[int] | Indices, batch: Indices, *, flat: bool = False) -> Indices:
    """Tokens the device works on for each text of the batch: the longest length; of a `flat` one, its own."""
    sizes = np.asarray(lengths, dtype=np.int64)[batch]
    return sizes if flat else np.full_like(sizes, sizes.max(initial=0))


def padded_tokens(lengths: Sequence[int] | Indices, batch: Indices, *, flat: bool = False) -> int:
    """The same of the whole batch."""
    return int(computed_lengths(lengths, batch, flat=flat).sum())


def slices(sizes: list[int]) -> Iterator[slice]:
    """Consecutive slices of at most SLICE_ROWS texts and SLICE_BYTES bytes, or of one text."""
    start = total = 0
    for position, size in enumerate(sizes):
        if position > start and (position - start == SLICE_ROWS or total + size > SLICE_BYTES):
            yield slice(start, position)
            start, total = position, 0
        total += size
    if sizes:
        yield slice(start, len(sizes))
