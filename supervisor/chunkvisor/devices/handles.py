"""The devices of a run, and what nvidia-smi shows of them.

Whether a worker may have one, and who holds its memory.

What follows from it the scheduler decides.
"""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from enum import Enum
from typing import NamedTuple

from chunkvisor.devices.gpu import (
    SMI_BAD_ARGUMENT,
    SMI_FORMAT,
    SMI_LOST,
    Device,
    ask_smi,
    bytes_of,
    lines_of,
)
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
from chunkvisor.judge import OtherProcesses
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.taxonomy import OomFigures

# A killed context is gone when the memory in use is back to what it was before, give or take this
# much (the NVIDIA Resiliency Extension waits for the same amount). A context with its libraries
# takes about as much.
SLACK_BYTES = 512 << 20
# More or less than this comes and goes by itself: the driver's own, windows of a desktop.
_NOBODYS_BYTES = 768 << 20

# Recovery actions without which the GPU will not work (nvidia-smi's manual, GPU Recovery Action).
# Others are `None`, `Drain P2P` (traffic between GPUs), and what a driver says that does not know,
# such as `[Unknown Error]`.
_BAD_ACTION = re.compile(r"(gpu )?(drain and )?reset( required)?|(node )?reboot( required)?")


class Health(Enum):
    """Whether a worker may have the GPU."""

    GOOD = "good"
    BUSY = "busy"  # wait: others hold the memory that a worker needs
    BROKEN = "broken"  # only a repair helps
    BLIND = "blind"  # NVML is broken; CUDA may work all the same


@frozen
class HealthReport:
    """A judgment, in a word and in a sentence."""

    health: Health
    why: str = ""


class MemoryHolder(NamedTuple):
    """A process that holds memory of the GPU.

    In a container, nvidia-smi may name pids of the host or none.
    """

    pid: int
    name: str
    used_bytes: int | None


@frozen
class Reading:
    """What nvidia-smi reported of one GPU; None = nothing."""

    returncode: int | None  # None = no answer in time, or no nvidia-smi
    used_bytes: int | None = None
    recovery_action: str = ""
    holders: tuple[MemoryHolder, ...] = ()


def read_gpu(uuid: str) -> Reading:
    """Have nvidia-smi read the GPU."""
    gpu = ask_smi(("--query-gpu=memory.used,gpu_recovery_action", SMI_FORMAT, "-i", uuid))
    if (
        gpu.returncode == SMI_BAD_ARGUMENT
    ):  # a driver before 570 refuses the whole question for one field
        gpu = ask_smi(("--query-gpu=memory.used", SMI_FORMAT, "-i", uuid))
    apps = ask_smi(("--query-compute-apps=pid,process_name,used_memory", SMI_FORMAT, "-i", uuid))
    if gpu.returncode != 0:
        return Reading(gpu.returncode)
    # Other lines are warnings.
    of_gpu = (
        line
        for line in lines_of(gpu.text)
        if len(line) <= 2 and (line[0].isdecimal() or line[0][:1] == "[")
    )
    used, action = [*next(of_gpu, []), "", ""][:2]
    of_apps = (line for line in lines_of(apps.text) if len(line) >= 3 and line[0].isdecimal())
    holders = (
        MemoryHolder(int(pid), ",".join(name), bytes_of(held)) for pid, *name, held in of_apps
    )
    return Reading(0, bytes_of(used), action, tuple(holders))


