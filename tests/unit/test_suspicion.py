"""A machine that fails alone is found, one that meets bad texts is not; a table of what is heard."""

import pytest

from chunkvisor.decide.suspicion import Charge, Suspicion
from chunkvisor_worker.contract.exits import Outcome

CASES = {
    "nothing": ("", None),
    "three chunks fail, others succeed": ("b b a1 b a2 b a3 b", "a"),
    "three chunks fail, nothing succeeds elsewhere": ("a1 a2 a3", None),
    "successes from before do not count": ("b b b a1 a2 a3", None),
    "one chunk fails three times": ("a1 b a1 b a1 b", None),
    "it succeeds meanwhile": ("a1 b a2 b a a3 b b b", None),
    "two chunks are too few": ("a1 b b b a2 b b b", None),
    "both fail, a third succeeds": ("a1 b2 c a3 c b4 c a5", "a"),
}


@pytest.mark.parametrize(("heard", "guilty"), CASES.values(), ids=CASES)
def test_who_is_guilty(heard: str, guilty: str | None) -> None:
    """`a1` is a failure on machine a at chunk 1, `a` a success there."""
    suspicion = Suspicion()
    for word in heard.split():
        machine, chunk = word[:1], word[1:]
        if chunk:
            suspicion.failed(machine, Charge((0, int(chunk), 9), Outcome.CRASHED))
        else:
            suspicion.succeeded(machine)

    assert suspicion.guilty() == guilty
    if guilty is not None:
        assert len(suspicion.pardon(guilty)) == 3
        assert suspicion.guilty() is None
