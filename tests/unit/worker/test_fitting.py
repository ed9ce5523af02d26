"""How the memory of a GPU, as measured, narrows the batches."""

import numpy as np
import pytest

from chunkvisor_worker.batching import PROBE_TOKENS, cut, cut_measured, fitting_tokens, padded_tokens, unseen_mask_bytes
from chunkvisor_worker.contract.messages import Limits

GB = 1 << 30
LIMITS = Limits(1 << 20, 32_768, measured=True)


@pytest.mark.parametrize(
    ("tokens", "took_bytes", "free_bytes", "expected"),
    [
        (4096, GB, 10 * GB, 24_576),  # 0.6 of what is free
        (4096, GB, GB, 4096),  # it has just fitted: never fewer
        (4096, 0, GB, 4096),  # nothing was measured
        (0, GB, GB, 0),
    ],
)
def test_tokens_that_fit(tokens: int, took_bytes: int, free_bytes: int, expected: int) -> None:
    """Memory is taken to grow with the padded tokens."""
    assert fitting_tokens(tokens, took_bytes, free_bytes) == expected


@pytest.mark.parametrize(
    ("lengths", "element_bytes", "expected"),
    [
        ([1000], 2, 1000**2 * 5),  # no padding, no mask
        ([512, 512], 4, 2 * 512**2 * 9),
        ([512, 500], 4, 2 * 512**2 * 4),  # a mask, not copied for its width
        ([501, 500], 4, 0),  # as large as they get
        ([], 4, 0),
    ],
)
def test_what_a_mask_would_have_taken(lengths: list[int], element_bytes: int, expected: int) -> None:
    """A batch without padding has no mask, one of a round length a small one."""
    assert unseen_mask_bytes(np.array(lengths, dtype=np.int64), element_bytes) == expected


def test_batches_leave_room_for_a_mask() -> None:
    """Behind a text that had none, batches are smaller than it alone would let them be; one more text always fits."""
    lengths = np.array([PROBE_TOKENS] + [PROBE_TOKENS - 1, PROBE_TOKENS - 2] * 8, dtype=np.int64)

    def largest(element_bytes: int, free_bytes: int) -> int:
        batches = list(cut_measured(lengths, LIMITS, lambda: (GB // 8, free_bytes), element_bytes))
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
        return max(len(batch) for batch in batches)

    # 32 KiB for a token as measured; 20 KiB of a mask in half precision, 36 in single.
    assert [largest(each, 2 * GB) for each in (0, 2, 4)] == [8, 5, 4]
    assert largest(4, GB // 8) == 1


@pytest.mark.parametrize(("free_bytes", "largest"), [(100 * GB, 32_768), (4 * GB, 9_830), (0, PROBE_TOKENS)])
def test_batches_follow_what_was_measured(free_bytes: int, largest: int) -> None:
    """The first batch is small; those behind it are as large as fits, and no larger than the limits."""
    lengths = np.full(1000, 128, dtype=np.int64)
    asked: list[int] = []

    def needs() -> tuple[int, int]:
        asked.append(1)
        return GB, free_bytes

    batches = list(cut_measured(lengths, LIMITS, needs))

    assert sorted(np.concatenate(batches).tolist()) == list(range(1000))
    assert padded_tokens(lengths, batches[0]) == PROBE_TOKENS
    assert max(padded_tokens(lengths, batch) for batch in batches) == largest // 128 * 128
    assert len(asked) == 1


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_chunk_of_one_batch_needs_no_second_look(count: int) -> None:
    """Nothing is asked where nothing is left to be cut."""
    lengths = np.full(count, 7, dtype=np.int64)

    batches = list(cut_measured(lengths, LIMITS, lambda: pytest.fail("asked")))

    assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in cut(lengths, LIMITS)]


def test_the_longest_come_first() -> None:
    """What is measured is the worst case, and lengths only fall."""
    lengths = np.random.default_rng(0).integers(1, 600, 500)

    batches = list(cut_measured(lengths, LIMITS, lambda: (GB, 3 * GB)))

    ordered = np.concatenate([lengths[batch] for batch in batches]).tolist()
    assert ordered == sorted(ordered, reverse=True)
