"""The devices of a run, and what nvidia-smi and the kernel's log say of them.

What follows from it the scheduler decides.
"""

import contextlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from enum import Enum

from chunkvisor.devices.gpu import SMI_FORMAT, SMI_LOST, Device, ask_smi, bytes_of, in_background, lines_of, query_gpus
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
from chunkvisor.judge import Company, Verdict
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.taxonomy import OomFigures

# A killed context is gone when the memory in use is back to what it was before, give or take this much (the NVIDIA
# Resiliency Extension waits for the same amount). A context with its libraries takes about as much.
SLACK_BYTES = 512 << 20
# More or less than this comes and goes by itself: the driver's own, windows of a desktop.
_NOBODYS_BYTES = 768 << 20

# Recovery actions without which the GPU will not work (nvidia-smi's manual, GPU Recovery Action). Others are `None`,
# `Drain P2P` (traffic between GPUs), and what a driver says that does not know, such as `[Unknown Error]`.
_BAD_ACTION = re.compile(r"(gpu )?(drain and )?reset( required)?|(node )?reboot( required)?")
_RESET_XIDS = frozenset({46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158})
# Buckets of NVIDIA's Xid catalog. 45 is what our own kills produce, 43 an application's fault: neither counts.
_REBOOT_XIDS = frozenset({79, 151})


class Health(Enum):
    """Whether a worker may have the GPU."""

    GOOD = "good"
    BUSY = "busy"  # wait: others hold the memory that a worker needs
    BROKEN = "broken"  # nothing that we can do mends it
    BLIND = "blind"  # NVML cannot tell; CUDA may work all the same


@dataclass(frozen=True, slots=True)
class Opinion:
    """A judgment, in a word and in a sentence."""

    health: Health
    why: str = ""


@dataclass(frozen=True, slots=True)
class MemoryHolder:
    """A process that holds memory of the GPU; in a container, nvidia-smi may name pids of the host or none."""

    pid: int
    name: str
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Reading:
    """What nvidia-smi said of one GPU; None = it did not say."""

    returncode: int | None  # None = no answer in time, or no nvidia-smi
    used_bytes: int | None = None
    recovery_action: str | None = None
    holders: tuple[MemoryHolder, ...] = ()
    xids: tuple[int, ...] = ()  # of this GPU, from the kernel's log, since the run began

    def is_alone(self, ours: frozenset[int]) -> bool:
        """Whether only `ours` are seen on the GPU."""
        if self.returncode != 0 or self.used_bytes is None:
            return False
        # The rest is the driver's, a dying context's, another container's.
        unnamed_bytes = self.used_bytes - sum(holder.used_bytes or 0 for holder in self.holders)
        return all(each.pid in ours for each in self.holders) and unnamed_bytes < SLACK_BYTES


def looks_at(device: Device) -> Callable[[], "Future[Reading]"]:
    """Have nvidia-smi read the GPU when asked to, and the kernel's log its Xids from now on, if we may read it."""
    log: int | None = None
    lines = list[str]()
    with contextlib.suppress(OSError):
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(log, 0, os.SEEK_END)

    def read() -> Reading:
        gpu = query_gpus("memory.used", "gpu_recovery_action", device.uuid)  # the latter since driver 570
        if gpu.returncode != 0:
            return Reading(gpu.returncode)
        apps = ask_smi(("--query-compute-apps=pid,process_name,used_memory", SMI_FORMAT, "-i", device.uuid))
        while log is not None:
            try:
                lines.append(os.read(log, 8192).decode(errors="replace"))
            except BrokenPipeError:  # a record that was overwritten meanwhile is skipped, as kmsg wants it
                continue
            except OSError:
                break
        lines[:] = (line for line in lines if "Xid" in line)
        return Reading(0, *parse_gpu(gpu.text), parse_holders(apps.text), parse_xids(lines, device.bus_id))

    return lambda: in_background(read)


def parse_gpu(text: str) -> tuple[int | None, str | None]:
    """Parse memory.used (MiB) and, if it is there, gpu_recovery_action."""
    for used, *action in lines_of(text):
        if len(action) < 2 and (used.isdecimal() or used.startswith("[")):
            return bytes_of(used), action[0] if action else None
    return None, None


