"""Observers hear of a run, and none of them can harm it."""

import pytest

from chunkvisor.events.event import Event, RunStarted
from chunkvisor.events.state import RunState
from chunkvisor.show.observer import Observer, Observers


class Fragile(Observer):
    """Keeps what it hears; raises at one call."""

    def __init__(self, at: str) -> None:
        self.heard: list[str] = []
        self._at = at

    def _hear(self, call: str) -> None:
        self.heard.append(call)
        if call == self._at:
            raise ValueError("no")

    def event(self, event: Event, state: RunState) -> None:
        """Hear of an event."""
        self._hear(event.name)

    def tick(self) -> None:
        """Hear the tick."""
        self._hear("tick")

    def close(self) -> None:
        """Hear of the end."""
        self._hear("close")


@pytest.mark.parametrize("at", ["run_started", "tick", "close"])
def test_an_observer_that_fails_is_left_out(at: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whichever call fails, the others go on, it is called no more, and standard error says so once."""
    fragile, sound = Fragile(at), Fragile("")
    observers = Observers(sound, guarded=[fragile])

    for _ in range(2):
        observers.event(RunStarted("w", "cpu"), RunState())
        observers.tick()
        observers.close()

    assert sound.heard == ["run_started", "tick", "close"] * 2
    assert fragile.heard == ["run_started", "tick", "close"][: fragile.heard.index(at) + 1]
    assert capsys.readouterr().err.count("Fragile is left out") == 1
