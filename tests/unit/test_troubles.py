"""What a run that was stopped says of the troubles it was in."""

from pathlib import Path

import pytest

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import (
    AttemptFailed,
    BatchesKept,
    Draining,
    Event,
    Go,
    OutputOpened,
    PartFailed,
    Quarantined,
)
from chunkvisor.words import Troubles

GO = Go("t", 5, 1, 32)
HUNG = PartFailed("t", 5, 2, "hung", "no progress for 5 s", log="/w/5/2/worker.log")
CRASHED = AttemptFailed("t", 5, 3, "crashed", "SIGSEGV", rule="segmentation-fault", log="/w/5/3/worker.log")
KEPT = BatchesKept("t", 5, 10)
BAD = Quarantined("t", 10, "a.jsonl:11")
OPENED = OutputOpened("t", 100, 100, 10, quarantined=3)
NOTHING = "in the last 40 s nothing was encoded, and "


@pytest.mark.parametrize(
    ("events", "why", "log", "see"),
    [
        ([GO], "", "", ""),
        (
            [GO, KEPT, HUNG],
            NOTHING + "1 attempt failed, the last so: hung: no",
            "/w/5/2/worker.log",
            "hung",
        ),
        ([GO, KEPT, HUNG, Draining("SIGTERM"), KEPT], NOTHING + "1 attempt", "/w/5/2/worker.log", "hung"),
        ([GO, KEPT, HUNG, CRASHED, HUNG], NOTHING + "3 attempts failed, the last so: hung", "/w/5/2", "hung"),
        ([GO, KEPT, CRASHED], NOTHING + "1 attempt failed, the last so: crashed", "/w/5/3", "segmentation-fault"),
        ([GO, BAD, KEPT], "without a vector so far: t row 10 (a.jsonl:11)", "", ""),
        ([GO, *[BAD] * 11, KEPT], "t row 10 (a.jsonl:11) and 1 more", "", ""),
        ([OPENED, GO, BAD, KEPT], "t row 10 (a.jsonl:11); 3 rows in earlier runs", "", ""),
        ([OPENED, GO, KEPT], "without a vector so far: 3 rows in earlier runs", "", ""),
    ],
    ids=range(9),
)
def test_a_stop_tells_of_the_troubles_it_came_in(events: list[Event], why: str, log: str, see: str) -> None:
    """The most frequent failure since the run last got on is told, with its log, and the rows that it gave up."""
    troubles = Troubles()
    for number, event in enumerate(events):
        troubles.heed(event, 0.0 if event is not KEPT else 60.0 + number)
    since_s = max((60.0 + number for number, event in enumerate(events) if event is KEPT), default=60.0)
    if any(isinstance(event, Draining) for event in events):
        since_s = 61.0
    halt = troubles.added_to(Halt(ExitCode.TERMINATED, "stopped by SIGTERM"), since_s + 40.0)
    assert why in halt.why
    assert bool(why) == bool(halt.why)
    assert str(halt.log or "").startswith(log)
    assert halt.see == see


@pytest.mark.parametrize(
    ("halt", "why"),
    [
        (Halt(ExitCode.CONFIG, "too many"), "without a vector so far: t row 10 (a.jsonl:11)"),
        (
            Halt(ExitCode.TRY_AGAIN, "given up", why="a reason", log=Path("/w/log")),
            "a reason\n       without a vector so far: t row 10 (a.jsonl:11)",
        ),
        (Halt(ExitCode.QUARANTINED, "finished, but t row 10 (a.jsonl:11)", why="a reason"), "a reason"),
    ],
    ids=["other", "has-a-reason", "names-them-itself"],
)
def test_every_early_end_names_the_rows_that_were_given_up(halt: Halt, why: str) -> None:
    """Its own reason comes first, and stays; only a stop has none of its own."""
    troubles = Troubles()
    for event in (GO, HUNG, BAD):
        troubles.heed(event, 0.0)
    told = troubles.added_to(halt, 9.0)
    assert (told.why, told.log, told.see) == (why, halt.log, halt.see)
