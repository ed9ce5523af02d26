"""How a run that is to end gets there: what can be finished in time is, and the rest leaves with what it has.

Pure. A worker that leaves ends after the batch under way; what it has encoded is kept.
"""

from collections.abc import Callable
from typing import Protocol

from chunkvisor.supervise import instructions as do
from chunkvisor.supervise.fleet import Fleet, Gate, Worker
from chunkvisor.supervise.leaving import Leaving

_RESERVE = 0.2
"""Of the time left when the drain begins: for what follows once the last worker has ended."""
_RESERVE_S = 10.0
"""At most so much."""


class Forecast(Protocol):
    """What is known of the work under way."""

    def left_s(self, worker: int) -> float | None:
        """Seconds until the worker has its last vector, at the rate so far; None = it has done no batch yet."""


class Draining:
    """A run that starts nothing new."""

    def __init__(
        self, fleet: Fleet, leaving: Leaving, forecast: Forecast, say: Callable[[do.Instruction], None]
    ) -> None:
        self._fleet = fleet
        self._leaving = leaving
        self._forecast = forecast
        self._say = say
        self.begun = False
        self._last_s: float | None = None
        """Until then workers may work; None = as long as it takes."""
        self._halfway_s = 0.0
        """Until then a worker whose first batch is under way is waited for."""
        self._joins_stopped = False

    def begin(self, until_s: float | None, now_s: float) -> None:
        """Start nothing new from now on, and be done by then."""
        self.begun = True
        if until_s is not None:
            left_s = max(0.0, until_s - now_s)
            self._last_s = until_s - min(_RESERVE * left_s, _RESERVE_S)
            self._halfway_s = now_s + left_s / 2
        for worker in self._fleet.workers.values():
            if worker.gate is Gate.SHUT:
                self._leaving.end(worker, "the run is draining")
        self.turn(now_s)

    def turn(self, now_s: float) -> None:
        """Have those leave who cannot be done in time, and end what is still there when it is over."""
        last_s = self._last_s
        if last_s is None:
            return
        for worker in self._fleet.workers.values():
            working = worker.gate is Gate.OPEN and not worker.leaving and not worker.ending
            if now_s >= last_s:
                self._leaving.end(worker, "the time for the work under way is over")
            elif working and not self._in_time(worker, now_s, last_s):
                worker.leaving = True
                self._say(do.Leave(worker.number, "its chunk could not be finished before the run has to end"))
        if now_s >= last_s and not self._joins_stopped:
            self._joins_stopped = True
            self._say(do.StopJoins())

    def _in_time(self, worker: Worker, now_s: float, last_s: float) -> bool:
        left_s = self._forecast.left_s(worker.number)
        return now_s < self._halfway_s if left_s is None else now_s + left_s <= last_s
