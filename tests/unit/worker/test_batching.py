"""How texts are cut into batches, and how the memory of a GPU, as measured, narrows them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkvisor_worker.batching import PROBE_TOKENS, batches_of, measured_batches, padded_tokens
from chunkvisor_worker.contract.messages import Limits

GB = 1 << 30
MEASURED = Limits(1 << 20, 32_768, measured=True)


@pytest.mark.parametrize(
    ("lengths", "limits", "expected"),
    [
        ([], Limits(8, 100), []),
        ([3, 9, 3, 5], Limits(2), [[1, 3], [0, 2]]),
        ([3, 9, 3, 5], Limits(8, 18), [[1, 3], [0, 2]]),
        ([3, 3, 3], Limits(8), [[0, 1, 2]]),
        ([500, 2, 2], Limits(8, 100), [[0], [1, 2]]),
        ([0, 0, 0], Limits(2, 100), [[0, 1], [2]]),
        ([9, 8, 7, 3], Limits(8, 1000, padding=0), [[0], [1], [2], [3]]),
        ([9, 8, 7, 3], Limits(8, 1000, padding=3), [[0, 1, 2], [3]]),
    ],
)
def test_batches(lengths: list[int], limits: Limits, expected: list[list[int]]) -> None:
    """The longest come first, ties in order, under all limits."""
    assert [batch.tolist() for batch in batches_of(lengths, limits)] == expected


@pytest.mark.parametrize(
    ("lengths", "limits", "expected"),
    [
        ([3, 9, 3, 5], Limits(8, 17), [[1, 3, 0], [2]]),
        ([3, 9, 3, 5], Limits(2, 17), [[1, 3], [0, 2]]),
        ([500, 2, 2], Limits(8, 502, padding=0), [[0, 1], [2]]),
    ],
)
def test_flat_batches(lengths: list[int], limits: Limits, expected: list[list[int]]) -> None:
    """Without padding, the sum of the tokens is what is limited."""
    assert [batch.tolist() for batch in batches_of(lengths, limits, flat=True)] == expected
    assert sum(padded_tokens(lengths, np.array(batch), flat=True) for batch in expected) == sum(
        lengths
    )


@given(
    st.lists(st.integers(0, 600), max_size=80),
    st.builds(
        Limits,
        rows=st.integers(1, 50),
        tokens=st.none() | st.integers(1, 2000),
        padding=st.none() | st.integers(0, 300),
    ),
)
def test_limits_hold(lengths: list[int], limits: Limits) -> None:
    """Each text is in one batch, lengths only fall, and only a single long text has too many
    tokens.
    """
    batches = batches_of(lengths, limits)
    positions = [position for batch in batches for position in batch.tolist()]
    assert sorted(positions) == list(range(len(lengths)))
    assert [lengths[position] for position in positions] == sorted(lengths, reverse=True)
    for batch in batches:
        assert 1 <= len(batch) <= limits.rows
        if limits.tokens is not None and len(batch) > 1:
            assert padded_tokens(lengths, batch) <= limits.tokens
        if limits.padding is not None:
            assert (
                padded_tokens(lengths, batch) - sum(lengths[position] for position in batch)
                <= limits.padding
            )


@pytest.mark.parametrize(
    ("free_bytes", "largest"), [(100 * GB, 32_768), (4 * GB, 8_192), (0, PROBE_TOKENS)]
)
def test_batches_follow_what_was_measured(free_bytes: int, largest: int) -> None:
    """The first batch is small; those behind it are as large as fits, and no larger than the
    limits.
    """
    lengths = np.full(1000, 128, dtype=np.int64)
    asked: list[int] = []

    def needs() -> tuple[int, int]:
        asked.append(1)
        return GB, free_bytes

    batches = list(measured_batches(lengths, MEASURED, needs))
    assert sorted(np.concatenate(batches).tolist()) == list(range(1000))
    assert padded_tokens(lengths, batches[0]) == PROBE_TOKENS
    assert max(padded_tokens(lengths, batch) for batch in batches) == largest // 128 * 128
    assert len(asked) == 1
    few = list(measured_batches(lengths[:3], MEASURED, lambda: pytest.fail("asked")))
    assert [batch.tolist() for batch in few] == [
        batch.tolist() for batch in batches_of(lengths[:3], MEASURED)
    ]
