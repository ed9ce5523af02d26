"""Which texts a model is quantised by, and which are compared."""

import numpy as np
import pytest

from chunkvisor_worker.converted_tokenizer import IDS, Row
from chunkvisor_worker.quantize import split


def rows(*lengths: int) -> list[Row]:
    """Texts of so many tokens."""
    return [{IDS: np.ones(length, dtype=np.int64)} for length in lengths]


def lengths(some: list[Row]) -> list[int]:
    """Their tokens."""
    return [len(row[IDS]) for row in some]


@pytest.mark.parametrize(
    ("given", "calibrated", "compared"),
    [
        ([7, 3, 9, 1], [1, 3, 9], [7]),
        (list(range(8, 0, -1)), [1, 2, 4, 5, 6, 8], [3, 7]),
        ([5, 0, 2], [2, 5], [2, 5]),
        ([4], [4], [4]),
    ],
    ids=["four", "eight", "few, one without tokens", "one"],
)
def test_a_quarter_is_held_out(given: list[int], calibrated: list[int], compared: list[int]) -> None:
    """Of all lengths both; of fewer than four texts all are for both."""
    assert tuple(map(lengths, split(rows(*given)))) == (calibrated, compared)


def test_many_texts_are_fewer() -> None:
    """More of them make the vectors no nearer, and take longer; those that are compared are all."""
    calibrated, compared = split(rows(*(1 + number // 10 for number in range(400))))
    assert (len(calibrated), len(compared)) == (150, 100)
    assert lengths(calibrated)[0] == 1
    assert lengths(calibrated)[-1] == 40


def test_long_texts_are_fewer() -> None:
    """The tokens of all together are bounded, the lengths are still spread."""
    calibrated, compared = split(rows(*([2000] * 100 + [10] * 300)))
    assert sum(lengths(calibrated)) <= 1.1 * 32_768
    assert sum(lengths(compared)) <= 1.1 * 16_384
    for some in (calibrated, compared):
        assert lengths(some)[0] == 10
        assert lengths(some)[-1] == 2000


def test_no_token_at_all() -> None:
    """There is nothing to quantise by."""
    with pytest.raises(ValueError, match=r"^model\.dtype is int8, but no text of the run has a token"):
        split(rows(0, 0))