def judge_gpu(
    reading: Reading, ours: frozenset[int] = frozenset(), total_bytes: int = 0
) -> HealthReport:
    """Judge a GPU of that size (0 = not known) for the next worker.

    `ours` are the pids of our workers on it.

    What ours hold is not held against it; that others leave too little for a model, the worker
    finds out.
    """
    if reading.returncode == SMI_LOST:
        return HealthReport(
            Health.BROKEN,
            "the GPU has fallen off the bus (nvidia-smi ended with 15): reboot the machine",
        )
    if _BAD_ACTION.fullmatch(reading.recovery_action.lower()) is not None:
        return HealthReport(
            Health.BROKEN, f"the driver asks for a recovery action: {reading.recovery_action}"
        )
    if reading.returncode != 0 or reading.used_bytes is None:
        return HealthReport(
            Health.BLIND, f"nvidia-smi gives no answer (exit code {reading.returncode})"
        )
    own = [holder.used_bytes for holder in reading.holders if holder.pid in ours]
    if len(own) < len(ours) or None in own:
        # how much of the memory is our own workers' is not known, in a container say
        return HealthReport(Health.GOOD)
    held_bytes = reading.used_bytes - sum(used or 0 for used in own)
    free_bytes = total_bytes - reading.used_bytes
    if not total_bytes or held_bytes <= SLACK_BYTES or free_bytes >= SLACK_BYTES:
        return HealthReport(Health.GOOD)
    others = [
        f"{holder.name} (pid {holder.pid})" for holder in reading.holders if holder.pid not in ours
    ]
    who = ", ".join(others[:3]) or "a process that cannot be named"
    held, free = (
        f"{size_bytes / 2**30:.1f} GiB" for size_bytes in (held_bytes, max(0, free_bytes))
    )
    return HealthReport(
        Health.BUSY, f"{held} of the GPU's memory are held by {who}; {free} are free"
    )


@frozen
class Site:
    """The machine that a device belongs to."""

    node: str = ""  # its number in the cluster; empty = the parent's machine, without a cluster
    name: str = ""  # for people
    threads: int = 0  # of a worker there; 0 = as many as here
    model_path: str | None = None  # where the model's files are on it; None = as here
    hub: str | None = None  # likewise, see ModelSpec


HERE = Site()

Look = Callable[[str], Future[Reading]]
"""Begins a look at the GPU with this UUID."""


def look_in_thread(uuid: str) -> Future[Reading]:
    """Have nvidia-smi read the GPU in a thread of its own: it may take its whole time limit."""
    look = Future[Reading]()

    def read() -> None:
        try:
            look.set_result(read_gpu(uuid))
        except Exception as error:  # noqa: BLE001 - who waits for the look raises it: nobody waits for ever
            look.set_exception(error)

    # The end of the process does not wait for this thread.
    threading.Thread(target=read, daemon=True).start()
    return look


class DeviceHandle:
    """One device, and what is known of it.

    Only a GPU of this machine that has a UUID can be looked at.
    """

    def __init__(
        self, number: int, device: Device, site: Site = HERE, look: Look | None = None
    ) -> None:
        self.number = number
        self.device = device
        self.site = site
        self._look = look or look_in_thread
        self.dropped = False
        # when the last worker that computed on it ended; None before the first
        self.freed_s: float | None = None
        self.seen = device.watched and not site.node
        self.alone = False  # a look since the last worker ended showed none but ours on it
        self._before_bytes = 0  # in use by others before our first worker
        self.asked: Future[Reading] | None = None  # a look that is in progress
        self._told: Health | None = None

    def __str__(self) -> str:
        return f"{self.device} of {self.site.name}" if self.site.name else str(self.device)

    def ask(self) -> None:
        """Begin a look, unless one is in progress."""
        if self.seen and self.asked is None:
            self.asked = self._look(self.device.uuid)

    def judge(
        self, look: "Future[Reading]", ours: frozenset[int], emit: Emit, *, first: bool = False
    ) -> HealthReport:
        """Wait for the look, and judge what it shows.

        The `first` one is that before our first worker.

        `ours` are the pids of our workers on it.
        """
        reading, self.asked = look.result(), None
        if first:
            self._before_bytes = reading.used_bytes or 0
        # Memory that no process has is the driver's, a dying context's, or another container's.
        unnamed_bytes = (reading.used_bytes or 0) - sum(
            holder.used_bytes or 0 for holder in reading.holders
        )
        only_ours = (
            all(holder.pid in ours for holder in reading.holders) and unnamed_bytes < SLACK_BYTES
        )
        self.alone = only_ours and reading.used_bytes is not None and not first
        # What is in use before our first worker is not waited for.
        health_report = judge_gpu(reading, ours, 0 if first else self.device.memory_bytes)
        if health_report.health is not self._told:  # once, not every two seconds
            self._told = health_report.health
            if health_report.health is Health.BUSY:
                emit(Warned(f"{self.device}: waiting, {health_report.why}"))
            elif health_report.health is Health.BLIND:
                instead = "the run continues without its readings, since CUDA may work all the same"
                emit(Note(f"{self.device}: {health_report.why}; {instead}"))
        return health_report

    def company(self, figures: OomFigures | None, siblings: frozenset[int]) -> OtherProcesses:
        """Say who else held the memory.

        `siblings` are the pids of other workers of this run that were on the device.

        torch's figures go before the last look, which is older than the fault. Others who were
        there when the run began are part of the device: what they leave is what there is.
        """
        if self.device.kind != "cuda":
            return OtherProcesses.UNKNOWN
        if siblings:
            return OtherProcesses.SIBLING
        if figures is not None:
            came_bytes = figures.others_bytes - self._before_bytes
            missing_bytes = figures.wanted_bytes - figures.free_bytes
            return (
                OtherProcesses.NEW
                if came_bytes > _NOBODYS_BYTES and came_bytes >= missing_bytes
                else OtherProcesses.UNKNOWN
            )
        return OtherProcesses.NONE if self.alone else OtherProcesses.UNKNOWN

    def get_used_to(self, others_bytes: int) -> None:
        """Note that others stay, and so they are not waited for any more."""
        self._before_bytes = max(self._before_bytes, others_bytes)


