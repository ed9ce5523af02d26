"""The devices of a run: whether a worker may have one, and who holds its memory.

Both are read from nvidia-smi; what follows from it, the scheduler decides.
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
from chunkvisor_worker.contract.taxonomy import UNATTRIBUTED_BYTES, OomFigures

# A killed context is gone when the memory in use is back to what it was before, give or take this
# much (the NVIDIA Resiliency Extension waits for the same amount). A context with its libraries
# takes about as much.
SLACK_BYTES = 512 << 20
# Recovery actions without which the GPU will not work (nvidia-smi's manual, GPU Recovery Action).
# Others are `None`, `Drain P2P` (traffic between GPUs), and `[Unknown Error]` and the like of a
# driver that cannot tell.
_BAD_ACTION = re.compile(r"(gpu )?(drain and )?reset( required)?|(node )?reboot( required)?")


class Health(Enum):
    """Whether a worker may have the GPU."""

    GOOD = "good"
    BUSY = "busy"  # wait: others hold the memory that a worker needs
    BROKEN = "broken"  # only a repair helps
    BLIND = "blind"  # NVML is broken; CUDA may work all the same


@frozen
class HealthReport:
    """What `judge_gpu` found, and a sentence that says why."""

    health: Health
    why: str = ""


class MemoryHolder(NamedTuple):
    """A process that holds memory of the GPU; in a container its pid may be the host's."""

    pid: int
    name: str
    used_bytes: int | None


@frozen
class Reading:
    """What nvidia-smi reported of one GPU; None = it did not say."""

    returncode: int | None  # None = no answer in time, or no nvidia-smi
    used_bytes: int | None = None
    recovery_action: str = ""
    holders: tuple[MemoryHolder, ...] = ()


def read_gpu(uuid: str) -> Reading:
    """Ask nvidia-smi about the GPU, which may take its whole time limit."""
    gpu = ask_smi(("--query-gpu=memory.used,gpu_recovery_action", SMI_FORMAT, "-i", uuid))
    # A driver before 570 refuses the whole question for one field that it does not know.
    if gpu.returncode == SMI_BAD_ARGUMENT:
        gpu = ask_smi(("--query-gpu=memory.used", SMI_FORMAT, "-i", uuid))
    apps = ask_smi(("--query-compute-apps=pid,process_name,used_memory", SMI_FORMAT, "-i", uuid))
    if gpu.returncode != 0:
        return Reading(gpu.returncode)
    # Other lines are warnings. An old driver gives no action; a broken one gives no line at all.
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
    """Say whether the next worker may have a GPU of that size (0 = not known).

    `ours` are the pids of our workers on it, whose memory does not count. Whether what others
    leave is enough for the model, the worker finds out.
    """
    if reading.returncode == SMI_LOST:
        return HealthReport(
            Health.BROKEN,
            "the GPU has fallen off the bus (nvidia-smi ended with 15): reboot the machine",
        )
    if _BAD_ACTION.fullmatch(reading.recovery_action.lower()):
        return HealthReport(
            Health.BROKEN, f"the driver asks for a recovery action: {reading.recovery_action}"
        )
    if reading.returncode != 0 or reading.used_bytes is None:
        return HealthReport(
            Health.BLIND, f"nvidia-smi gives no answer (exit code {reading.returncode})"
        )
    own = [holder.used_bytes for holder in reading.holders if holder.pid in ours]
    if len(own) < len(ours) or None in own:
        # In a container, say, it is not known how much of the memory is our own workers'.
        return HealthReport(Health.GOOD)
    held_bytes = reading.used_bytes - sum(used or 0 for used in own)
    free_bytes = total_bytes - reading.used_bytes
    if not total_bytes or held_bytes <= SLACK_BYTES or free_bytes >= SLACK_BYTES:
        return HealthReport(Health.GOOD)
    others = [
        f"{holder.name} (pid {holder.pid})" for holder in reading.holders if holder.pid not in ours
    ]
    who = ", ".join(others[:3]) or "a process that cannot be named"
    return HealthReport(
        Health.BUSY,
        f"{held_bytes / 2**30:.1f} GiB of the GPU's memory are held by {who}; "
        f"{max(0, free_bytes) / 2**30:.1f} GiB are free",
    )


