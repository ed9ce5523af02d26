"""Failed starts in a row, as a table of what is heard."""

import pytest

from chunkvisor.decide.starts import FailedStart, Starts

CASES = {
    "the first": ("0-1", (0, 0)),
    "the second": ("0-1 2-3", (1, 2)),
    "the third": ("0-1 2-3 4-5", (2, 4)),
    "on its way when the other failed": ("0-3 1-4", (0, 1)),
    "a burst counts once": ("0-3 1-4 2-5 6-7", (1, 4)),
    "a success between": ("0-1 ok 2-3", (0, 0)),
}


@pytest.mark.parametrize(("heard", "known"), CASES.values(), ids=CASES)
def test_failed_starts(heard: str, known: tuple[int, float]) -> None:
    """`0-3` is a worker that lived from 0 to 3; known before the last one is how many failed, and since when."""
    starts, found = Starts(), (0, 0.0)
    for word in heard.split():
        if word == "ok":
            starts.succeeded("device 0")
            continue
        start = FailedStart(*map(float, word.split("-")))
        found = starts.before("device 0", start)
        starts.failed("device 0", start)
    assert found == known
    assert starts.before("device 1", FailedStart(9, 9)) == (0, 0)