def parse_holders(text: str) -> tuple[MemoryHolder, ...]:
    """Parse pid, process_name and used_memory (MiB); other lines are skipped."""
    lines = (line for line in lines_of(text) if len(line) >= 3 and line[0].isdecimal())
    return tuple(MemoryHolder(int(pid), ",".join(name), bytes_of(used)) for pid, *name, used in lines)


def parse_xids(lines: Sequence[str], bus_id: str) -> tuple[int, ...]:
    """Find the Xids of the GPU at `bus_id` in lines such as `NVRM: Xid (PCI:0000:3b:00): 79, pid=…`.

    The log names domain, bus and device; nvidia-smi pads the domain to eight digits and adds the function.
    """
    place = re.search(r"^0*([0-9a-f]{1,8}):([0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-9a-f])?$", bus_id.lower())
    if place is None:
        return ()
    # The domain counts: in some clouds all GPUs have the same bus and device, and differ by their domains.
    pattern = re.compile(rf"NVRM: Xid \(PCI:0*{place[1]}:{place[2]}(?:\.\d)?\): (\d+)", re.IGNORECASE)
    return tuple(int(match[1]) for line in lines if (match := pattern.search(line)))


def judge_gpu(reading: Reading, ours: frozenset[int] = frozenset(), total_bytes: int = 0) -> Opinion:
    """Judge a GPU of that size (0 = not known) for the next worker; `ours` are the pids of our workers on it.

    What ours hold is not held against it; that others leave too little for a model, the worker finds out.
    """
    if reading.returncode == SMI_LOST:
        return Opinion(Health.BROKEN, "the GPU has fallen off the bus (nvidia-smi ended with 15): reboot the machine")
    if broken := sorted((_RESET_XIDS | _REBOOT_XIDS).intersection(reading.xids)):
        mend = "reboot the machine" if _REBOOT_XIDS.intersection(broken) else "have the GPU reset, or reboot"
        return Opinion(Health.BROKEN, f"the kernel's log has Xid {', '.join(map(str, broken))} of this GPU: {mend}")
    if asks_for_recovery(reading.recovery_action):
        return Opinion(Health.BROKEN, f"the driver asks for a recovery action: {reading.recovery_action}")
    if reading.returncode != 0 or reading.used_bytes is None:
        return Opinion(Health.BLIND, f"nvidia-smi gives no answer (exit code {reading.returncode})")
    own = [holder.used_bytes for holder in reading.holders if holder.pid in ours]
    if len(own) < len(ours) or None in own:
        return Opinion(Health.GOOD)  # how much of the memory is our own workers' cannot be told, in a container say
    held_bytes = reading.used_bytes - sum(used or 0 for used in own)
    free_bytes = total_bytes - reading.used_bytes
    if not total_bytes or held_bytes <= SLACK_BYTES or free_bytes >= SLACK_BYTES:
        return Opinion(Health.GOOD)
    others = [f"{holder.name} (pid {holder.pid})" for holder in reading.holders if holder.pid not in ours]
    who = ", ".join(others[:3]) or "a process that cannot be named"
    held, free = (f"{size_bytes / 2**30:.1f} GiB" for size_bytes in (held_bytes, max(0, free_bytes)))
    return Opinion(Health.BUSY, f"{held} of the GPU's memory are held by {who}; {free} are free")


def asks_for_recovery(action: str | None) -> bool:
    """Whether a GPU of which the driver says so cannot be worked on."""
    return _BAD_ACTION.fullmatch((action or "").strip().lower()) is not None


@dataclass(slots=True)
class View:
    """What is known of a GPU next to its faults, to tell whether memory ran out by our own doing."""

    alone: bool = False  # only our workers were on it, by a look since the last of them failed
    before_bytes: int = 0  # in use by others before our first worker


def company_of(figures: OomFigures | None, view: View | None, siblings: frozenset[int]) -> Company:
    """Say who else held the memory; `siblings` are the pids of other workers of this run that were on the device.

    torch's figures go before the last look, which is older than the fault. Others who were there when the run began
    are part of the device: what they leave is what there is.
    """
    if view is None:
        return Company.UNTOLD
    if siblings:
        return Company.OURS
    if figures is not None:
        came_bytes = figures.others_bytes - view.before_bytes
        missing_bytes = figures.wanted_bytes - figures.free_bytes
        return Company.CAME if came_bytes > _NOBODYS_BYTES and came_bytes >= missing_bytes else Company.UNTOLD
    return Company.ALONE if view.alone else Company.UNTOLD