@frozen
class Site:
    """The machine that a device belongs to."""

    node: str = ""  # its number in the cluster; empty = the parent's machine, without a cluster
    name: str = ""  # for people
    threads: int = 0  # of a worker there; 0 = as many as here
    model_path: str | None = None  # folder of the model's files there; None = as here
    hub: str | None = None  # cache of the hub there (see ModelSpec); None = as here


HERE = Site()

StartReading = Callable[[str], Future[Reading]]
"""Begins to read the GPU with this UUID."""


def read_in_thread(uuid: str) -> Future[Reading]:
    """Begin `read_gpu` in a thread, so that the caller need not wait for nvidia-smi."""
    pending = Future[Reading]()

    def read_now() -> None:
        try:
            pending.set_result(read_gpu(uuid))
        except Exception as error:  # noqa: BLE001 - raised where the result is waited for
            pending.set_exception(error)

    # The end of the process does not wait for this thread.
    threading.Thread(target=read_now, daemon=True).start()
    return pending


class DeviceHandle:
    """One device of the run, and what is known of it.

    Only a GPU of this machine that has a UUID can be read.
    """

    def __init__(
        self, number: int, device: Device, site: Site = HERE, start: StartReading = read_in_thread
    ) -> None:
        self.number = number
        self.device = device
        self.site = site
        self._start = start
        self.dropped = False
        # when the last worker that computed on it ended; None before the first
        self.freed_s: float | None = None
        self.is_readable = device.known_to_smi and not site.node
        # whether the last reading shows no process but our workers; false once a worker has ended
        self.only_ours = False
        self._before_bytes = 0  # in use by others before our first worker
        self.pending: Future[Reading] | None = None  # a reading that is in progress
        self._reported_health: Health | None = None

    def __str__(self) -> str:
        return f"{self.device} of {self.site.name}" if self.site.name else str(self.device)

    def start_reading(self) -> None:
        """Begin a reading, unless one is in progress or the device cannot be read."""
        if self.is_readable and not self.pending:
            self.pending = self._start(self.device.uuid)

    def judge(
        self, ours: frozenset[int], emit: Emit, *, first: bool = False
    ) -> HealthReport | None:
        """Wait for the reading in progress, and say what it means for the next worker.

        None if no reading is in progress. `ours` are the pids of our workers on it. The `first`
        reading is that before our first worker: what is in use then is not waited for.
        """
        if not self.pending:
            return None
        reading = self.pending.result()
        self.pending = None
        if first:
            self._before_bytes = reading.used_bytes or 0
        # Memory that no process has is the driver's, a dying context's, or another container's.
        unnamed_bytes = (reading.used_bytes or 0) - sum(
            holder.used_bytes or 0 for holder in reading.holders
        )
        self.only_ours = (
            not first
            and reading.used_bytes is not None
            and unnamed_bytes < SLACK_BYTES
            and all(holder.pid in ours for holder in reading.holders)
        )
        health_report = judge_gpu(reading, ours, 0 if first else self.device.memory_bytes)
        if health_report.health is not self._reported_health:  # once, not every two seconds
            self._reported_health = health_report.health
            if health_report.health is Health.BUSY:
                emit(Warned(f"{self.device}: waiting, {health_report.why}"))
            elif health_report.health is Health.BLIND:
                instead = "the run continues without its readings, since CUDA may work all the same"
                emit(Note(f"{self.device}: {health_report.why}; {instead}"))
        return health_report

    def other_processes(
        self, figures: OomFigures | None, siblings: frozenset[int]
    ) -> OtherProcesses:
        """Say who else held memory of the device when a worker ran out of it.

        `siblings` are the pids of this run's other workers there. torch's `figures` count for more
        than the last reading, which is older than the fault. What others held before the run
        counts as part of the device.
        """
        if self.device.kind != "cuda":
            return OtherProcesses.UNKNOWN
        if siblings:
            return OtherProcesses.SIBLING
        if figures:
            came_bytes = figures.others_bytes - self._before_bytes
            missing_bytes = figures.wanted_bytes - figures.free_bytes
            return (
                OtherProcesses.NEW
                if came_bytes > UNATTRIBUTED_BYTES and came_bytes >= missing_bytes
                else OtherProcesses.UNKNOWN
            )
        return OtherProcesses.NONE if self.only_ours else OtherProcesses.UNKNOWN

    def accept_others(self, others_bytes: int) -> None:
        """Count this much memory as held by others who stay: it is not waited for any more."""
        self._before_bytes = max(self._before_bytes, others_bytes)


