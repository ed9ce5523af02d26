"""What speaks against the devices and machines of a run: attempts that failed there, and workers that did not start.

Pure. It leaves none out, and gives no chunk its tries back: the scheduler does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chunkvisor.decide.starts import FailedStart, Starts
from chunkvisor.decide.suspicion import Charge, Place, Suspicion
from chunkvisor.decide.verdict import Verdict
from chunkvisor.supervise.task import Seat
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rule import LOAD


@dataclass(frozen=True, slots=True)
class Guilty:
    """A machine of a cluster, or a device, on which workers fail while they succeed on others."""

    place: Place
    charges: Sequence[Charge]
    """What its chunks were charged with by its doing."""


class Suspects:
    """Of one run."""

    def __init__(self) -> None:
        self._nodes, self._devices = Suspicion(), Suspicion()
        self._devices_of: dict[Place, set[int]] = {}
        """Of each machine of a cluster, the devices that something was charged to."""
        self._starts = Starts()

    def failed(self, seat: Seat, charge: Charge) -> None:
        """An attempt failed there, which was charged to its chunk."""
        self._devices.failed(seat.device, charge)
        if seat.node:
            self._nodes.failed(seat.node, charge)
            self._devices_of.setdefault(seat.node, set()).add(seat.device)

    def succeeded(self, seat: Seat) -> None:
        """An attempt succeeded there."""
        self.started(seat)
        self._devices.succeeded(seat.device)
        if seat.node:
            self._nodes.succeeded(seat.node)

    def started(self, seat: Seat) -> None:
        """A worker got to its first batch there."""
        self._starts.succeeded(seat.device, seat.node)

    def starts_before(self, seat: Seat, verdict: Verdict, life_s: tuple[float, float]) -> tuple[int, float]:
        """As `Starts.before`; `life_s` is when the worker began and when it ended."""
        return self._starts.before(*_start_of(seat, verdict, life_s))

    def did_not_start(self, seat: Seat, verdict: Verdict, life_s: tuple[float, float]) -> None:
        """A worker failed before its first batch."""
        self._starts.failed(*_start_of(seat, verdict, life_s))

    def guilty(self) -> Iterator[Guilty]:
        """Those that are to be left out; each is told once, and forgotten."""
        if (node := self._nodes.guilty()) is not None:
            for device in self._devices_of.pop(node, ()):  # what they charged is the machine's
                self._devices.pardon(device)
            yield Guilty(node, self._nodes.pardon(node))
        if (guilty := self._devices.guilty()) is not None:
            yield Guilty(guilty, self._devices.pardon(guilty))


def _start_of(seat: Seat, verdict: Verdict, life_s: tuple[float, float]) -> tuple[Place, FailedStart]:
    """(place, failed start): what fails while the model is loaded is the machine's, with its installation."""
    return seat.node if of_installation(verdict) else seat.device, FailedStart(*life_s)


def of_installation(verdict: Verdict) -> bool:
    """Whether a failed start is the matter of a machine, with what is installed there, and not of a device."""
    return verdict.phase in LOAD and verdict.outcome in (Outcome.CRASHED, Outcome.BAD_OUTPUT, Outcome.SETUP)
