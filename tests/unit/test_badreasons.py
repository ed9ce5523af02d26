"""Rows without a vector are grouped by the reason, wherever a person reads of them."""

import pytest

from chunkvisor.assemble.badrows import BadReason, reasons_in_words, reasons_of

CRASH, NAN, LONG = ("crashed", "it died"), ("bad_output", "NaN in text 7"), ("bad_input", "too long")


def rows(*counts: tuple[tuple[str, str], int]) -> list[dict[str, str]]:
    """So many rows of each reason, as a manifest lists them."""
    return [{"outcome": outcome, "reason": reason} for (outcome, reason), count in counts for _ in range(count)]


def test_the_most_frequent_comes_first() -> None:
    """Reasons that differ in numbers alone are one; of those that are equally frequent, the first comes first."""
    listed = [*rows((NAN, 1), (CRASH, 2)), {"outcome": "bad_output", "reason": "NaN in text 81"}, *rows((LONG, 1))]
    assert reasons_of(listed) == (BadReason(*NAN, 2), BadReason(*CRASH, 2), BadReason(*LONG, 1))


OTHERS = [(("crashed", word), 1) for word in ("here", "there")]
WORDS = [
    ([(CRASH, 1)], 1, ["crashed: it died"]),
    ([(CRASH, 37)], 37, ["all 37 for the same reason: crashed: it died"]),
    ([(CRASH, 1), (NAN, 3)], 4, ["3 rows: bad_output: NaN in text 7", "1 row: crashed: it died"]),
    (
        [(CRASH, 5), (NAN, 4), (LONG, 3), *OTHERS],
        14,
        [
            "5 rows: crashed: it died",
            "4 rows: bad_output: NaN in text 7",
            "3 rows: bad_input: too long",
            "2 rows: 2 other reasons",
        ],
    ),
    ([(CRASH, 1000)], 75_000, ["1,000 rows: crashed: it died", "74,000 rows: see the file that lists all of them"]),
]


@pytest.mark.parametrize(("counts", "count", "lines"), WORDS)
def test_in_words(counts: list[tuple[tuple[str, str], int]], count: int, lines: list[str]) -> None:
    """One reason for all is said once; the rarest are only counted, like rows that the manifest does not list."""
    assert reasons_in_words(reasons_of(rows(*counts)), count) == lines