class DeviceHandles:
    """All devices of a run; those of a cluster come and go."""

    def __init__(self, emit: Emit, start: StartReading = read_in_thread) -> None:
        """Begin without devices."""
        # (device, its health, whether it is gone) of each that was added, read or lost; whoever
        # takes them in empties the list.
        self.changed: list[tuple[DeviceHandle, HealthReport | None, bool]] = []
        self._emit = emit
        self._start = start
        self._all: list[DeviceHandle] = []
        # why the machine of a cluster that was dropped last cannot do this job
        self.last_halt: Halt | None = None

    def __getitem__(self, number: int) -> DeviceHandle:
        return self._all[number]

    @property
    def alive(self) -> list[DeviceHandle]:
        """Return those that are not dropped."""
        return [handle for handle in self._all if not handle.dropped]

    def add(self, devices: Sequence[Device], site: Site = HERE) -> None:
        """Take the devices of one machine, and read each."""
        added = [
            DeviceHandle(number, each, site, self._start)
            for number, each in enumerate(devices, len(self._all))
        ]
        self._all += added
        if site.node:
            self._emit(NodeJoined(site.name, ", ".join(map(str, devices)), added[0].number))
        if any(handle.is_readable for handle in added):
            self._emit(Doing("asking nvidia-smi how the GPUs are"))
        # All readings begin before the first is waited for: each may take nvidia-smi's time limit.
        for handle in added:
            handle.start_reading()
        for handle in added:
            health_report = handle.judge(frozenset(), self._emit, first=True)
            self.changed.append((handle, health_report, False))
        if not site.node:
            self._emit(Doing(STARTING))

    def poll(self, pids: Callable[[], Mapping[int, frozenset[int]]]) -> None:
        """Report readings that are done; `pids()` has our workers' pids, by device number."""
        for handle in self.alive:
            if handle.pending and handle.pending.done():
                ours = pids().get(handle.number, frozenset())
                self.changed.append((handle, handle.judge(ours, self._emit), False))

    def drop(self, number: int, halt: Halt) -> None:
        """Work without this device from now on."""
        handle = self._all[number]
        handle.dropped = True
        self._emit(DeviceDropped(str(handle), len(self.alive), halt.why or halt.what))
        if handle.site.node:
            self.last_halt = halt

    def drop_node(self, node: str, why: str, halt: Halt | None = None, name: str = "") -> None:
        """Work without this machine of the cluster from now on.

        It is gone, or `halt` says why it cannot do this job. If it comes back, it is a new one.
        `name` is that of a node that has never had a device here.
        """
        ours = [handle for handle in self.alive if handle.site.node == node]
        for handle in ours:
            handle.dropped = True
            name = handle.site.name
            self.changed.append((handle, None, True))
        self.last_halt = halt or self.last_halt
        if name:
            self._emit((NodeSetAside if halt else NodeLost)(name, len(self.alive), why))
