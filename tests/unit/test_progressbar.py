"""The progress bar of Python programs: what it says at each point of a run."""

import pytest

from chunkvisor.events.attempt import ChunkCommitted, Go
from chunkvisor.events.event import Event
from chunkvisor.events.output import OutputOpened, Staging
from chunkvisor.events.run import Draining, Invoked, Resolving, Waiting
from chunkvisor.events.state import RunState
from chunkvisor.observe.progressbar import ProgressBar

INVOKED = Invoked(workdir="nowhere")
OPENED = OutputOpened("out", rows=40, distinct=20, chunks=2, chunk_size=10)
GO = Go("out", 0, 1, rows=8)
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
        ([INVOKED, OPENED, GO, Draining("SIGTERM")], "stopping: the chunks under way are finished or saved first"),
    ],
    ids=["nothing", "hub", "wait", "source", "opened", "half", "interrupted", "ended"],
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
