"""Failed starts in a row, as a table of what is heard."""

import pytest

from chunkvisor.decide.starts import FailedStart, Starts
from chunkvisor_worker.contract.exits import Outcome

CASES = {
    "the first": ("1a0-1", (0, False)),
    "the same chunk again": ("1a0-1 1a2-3", (1, False)),
    "another chunk, the same fault": ("1a0-1 2a2-3", (1, True)),
    "another chunk, another fault": ("1a0-1 2b2-3", (1, False)),
    "the third": ("1a0-1 1a2-3 1b4-5", (2, False)),
    "on its way when the other failed": ("1a0-3 2a1-4", (0, False)),
    "a burst counts once": ("1a0-3 2a1-4 3a2-5 4a6-7", (1, True)),
    "a success between": ("1a0-1 ok 2a2-3", (0, False)),
}


@pytest.mark.parametrize(("heard", "known"), CASES.values(), ids=CASES)
def test_failed_starts(heard: str, known: tuple[int, bool]) -> None:
    """`1a0-3` is fault a over chunk 1, of a worker that lived from 0 to 3; what is known before the last one."""
    starts, found = Starts(), (0, False)
    for word in heard.split():
        if word == "ok":
            starts.succeeded("device 0")
            continue
        began, ended = word[2:].split("-")
        start = FailedStart(Outcome.CRASHED, word[1], (0, int(word[0])), float(began), float(ended))
        found = starts.before("device 0", start)
        starts.failed("device 0", start)
    assert found == known
    assert starts.before("device 1", FailedStart(Outcome.CRASHED, "a", (0, 9), 9, 9)) == (0, False)
