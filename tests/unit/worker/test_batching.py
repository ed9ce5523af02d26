"""How texts are cut into batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkvisor_worker.batching import cut, padded_tokens
from chunkvisor_worker.contract.messages import Limits

LENGTHS = st.lists(st.integers(0, 600), max_size=80)
LIMITS = st.builds(
    Limits,
    rows=st.integers(1, 50),
    tokens=st.none() | st.integers(1, 2000),
    padding=st.none() | st.integers(0, 300),
)


@pytest.mark.parametrize(
    ("lengths", "limits", "expected"),
    [
        ([], Limits(8, 100), []),
        ([3, 9, 3, 5], Limits(2), [[1, 3], [0, 2]]),
        ([3, 9, 3, 5], Limits(8, 18), [[1, 3], [0, 2]]),
        ([3, 3, 3], Limits(8), [[0, 1, 2]]),
        ([500, 2, 2], Limits(8, 100), [[0], [1, 2]]),
        ([0, 0, 0], Limits(2, 100), [[0, 1], [2]]),
        ([7, 7], Limits(1, 1000), [[0], [1]]),
        ([9, 8, 7, 3], Limits(8, 1000, padding=0), [[0], [1], [2], [3]]),
        ([9, 8, 7, 3], Limits(8, 1000, padding=3), [[0, 1, 2], [3]]),
        ([9, 9, 9], Limits(8, 1000, padding=0), [[0, 1, 2]]),
    ],
)
def test_batches(lengths: list[int], limits: Limits, expected: list[list[int]]) -> None:
    """Longest first, ties in order, under both limits."""
    assert [batch.tolist() for batch in cut(lengths, limits)] == expected


@pytest.mark.parametrize(
    ("lengths", "limits", "expected"),
    [
        ([], Limits(8, 100), []),
        ([3, 9, 3, 5], Limits(8, 17), [[1, 3, 0], [2]]),
        ([3, 9, 3, 5], Limits(2, 17), [[1, 3], [0, 2]]),
        ([500, 2, 2], Limits(8, 100), [[0], [1, 2]]),
        ([500, 2, 2], Limits(8, 502, padding=0), [[0, 1], [2]]),
        ([0, 0, 0], Limits(8, 2), [[0, 1], [2]]),
        ([9, 1], Limits(8), [[0, 1]]),
    ],
)
def test_flat_batches(lengths: list[int], limits: Limits, expected: list[list[int]]) -> None:
    """Without padding, the sum of the tokens is what is limited."""
    assert [batch.tolist() for batch in cut(lengths, limits, flat=True)] == expected
    assert sum(padded_tokens(lengths, np.array(batch), flat=True) for batch in expected) == sum(lengths)


@given(LENGTHS, LIMITS)
def test_each_text_is_in_exactly_one_batch(lengths: list[int], limits: Limits) -> None:
    """The batches are a permutation of the positions."""
    positions = [position for batch in cut(lengths, limits) for position in batch.tolist()]

    assert sorted(positions) == list(range(len(lengths)))


@given(LENGTHS, LIMITS)
def test_limits_hold(lengths: list[int], limits: Limits) -> None:
    """No batch has too many rows, and only a single long text has too many tokens."""
    for batch in cut(lengths, limits):
        assert batch.dtype == np.int64
        assert 1 <= len(batch) <= limits.rows
        if limits.tokens is not None and len(batch) > 1:
            assert padded_tokens(lengths, batch) <= limits.tokens
        if limits.padding is not None:
            assert padded_tokens(lengths, batch) - sum(lengths[position] for position in batch) <= limits.padding


@given(LENGTHS, LIMITS)
def test_lengths_only_fall(lengths: list[int], limits: Limits) -> None:
    """The longest text comes first, so that what does not fit fails at once."""
    ordered = [lengths[position] for batch in cut(lengths, limits) for position in batch]

    assert ordered == sorted(lengths, reverse=True)


@given(LENGTHS, LIMITS)
def test_the_same_lengths_give_the_same_batches(lengths: list[int], limits: Limits) -> None:
    """A list and an array of the same lengths are cut alike, every time."""
    first = cut(lengths, limits)
    second = cut(np.array(lengths, dtype=np.int64), limits)

    assert [batch.tolist() for batch in first] == [batch.tolist() for batch in second]


def test_rows_below_one_are_refused() -> None:
    """A limit of no rows cannot be met."""
    with pytest.raises(ValueError, match=r"limits\.rows is 0"):
        cut([1], Limits(0))
