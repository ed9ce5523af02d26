"""The progress bar of Python programs: what it says at each point of a run."""

import logging
import sys
import time

import pytest

from chunkvisor.events.event import (
    AttemptFailed,
    ChunkCommitted,
    Draining,
    Event,
    Go,
    Invoked,
    OutputOpened,
    Resolving,
    Staging,
    TemplateStarted,
    Waiting,
)
from chunkvisor.events.state import RunState
from chunkvisor.show.lines import LOGGER, Logger
from chunkvisor.show.observer import Observers
from chunkvisor.show.terminal import ProgressBar

INVOKED = Invoked(workdir="nowhere")
OPENED = OutputOpened("out", rows=40, distinct=20, chunks=2, chunk_size=10)
BEGUN = OutputOpened("out", rows=40, distinct=40, chunks=2, chunk_size=20, chunks_done=1, texts_done=20)
GO = Go("out", 0, 1, rows=8)
FAILED = AttemptFailed("out", 0, 1, "crashed", "it died")
DONE = ChunkCommitted("out", 0, 1, chunks_done=1, chunks=2, texts_done=10)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([], ""),
        ([INVOKED, Resolving("a/b")], "asking the model hub for a/b"),
        ([INVOKED, Resolving("a/b"), Waiting(5.0, "no room. See df")], "waiting, next try in 5 s: no room. See df"),
        ([INVOKED, Staging("embeddings")], "reading your texts"),
        ([INVOKED, BEGUN, TemplateStarted(0)], "loading the model, once for all workers, 20 of 40"),
        ([INVOKED, OPENED, GO, DONE], "about 20 of 40 rows"),
        ([INVOKED, OPENED, GO, FAILED], "1 attempt failed and is tried again"),
        ([INVOKED, OPENED, GO, Draining("SIGTERM")], "stopping: the chunks under way are finished or saved first"),
    ],
)
def test_what_it_says(
    events: list[Event], said: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the run is at, how far it is, and whether to worry; a bar without rows is taken away."""
    monkeypatch.setenv("COLUMNS", "200")
    bar, state = ProgressBar("your texts"), RunState()
    for event in events:
        state.apply(event, time.time())
        bar.event(event, state)
    bar.tick()
    drawn = capfd.readouterr().err
    assert said in drawn
    assert bool(drawn) == bool(events)
    bar.close()
    last = capfd.readouterr().err.rpartition("\r")[2]
    assert last.endswith("\n") == any(isinstance(each, OutputOpened) for each in events)
    assert "stopped, " in last or last.strip() == ""


def test_lines_of_the_log_stand_alone(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a bar is drawn, each line that is logged begins a line of the terminal, and is told once."""
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
