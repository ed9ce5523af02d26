"""How a chunk is taken apart: whatever is known of it, every text has exactly one place."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkvisor.decide.bisect import BadText, Part, Segment, missing, segments
from chunkvisor_worker.contract.exits import Outcome


def bad(text: int) -> BadText:
    """A text that fails alone."""
    return BadText(text, Outcome.CRASHED, "why")


@st.composite
def known(draw: st.DrawFn) -> tuple[int, int, list[Part], list[BadText]]:
    """A chunk, parts of it that may overlap and have holes, and bad texts."""
    start = draw(st.integers(0, 50))
    stop = start + draw(st.integers(1, 40))
    parts = []
    for number in range(draw(st.integers(0, 6))):
        first = draw(st.integers(start, stop - 1))
        last = draw(st.integers(first + 1, stop))
        holes = draw(st.sets(st.integers(first, last - 1), max_size=5))
        parts.append(Part(first, last, f"digest {number}", tuple(sorted(holes))))
    texts = draw(st.sets(st.integers(start, stop - 1), max_size=5))
    return start, stop, parts, [bad(text) for text in sorted(texts)]


def has_vector(text: int, parts: list[Part]) -> bool:
    """Whether any part has a good vector of the text."""
    return any(part.start <= text < part.stop and text not in part.holes for part in parts)


@given(known())
def test_missing_is_what_nobody_has(chunk: tuple[int, int, list[Part], list[BadText]]) -> None:
    """The missing ranges are in order, do not touch, and hold just the texts without vector and without verdict."""
    start, stop, parts, bad_texts = chunk
    ranges = missing(start, stop, parts, bad_texts)
    assert all(first < last for first, last in ranges)
    assert all(last < first for (_, last), (first, _) in itertools.pairwise(ranges))
    listed = [text for first, last in ranges for text in range(first, last)]
    verdicts = {each.text for each in bad_texts}
    assert listed == [text for text in range(start, stop) if text not in verdicts and not has_vector(text, parts)]


@given(known())
def test_segments_partition_the_chunk(chunk: tuple[int, int, list[Part], list[BadText]]) -> None:
    """With nothing missing, the segments follow one another from end to end, and each has its texts in its part."""
    start, stop, parts, bad_texts = chunk
    bad_texts += [bad(text) for first, last in missing(start, stop, parts, bad_texts) for text in range(first, last)]
    found = segments(start, stop, parts, bad_texts)
    assert [each.start for each in found] + [stop] == [start, *(each.stop for each in found)]
    verdicts = {each.text for each in bad_texts}
    for each in found:
        texts = range(each.start, each.stop)
        assert len(texts) > 0
        if each.part is None:
            assert verdicts.issuperset(texts)
        else:
            assert verdicts.isdisjoint(texts)
            assert set(each.part.holes).isdisjoint(texts)
            assert each.part.start <= each.start < each.stop <= each.part.stop


WHOLE, HOLED, LATER = Part(0, 8, "a"), Part(0, 8, "a", (2, 5)), Part(4, 6, "b")
AROUND_HOLES = [
    Segment(0, 2, HOLED),
    Segment(2, 3, None),
    Segment(3, 5, HOLED),
    Segment(5, 6, None),
    Segment(6, 8, HOLED),
]


@pytest.mark.parametrize(
    ("parts", "bad_texts", "ranges"),
    [
        ([], [], [(0, 8)]),
        ([WHOLE], [], []),
        ([HOLED], [], [(2, 3), (5, 6)]),
        ([HOLED], [2], [(5, 6)]),
        ([HOLED, LATER], [2], []),
        ([LATER], [0, 7], [(1, 4), (6, 7)]),
        ([], [3], [(0, 3), (4, 8)]),
        ([Part(-4, 12, "wider than the chunk")], [], []),
    ],
    ids=["nothing", "whole", "holes", "a hole is bad", "a hole is filled", "ends are bad", "one bad", "wide"],
)
def test_missing(parts: list[Part], bad_texts: list[int], ranges: list[tuple[int, int]]) -> None:
    """What is left to be done, by what is known."""
    assert missing(0, 8, parts, map(bad, bad_texts)) == ranges


@pytest.mark.parametrize(
    ("parts", "bad_texts", "found"),
    [
        ([WHOLE], [], [Segment(0, 8, WHOLE)]),
        (
            [HOLED],
            [2, 5],
            [
                Segment(0, 2, HOLED),
                Segment(2, 3, None),
                Segment(3, 5, HOLED),
                Segment(5, 6, None),
                Segment(6, 8, HOLED),
            ],
        ),
        ([WHOLE, LATER], [], [Segment(0, 4, WHOLE), Segment(4, 6, LATER), Segment(6, 8, WHOLE)]),
        ([WHOLE], [0, 1], [Segment(0, 2, None), Segment(2, 8, WHOLE)]),
    ],
    ids=["whole", "holes", "the later part goes first", "a verdict goes before a vector"],
)
def test_segments(parts: list[Part], bad_texts: list[int], found: list[Segment]) -> None:
    """Which part each text's vector comes from."""
    assert segments(0, 8, parts, map(bad, bad_texts)) == found


@pytest.mark.parametrize("parts", [[], [HOLED]])
def test_nothing_may_be_missing(parts: list[Part]) -> None:
    """A chunk that is not known as a whole cannot be put together."""
    with pytest.raises(AssertionError):
        segments(0, 8, parts, [])
