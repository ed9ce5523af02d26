"""What the scheduler asks of engine and workers: whether there is room for one more, and how long one will take."""

import time
from collections.abc import Mapping

from chunkvisor.devices.stations import Stations
from chunkvisor.engine.engine import Engine
from chunkvisor.supervise.slot import Slot


class EngineCapacity:
    """Of the engine, with the workers that are running."""

    def __init__(self, engine: Engine, stations: Stations, running: Mapping[int, Slot]) -> None:
        self._engine = engine
        self._stations = stations
        self._running = running

    def holding(self, device: int) -> bool:
        """See Capacity."""
        return self._engine.holding(self._stations[device])

    def has_room(self, device: int) -> bool:
        """See Capacity."""
        workers = [slot.worker for slot in self._running.values()]
        return self._engine.has_room(self._stations[device], workers)

    def left_s(self, worker: int) -> float | None:
        """See Forecast."""
        slot = self._running.get(worker)
        return slot.left_s(time.monotonic()) if slot is not None else None
