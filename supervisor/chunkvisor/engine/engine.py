"""What the loop needs of an engine: devices to work on, and workers on them.

It never decides which chunk is worked on, or what an ended worker means.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from chunkvisor.devices.stations import Station, Stations
from chunkvisor.engine.worker import Worker
from chunkvisor.errors import Halt
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Spec


@dataclass(frozen=True, slots=True)
class Demand:
    """How much work there is."""

    pending: Callable[[], int]
    """Chunks that are not done."""
    places: int
    """Workers that one device has at a time, those prepared ahead included."""


class Engine(Protocol):
    """Devices and workers of one run."""

    def open(self, stations: Stations) -> None:
        """Put the devices in, now or later. Raises Halt where there can be none."""

    def prepare(self, demand: Demand) -> None:
        """There is work to do. Raises Halt."""

    def attend(self) -> None:
        """Take in the news. Raises Halt where nothing can be started any more."""

    def watched(self) -> list[int]:
        """Descriptors that become readable when there is news."""

    def holding(self, station: Station) -> bool:
        """Whether nothing is to be started there yet: a template is getting ready, say."""

    def has_room(self, station: Station, workers: Sequence[Worker]) -> bool:
        """Whether the device's machine has memory for one worker more; `workers` are all that run."""

    def start(
        self, station: Station, files: AttemptFiles, spec: Spec, *, fresh: bool, blocking_launches: bool
    ) -> Worker:
        """Start a worker for the attempt. Raises OSError where none can be started, and Halt like `attend`."""

    def mistrust(self, worker: Worker) -> None:
        """The worker has refused to run from its template. Raises Halt like `attend`."""

    def abandon(self, station: Station, halt: Halt) -> None:
        """Even SIGKILL does not end a worker there: go on without its machine. Raises `halt` where that is ours."""

    def close(self) -> None:
        """End what is left of the engine; all workers have ended."""