def in_company(verdict: Verdict, company: Company, siblings: frozenset[int]) -> Verdict:
    """Put the verdict into words that do not blame others for what another worker of this run held."""
    if company is not Company.OURS or verdict.outcome is not Outcome.GPU_BUSY or not verdict.weights_did_not_fit:
        return verdict
    pids = ", ".join(map(str, sorted(siblings)))
    return replace(
        verdict,
        reason=f"the GPU had no room for the weights next to another worker of this run (pid {pids})",
        remedy="Lower workers.per_device: the GPU has no room for so many copies of the model.",
    )


# --- stations


@dataclass(frozen=True, slots=True)
class Site:
    """The machine that a device belongs to."""

    node: str = ""  # its number in the cluster; empty = the parent's machine, without a cluster
    name: str = ""  # for people
    threads: int = 0  # of a worker there; 0 = as many as here
    model_path: str | None = None  # where the model's files are on it; None = as here


class Station:
    """One device. Only a GPU of this machine that nvidia-smi knows can be looked at."""

    def __init__(self, number: int, device: Device, site: Site = Site()) -> None:
        self.number, self.device, self.site = number, device, site
        self.dropped = False
        self.freed_s: float | None = None  # when the last worker that computed on it ended; None before the first
        self._look = looks_at(device) if device.watched and not site.node else None
        self._asked: Future[Reading] | None = None
        self._told: Health | None = None
        self.view = View() if device.kind == "cuda" else None  # None = it is not a GPU

    def __str__(self) -> str:
        return f"{self.device} of {self.site.name}" if self.site.name else str(self.device)

    def ask(self) -> None:
        """Begin a look, unless one is under way."""
        if self._look is not None and self._asked is None:
            self._asked = self._look()

    def answer(self, ours: frozenset[int], emit: Emit, *, first: bool = False) -> Opinion | None:
        """Say what the look under way says; None until it does, and if the device cannot be looked at.

        `ours` are the pids of our workers on it. The `first` one, before our first worker, is waited for.
        """
        if self._asked is None or self.view is None or not (first or self._asked.done()):
            return None
        reading, self._asked = self._asked.result(), None
        if first:
            self.view.before_bytes = reading.used_bytes or 0
        self.view.alone = not first and reading.is_alone(ours)
        # What is in use before our first worker is not waited for.
        opinion = judge_gpu(reading, ours, 0 if first else self.device.memory_bytes)
        news = {
            Health.BUSY: Warned(f"{self.device}: waiting, {opinion.why}"),
            Health.BLIND: Note(
                f"{self.device}: {opinion.why}; going on without its readings, CUDA may work all the same"
            ),
        }
        if opinion.health in news and opinion.health is not self._told:  # once, not every two seconds
            self._told = opinion.health
            emit(news[opinion.health])
        return opinion

    def worker_ended(self) -> None:
        """Note that a worker that had the device has ended: what is on it may have changed since the last look."""
        if self.view is not None:
            self.view.alone = False

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
        self.last_halt: Halt | None = None  # why the last machine of a cluster that was left out was so

    def __getitem__(self, number: int) -> Station:
        return self._all[number]

    @property
    def alive(self) -> list[Station]:
        """Those that are not left out."""
        return [station for station in self._all if not station.dropped]

    def add(self, devices: Sequence[Device], site: Site = Site()) -> None:
        """Take the devices of one machine, with a look at each."""
        added = [Station(number, each, site) for number, each in enumerate(devices, len(self._all))]
        self._all += added
        if site.node:
            self._emit(NodeJoined(site.name, ", ".join(map(str, devices)), added[0].number))
        # All are asked before the first is waited for: nvidia-smi may take its whole time limit.
        for station in added:
            if station.device.watched and not site.node:
                self._emit(Doing(f"asking nvidia-smi how {station} is"))
            station.ask()
        for station in added:
            self._seen(station, station.answer(frozenset(), self._emit, first=True), False)
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
            opinion = station.answer(pids().get(number, frozenset()), self._emit)
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

    def with_others(self, halt: Halt) -> Halt:
        """Add the devices that were left out before to the words of the last device's end."""
        if self._left_out:
            halt.why = "\nleft out before: ".join([halt.why, *self._left_out])
        return halt