class DeviceHandles:
    """All devices of a run; those of a cluster come and go."""

    def __init__(
        self,
        seen: Callable[[DeviceHandle, HealthReport | None, bool], None],
        emit: Emit,
        look: Look = look_in_thread,
    ) -> None:
        """Begin without devices.

        `seen(station, opinion, gone)` hears that a device may be worked on, was looked at, or is
        gone.
        """
        self._seen = seen
        self._emit = emit
        self._look = look
        self._all: list[DeviceHandle] = []
        # why the last machine of a cluster that was left out was so
        self.last_halt: Halt | None = None

    def __getitem__(self, number: int) -> DeviceHandle:
        return self._all[number]

    @property
    def alive(self) -> list[DeviceHandle]:
        """Those that are not left out."""
        return [handle for handle in self._all if not handle.dropped]

    def add(self, devices: Sequence[Device], site: Site = HERE) -> None:
        """Take the devices of one machine, with a look at each."""
        first = len(self._all)
        added = [
            DeviceHandle(number, each, site, self._look)
            for number, each in enumerate(devices, first)
        ]
        self._all += added
        if site.node:
            self._emit(NodeJoined(site.name, ", ".join(map(str, devices)), added[0].number))
        if any(handle.seen for handle in added):
            self._emit(Doing("asking nvidia-smi how the GPUs are"))
        # All are asked before the first is waited for: nvidia-smi may take its whole time limit.
        for handle in added:
            handle.ask()
        for handle in added:
            look = handle.asked
            self._seen(
                handle,
                handle.judge(look, frozenset(), self._emit, first=True) if look else None,
                False,
            )
        if not site.node:
            self._emit(Doing(STARTING))

    def poll(self, pids: Callable[[], Mapping[int, frozenset[int]]]) -> None:
        """Report looks that have an answer.

        `pids()` are our workers on each device, by its number.
        """
        for handle in self.alive:
            if handle.asked is not None and handle.asked.done():
                ours = pids().get(handle.number, frozenset())
                self._seen(handle, handle.judge(handle.asked, ours, self._emit), False)

    def leave(self, number: int, halt: Halt) -> None:
        """Do without a device from now on."""
        handle = self._all[number]
        handle.dropped = True
        self._emit(DeviceDropped(str(handle), len(self.alive), halt.why or halt.what))
        if handle.site.node:
            self.last_halt = halt

    def lose(self, node: str, why: str, halt: Halt | None = None, name: str = "") -> None:
        """Do without a machine of the cluster from now on.

        It is gone, or `halt` says why it cannot do this job.

        Should it come back, it comes as a new one. `name` is for one that has never worked.
        """
        ours = [handle for handle in self.alive if handle.site.node == node]
        for handle in ours:
            handle.dropped = True
            name = handle.site.name
            self._seen(handle, None, True)
        self.last_halt = halt or self.last_halt
        if name:
            self._emit((NodeSetAside if halt is not None else NodeLost)(name, len(self.alive), why))
