"""The local engine: the devices of this machine, and workers that are children of this process."""

import time
from collections.abc import Callable, Sequence

from chunkvisor.devices.gpu import Device
from chunkvisor.devices.hostmemory import room_for_one_more
from chunkvisor.devices.stations import Station, Stations
from chunkvisor.engine.engine import Demand, Worker
from chunkvisor.engine.starter import Starter, WorkerSettings
from chunkvisor.errors import Halt
from chunkvisor.events.device import TemplateEvent
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Spec

_LOOK_S = 1.0


class LocalEngine(Starter):
    """See Engine."""

    def __init__(
        self, devices: Sequence[Device], settings: WorkerSettings, emit: Callable[[TemplateEvent], None]
    ) -> None:
        super().__init__(settings, emit)
        self._devices = devices
        self._room, self._room_s = False, float("-inf")

    def open(self, stations: Stations) -> None:
        """See Engine."""
        stations.add(self._devices)

    def prepare(self, demand: Demand) -> None:
        """See Engine."""
        self.expect(demand.pending(), len(self._devices) * demand.places)

    def holding(self, _station: Station) -> bool:
        """See Engine."""
        return self.loading

    def has_room(self, _station: Station, workers: Sequence[Worker]) -> bool:
        """See Engine; looked at once a second, since to look at every worker takes milliseconds."""
        now_s = time.monotonic()
        if now_s - self._room_s > _LOOK_S:
            self._room, self._room_s = room_for_one_more(worker.pid for worker in workers), now_s
        return self._room

    def start(
        self, station: Station, files: AttemptFiles, spec: Spec, *, fresh: bool, blocking_launches: bool
    ) -> Worker:
        """See Engine."""
        return self.start_on(station.device, files, spec, fresh=fresh, blocking_launches=blocking_launches)

    def abandon(self, _station: Station, halt: Halt) -> None:
        """See Engine."""
        raise halt
