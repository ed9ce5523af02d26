"""What speaks against the machines and devices of a run: attempts that failed there, and workers that did not start.

It never leaves one out, and never forgives a chunk its tries: `aftermath` does.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from chunkvisor.decide.outcome import Verdict
from chunkvisor.decide.starts import Chunk, FailedStart, Starts
from chunkvisor.decide.suspicion import Charge, Suspicion
from chunkvisor.devices.stations import Station, device_place
from chunkvisor.errors import ExitCode, Halt
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rule import LOAD


@dataclass(frozen=True, slots=True)
class Guilty:
    """A machine of a cluster, or a device, on which workers fail while they succeed on others."""

    machine: str
    """Empty = it is a device."""
    device: str
    """As `device_place` names it; empty = it is a machine."""
    charges: tuple[Charge, ...]
    """What its chunks were charged with by its doing."""

    @property
    def halt(self) -> Halt:
        """Why it is left out."""
        kind = "machine" if self.machine else "device"
        return Halt(
            ExitCode.MACHINE,
            f"workers keep failing on one {kind}, and succeed on others",
            why=f"{len(self.charges)} attempts in a row failed there while others succeeded elsewhere, "
            f"the last as {self.charges[-1].outcome}",
            remedy=f"look after that {kind}: chunkvisor doctor; then run the same command again",
        )


class Blame:
    """Of one run."""

    def __init__(self) -> None:
        self._machines, self._devices = Suspicion(), Suspicion()
        self._devices_of: dict[str, set[str]] = {}
        """Of each machine of a cluster, the devices that something was charged to."""
        self._starts = Starts()

    def failed(self, station: Station, charge: Charge) -> None:
        """An attempt failed there, which was charged to its chunk."""
        self._devices.failed(device_place(station), charge)
        if node := station.site.node:
            self._machines.failed(node, charge)
            self._devices_of.setdefault(node, set()).add(device_place(station))

    def succeeded(self, station: Station) -> None:
        """An attempt succeeded there."""
        self.started(station)
        self._devices.succeeded(device_place(station))
        if station.site.node:
            self._machines.succeeded(station.site.node)

    def started(self, station: Station) -> None:
        """A worker got to its first batch there."""
        self._starts.succeeded(device_place(station), _machine_place(station))

    def starts_before(
        self, station: Station, verdict: Verdict, chunk: Chunk, life_s: tuple[float, float]
    ) -> tuple[int, bool]:
        """As `Starts.before`; `life_s` is when the worker began and when it ended."""
        return self._starts.before(*_start_of(station, verdict, chunk, life_s))

    def did_not_start(self, station: Station, verdict: Verdict, chunk: Chunk, life_s: tuple[float, float]) -> None:
        """A worker failed before its first batch."""
        self._starts.failed(*_start_of(station, verdict, chunk, life_s))

    def guilty(self) -> Iterator[Guilty]:
        """Those that are to be left out; each is told once, and forgotten."""
        if (machine := self._machines.guilty()) is not None:
            for device in self._devices_of.pop(machine, ()):  # what they charged is the machine's
                self._devices.pardon(device)
            yield Guilty(machine, "", tuple(self._machines.pardon(machine)))
        if (guilty := self._devices.guilty()) is not None:
            yield Guilty("", guilty, tuple(self._devices.pardon(guilty)))


def _machine_place(station: Station) -> str:
    return f"machine {station.site.node}"


def _start_of(station: Station, verdict: Verdict, chunk: Chunk, life_s: tuple[float, float]) -> tuple[str, FailedStart]:
    """(place, failed start): what fails while the model is loaded is the machine's, with its installation."""
    of_model = verdict.phase in LOAD and verdict.outcome in (Outcome.CRASHED, Outcome.BAD_OUTPUT, Outcome.SETUP)
    place = _machine_place(station) if of_model else device_place(station)
    return place, FailedStart(verdict.outcome, verdict.rule, chunk, *life_s)
