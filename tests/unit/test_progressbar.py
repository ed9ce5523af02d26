"""The progress bar of Python programs: what it says at each point of a run."""

import logging
import sys

import pytest

from chunkvisor.events.attempt import AttemptFailed, ChunkCommitted, Go
from chunkvisor.events.event import Event
from chunkvisor.events.output import OutputOpened, Staging
from chunkvisor.events.run import Draining, Invoked, Resolving, Waiting
from chunkvisor.events.state import RunState
from chunkvisor.observe.logger import LOGGER, Logger
from chunkvisor.observe.observer import Observers
from chunkvisor.observe.progressbar import ProgressBar

INVOKED = Invoked(workdir="nowhere")
OPENED = OutputOpened("out", rows=40, distinct=20, chunks=2, chunk_size=10)
GO = Go("out", 0, 1, rows=8)
FAILED = AttemptFailed("out", 0, 1, "crashed", "it died")
DONE = ChunkCommitted("out", 0, 1, chunks_done=1, chunks=2, texts_done=10)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([], ""),
        ([INVOKED, Resolving("a/b")], "asking the model hub for a/b"),
        ([INVOKED, Resolving("a/b"), Waiting(5.0, "the hub is down")], "waiting: the hub is down"),
        ([INVOKED, Staging("out")], "reading the source of out"),
        ([INVOKED, Staging("out"), OPENED], "0/40"),
        ([INVOKED, OPENED, GO, DONE], "20/40"),
        ([INVOKED, OPENED, GO, Draining("SIGINT")], "interrupt once more to stop at once"),
        ([INVOKED, OPENED, GO, FAILED], "1 failed attempt, tried again"),
        ([INVOKED, OPENED, GO, Draining("SIGTERM")], "stopping: the chunks under way are finished or saved first"),
    ],
    ids=["nothing", "hub", "wait", "source", "opened", "half", "interrupted", "failed", "ended"],
)
def test_what_it_says(
    events: list[Event], said: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """First what the run is at, then rows, and always what it waits for; a bar without rows is taken away."""
    monkeypatch.setenv("COLUMNS", "80")  # to which tqdm cuts the bar; it takes note of both or of none
    monkeypatch.setenv("LINES", "24")
    bar, state = ProgressBar(), RunState()
    for event in events:
        state.apply(event, 0.0)
        bar.event(event, state)
    bar.tick()
    drawn = capfd.readouterr().err
    assert said in drawn
    assert bool(drawn) == bool(events)
    assert ("once more" in drawn) == ("once more" in said)
    bar.close()
    last = capfd.readouterr().err.rpartition("\r")[2]
    assert last.strip() == "" if OPENED not in events else last.endswith("\n")


def test_lines_of_the_log_stand_alone(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a bar is drawn, each line that is logged begins a line of the terminal, and is told once."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setattr(LOGGER, "handlers", [logging.StreamHandler(sys.stderr)])  # as of `logging.basicConfig`
    monkeypatch.setattr(LOGGER, "propagate", False)
    LOGGER.setLevel(logging.INFO)
    state = RunState()
    both = Observers(guarded=[ProgressBar(), Logger()])
    try:
        for event in [INVOKED, OPENED, Resolving("a/b"), FAILED]:
            state.apply(event, 0.0)
            both.event(event, state)
            both.tick()
    finally:
        LOGGER.setLevel(logging.NOTSET)
    lines = [line.rpartition("\r")[2] for line in capfd.readouterr().err.split("\n")[:-1]]
    assert lines == [
        "out: 2 chunks of up to 10 texts",
        "asking the model hub for a/b",
        "out chunk 0, attempt 1: crashed: it died",
    ]
    both.close()
