"""What a run that was stopped says of the troubles it was in."""

import pytest

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events import event as of
from chunkvisor.messages import Troubles

GO, KEPT, BAD = (
    of.Go("t", 5, 1, 32),
    of.BatchesKept("t", 5, 10),
    of.Quarantined("t", 10, "a.jsonl:11"),
)
HUNG = of.PartFailed("t", 5, 2, "hung", "no progress for 5 s", log="/w/5/2/worker.log")
CRASHED = of.AttemptFailed(
    "t", 5, 3, "crashed", "SIGSEGV", rule="segmentation-fault", log="/w/5/3/worker.log"
)
LAST = "failed since vectors were last saved; the last one"
LOST = "without a vector so far: t row 10 (a.jsonl:11)"


@pytest.mark.parametrize(
    ("events", "why", "log", "see"),
    [
        ([GO], "", "", ""),
        ([GO, KEPT, HUNG], f"1 attempt {LAST}: hung: no", "/w/5/2/worker.log", "hung"),
        ([GO, KEPT, HUNG, CRASHED, HUNG], f"3 attempts {LAST}: hung", "/w/5/2", "hung"),
        ([GO, KEPT, CRASHED], f"1 attempt {LAST}: crashed", "/w/5/3", "segmentation-fault"),
        ([GO, *[BAD] * 11, KEPT], "t row 10 (a.jsonl:11) and 1 more", "", ""),
    ],
    ids=range(5),
)
def test_a_stop_tells_of_the_troubles_it_came_in(
    events: list[of.Event], why: str, log: str, see: str
) -> None:
    """The last failure since the run last got on is told, with its log, and the rows that it gave
    up.
    """
    troubles = Troubles()
    for event in events:
        troubles.observe(event)
    halt = troubles.add_reasons_to(Halt(ExitCode.TERMINATED, "stopped by SIGTERM"))
    assert why in halt.why
    assert bool(why) == bool(halt.why)
    assert str(halt.log or "").startswith(log)
    assert halt.see == see


@pytest.mark.parametrize(
    ("code", "before", "why"),
    [
        (ExitCode.CONFIG, "", LOST),
        (ExitCode.TRY_AGAIN, "a reason", f"a reason\n       {LOST}"),
        (ExitCode.QUARANTINED, "a reason", "a reason"),  # it names them itself
    ],
)
def test_every_early_end_names_the_rows_that_were_given_up(
    code: ExitCode, before: str, why: str
) -> None:
    """Its own reason comes first, and stays; only a stop has none of its own."""
    troubles = Troubles()
    for event in (GO, HUNG, BAD):
        troubles.observe(event)
    told = troubles.add_reasons_to(Halt(code, "given up", why=before))
    assert (told.why, told.log, told.see) == (why, None, "")
