"""The devices of a run, and how they are looked at; what follows from it the scheduler decides."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from chunkvisor.devices.gpu import Device
from chunkvisor.devices.health import Health, Look, Opinion, Reading, View, judge_gpu, looks_at
from chunkvisor.errors import Halt
from chunkvisor.events.event import (
    STARTING,
    DeviceDropped,
    Doing,
    Emit,
    NodeJoined,
    NodeLost,
    NodeSetAside,
    Note,
    Warned,
)

# A driver gives the memory of a killed process back within seconds; after this, others hold it.
_SETTLE_S = 30.0


@dataclass(frozen=True, slots=True)
class Site:
    """The machine that a device belongs to."""

    node: str = ""  # its number in the cluster; empty = the parent's machine, without a cluster
    name: str = ""  # for people
    threads: int = 0  # of a worker there; 0 = as many as here
    model_path: str | None = None  # where the model's files are on it; None = as here


class Station:
    """One device; what is not a GPU known to nvidia-smi cannot be looked at."""

    def __init__(self, number: int, device: Device, site: Site = Site(), look: Look | None = None) -> None:
        self.number, self.device, self.site = number, device, site
        self.dropped = False
        self.freed_s: float | None = None  # when the last worker that computed on it ended; None before the first
        self.look = (look or looks_at(device)) if device.watched else None  # begins one
        self._asked: Future[Reading] | None = None
        self._unnamed_bytes: int | None = None  # in use before our first worker, by no process that nvidia-smi names
        self._ended_s = float("-inf")
        self._told: set[Health] = set()
        self.view = View(blind=self.look is None) if device.kind == "cuda" else None  # None = it is not a GPU

    def __str__(self) -> str:
        return f"{self.device} of {self.site.name}" if self.site.name else str(self.device)

    def ask(self) -> None:
        """Begin a look, unless one is under way."""
        if self.look is not None and self._asked is None:
            self._asked = self.look()

    def answer(
        self, ours: frozenset[int], need_bytes: int, emit: Emit, *, first: bool = False, now_s: float | None = None
    ) -> Opinion | None:
        """Say what the look under way says; None until it does, and if the device cannot be looked at.

        `ours` are the pids of our workers on it. The `first` one is waited for; memory that is in use by then, before
        our first worker, is not waited for later.
        """
        if self._asked is None or self.view is None or not (first or self._asked.done()):
            return None
        reading, self._asked = self._asked.result(), None
        if first:
            self._unnamed_bytes = reading.unnamed_bytes if reading.used_bytes is not None else None
            self.view.before_bytes = reading.used_bytes or 0
            opinion = judge_gpu(reading)
        else:
            self.view.alone = reading.is_alone(ours)
            settles = (time.monotonic() if now_s is None else now_s) - self._ended_s < _SETTLE_S
            opinion = judge_gpu(
                reading,
                ours,
                total_bytes=self.device.memory_bytes,
                need_bytes=need_bytes,
                before_bytes=self._unnamed_bytes if settles else None,
            )
        self.view.blind = opinion.health is Health.BLIND
        if opinion.health in (Health.BUSY, Health.BLIND) and opinion.health not in self._told:  # not every two seconds
            self._told = {opinion.health}
            blind = "going on without its readings, CUDA may work all the same"
            busy = opinion.health is Health.BUSY
            emit(
                Warned(f"{self.device}: waiting, {opinion.why}")
                if busy
                else Note(f"{self.device}: {opinion.why}; {blind}")
            )
        return opinion

    def worker_ended(self, now_s: float) -> None:
        """Note that a worker that had the device has ended: its memory may take a while to come back."""
        self._ended_s = now_s
        if self.view is not None:
            self.view.alone = False  # it may have changed since the last look

    def get_used_to(self, others_bytes: int) -> None:
        """Note that others stay, and so they are not waited for any more."""
        if self.view is not None:
            self.view.before_bytes = max(self.view.before_bytes, others_bytes)


class Stations:
    """All devices of a run; those of a cluster come and go."""

    def __init__(self, seen: Callable[[Station, Opinion | None, bool], None], emit: Emit) -> None:
        """`seen(station, opinion, gone)` hears that a device may be worked on, was looked at, or is gone."""
        self._seen, self._emit = seen, emit
        self._all: list[Station] = []
        self._asked: set[int] = set()
        self._left_out: list[str] = []
        self._need_bytes = 0
        self.last_halt: Halt | None = None  # why the last machine of a cluster that was left out was so

    def __getitem__(self, number: int) -> Station:
        return self._all[number]

    @property
    def alive(self) -> list[Station]:
        """Those that are not left out."""
        return [station for station in self._all if not station.dropped]

    def add(
        self,
        devices: Sequence[Device],
        site: Site = Site(),
        look_of: Callable[[Device], Look | None] = lambda _: None,
    ) -> None:
        """Take the devices of one machine, with a look at each; `look_of` says how, unless as on this machine."""
        added = [Station(number, each, site, look_of(each)) for number, each in enumerate(devices, len(self._all))]
        self._all += added
        if site.node:
            self._emit(NodeJoined(site.name, ", ".join(map(str, devices)), added[0].number))
        # All are asked before the first is waited for: nvidia-smi may take its whole time limit.
        for station in added:
            if station.device.watched and not site.node:
                self._emit(Doing(f"asking nvidia-smi how {station} is"))
            station.ask()
        for station in added:
            self._seen(station, station.answer(frozenset(), 0, self._emit, first=True), False)
        if not site.node:
            self._emit(Doing(STARTING))

    def ask(self, number: int) -> None:
        """Begin a look at the device."""
        self._asked.add(number)
        self._all[number].ask()

    def attend(self, pids: Callable[[], Mapping[int, frozenset[int]]]) -> None:
        """Report looks that have an answer; `pids()` are our workers on each device, by its number."""
        for number in list(self._asked):
            station = self._all[number]
            opinion = station.answer(pids().get(number, frozenset()), self._need_bytes, self._emit)
            if opinion is not None:
                self._asked.discard(number)
                self._seen(station, opinion, False)

    def leave(self, number: int, halt: Halt) -> None:
        """Do without a device from now on."""
        station = self._all[number]
        self._drop(station)
        self._left_out.append(f"{station}: {halt.why or halt.what}")
        self._emit(DeviceDropped(str(station), len(self.alive), halt.why or halt.what))
        if station.site.node:
            self.last_halt = halt

    def drop_node(self, node: str, halt: Halt, name: str = "") -> None:
        """Do without a machine of the cluster from now on; `name` is for one that has never worked."""
        if ours := self._leave_node(node) or name:
            self._emit(NodeSetAside(ours, len(self.alive), halt.why or halt.what))
        self.last_halt = halt

    def lose(self, node: str, why: str) -> None:
        """Note that a machine of the cluster is gone; should it come back, it comes as a new one."""
        if name := self._leave_node(node):
            self._emit(NodeLost(name, len(self.alive), why))

    def _leave_node(self, node: str) -> str:
        """Return its name; empty if it had no device left."""
        ours = [station for station in self.alive if station.site.node == node]
        for station in ours:
            self._drop(station)
            self._seen(station, None, True)
        return ours[0].site.name if ours else ""

    def _drop(self, station: Station) -> None:
        station.dropped = True
        self._asked.discard(station.number)

    def learn_need(self, need_bytes: int) -> None:
        """Note what a worker needs before its first batch, by its files, or as one was seen to."""
        self._need_bytes = max(self._need_bytes, need_bytes)

    def with_others(self, halt: Halt) -> Halt:
        """Add the devices that were left out before to the words of the last device's end."""
        if self._left_out:
            halt.why = "\nleft out before: ".join([halt.why, *self._left_out])
        return halt
