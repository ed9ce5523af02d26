"""Decides, from what nvidia-smi says, whether a GPU may be given to the next worker.

Pure; `gate` runs nvidia-smi and waits.
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import psutil

from chunkvisor.judge import Company, Verdict
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rule import OomFigures

SLACK_BYTES = 512 << 20
"""A killed context is gone when the memory in use is back to what it was before, give or take this much (the NVIDIA
Resiliency Extension waits for the same amount). A context with its libraries takes about as much."""

_LOST = 15
"""nvidia-smi's exit code for a GPU that has fallen off the bus (nvidia-smi's manual, RETURN VALUE)."""

_BAD_ACTIONS = frozenset(
    {
        *("reset", "gpu reset", "gpu reset required"),
        *("reboot", "node reboot", "node reboot required"),
        *("drain and reset", "gpu drain and reset", "drain and reset required"),
    }
)
"""Recovery actions without which the GPU will not work (nvidia-smi's manual, GPU Recovery Action). Every other text is
none of ours: `None`, `Drain P2P` (traffic between GPUs), and what a driver says that does not tell, such as
`[Not Supported]`, `[Unknown Error]` or `[Insufficient Permissions]`."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds memory of the GPU; in a container, nvidia-smi may name pids of the host or none."""

    pid: int
    name: str
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Reading:
    """What nvidia-smi said of one GPU; None = it did not say."""

    returncode: int | None
    """None = no answer in time, or no nvidia-smi."""
    used_bytes: int | None = None
    recovery_action: str | None = None
    holders: tuple[Holder, ...] = ()
    xids: tuple[int, ...] = ()
    """Of this GPU, from the kernel's log, since the run began."""


class Health(Enum):
    """Whether a worker may have the GPU."""

    GOOD = "good"
    BUSY = "busy"
    """Wait: others hold the memory that a worker needs."""
    SETTLING = "settling"
    """Wait a little: what a worker held that has just ended is not given back yet."""
    BROKEN = "broken"
    """Nothing that we can do mends it."""
    BLIND = "blind"
    """NVML cannot tell; CUDA may work all the same."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """A judgement, in a word and in a sentence."""

    health: Health
    why: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """What is known of a GPU beside its faults, for who asks whether memory ran out by our own doing."""

    blind: bool = False
    """nvidia-smi cannot tell of it."""
    alone: bool = False
    """Nobody but us was on it, by a look since its last worker failed."""
    before_bytes: int = 0
    """In use by others before our first worker."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a worker needs of a GPU, and what the memory was like before."""

    need_bytes: int = 0
    """Of a worker, before its first batch; 0 = not known, so that the least is assumed."""
    total_bytes: int = 0
    """0 = not known."""
    unnamed_bytes: int | None = None
    """In use before our first worker, by no process that nvidia-smi names; None = not known."""
    settling: bool = False
    """Whether a worker ended only just now."""


_RESET_XIDS = frozenset({46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158})
_REBOOT_XIDS = frozenset({79, 151})
"""Buckets of NVIDIA's Xid catalog. 45 is what our own kills produce, 43 an application's fault: neither counts."""


def judge_gpu(reading: Reading, demand: Demand, ours: frozenset[int]) -> Opinion:
    """The opinion on a GPU for the next worker.

    `ours` are the pids of our workers that are on it now; what they hold is not held against it.
    """
    if reading.returncode == _LOST:
        return Opinion(Health.BROKEN, "the GPU has fallen off the bus (nvidia-smi ended with 15): reboot the machine")
    if broken := sorted(_RESET_XIDS.union(_REBOOT_XIDS).intersection(reading.xids)):
        mend = "reboot the machine" if _REBOOT_XIDS.intersection(broken) else "have the GPU reset, or reboot"
        return Opinion(Health.BROKEN, f"the kernel's log has Xid {', '.join(map(str, broken))} of this GPU: {mend}")
    if asks_for_recovery(reading.recovery_action):
        action = (reading.recovery_action or "").strip()
        return Opinion(Health.BROKEN, f"the driver asks for a recovery action: {action}")
    if reading.returncode != 0 or reading.used_bytes is None:
        return Opinion(Health.BLIND, f"nvidia-smi gives no answer (exit code {reading.returncode})")
    own = [holder.used_bytes for holder in reading.holders if holder.pid in ours]
    if len(own) < len(ours) or None in own:
        return Opinion(Health.GOOD)  # how much of the memory is our own workers' cannot be told, in a container say
    held_bytes = reading.used_bytes - sum(used or 0 for used in own)
    before_bytes = demand.unnamed_bytes if demand.settling else None
    if before_bytes is not None and unnamed_bytes(reading) > before_bytes + SLACK_BYTES:
        return Opinion(Health.SETTLING, "a worker has ended, and its memory is not given back yet")
    free_bytes = demand.total_bytes - reading.used_bytes
    # Where hardly anything is held by others there is nobody to wait for, however large the model is.
    if demand.total_bytes and held_bytes > SLACK_BYTES and free_bytes < max(demand.need_bytes, SLACK_BYTES):
        others = [holder for holder in reading.holders if holder.pid not in ours]
        who = (
            ", ".join(f"{holder.name} (pid {holder.pid})" for holder in others[:3]) or "a process that cannot be named"
        )
        needs = f", and a worker needs {_gib(demand.need_bytes)}" if demand.need_bytes else ""
        why = f"{_gib(held_bytes)} of the GPU's memory are held by {who}; {_gib(max(0, free_bytes))} are free{needs}"
        return Opinion(Health.BUSY, why)
    return Opinion(Health.GOOD)


def asks_for_recovery(action: str | None) -> bool:
    """Whether a GPU of which the driver says so cannot be worked on."""
    return (action or "").strip().strip("[]").lower() in _BAD_ACTIONS


def unnamed_bytes(reading: Reading) -> int:
    """In use by no process that nvidia-smi names: the driver's, a dying context's, another container's."""
    return max(0, (reading.used_bytes or 0) - sum(holder.used_bytes or 0 for holder in reading.holders))


def is_alone(reading: Reading, ours: frozenset[int]) -> bool:
    """Whether nobody but `ours` is seen on the GPU."""
    if reading.returncode != 0 or reading.used_bytes is None or any(each.pid not in ours for each in reading.holders):
        return False
    return unnamed_bytes(reading) < SLACK_BYTES


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"


def parse_memory(text: str) -> int | None:
    """Bytes in use, from `--query-gpu=memory.used --format=csv,noheader,nounits` (MiB)."""
    match = re.search(r"^\s*(\d+)\s*$", text, re.MULTILINE)
    return int(match[1]) << 20 if match else None


def parse_holders(text: str) -> tuple[Holder, ...]:
    """From `--query-compute-apps=pid,process_name,used_memory` as csv without header and units; skips odd lines."""
    holders = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) >= 3 and fields[0].isdecimal():
            used = int(fields[-1]) << 20 if fields[-1].isdecimal() else None
            holders.append(Holder(int(fields[0]), ",".join(fields[1:-1]), used))
    return tuple(holders)


def parse_recovery_action(xml: str) -> str | None:
    """From `nvidia-smi -q -x`: <gpu_recovery_action> of driver r570 and later; None where it is not there."""
    match = re.search(r"<gpu_recovery_action>([^<]{0,100})</gpu_recovery_action>", xml)
    return match[1].strip() if match else None


def parse_xids(lines: Sequence[str], bus_id: str) -> tuple[int, ...]:
    """Xids of the GPU at `bus_id`, from lines of the kernel's log such as `NVRM: Xid (PCI:0000:3b:00): 79, pid=…`.

    The log names domain, bus and device; nvidia-smi pads the domain to eight digits and adds the function.
    """
    place = re.search(r"^0*([0-9a-f]{1,8}):([0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-9a-f])?$", bus_id.lower())
    if place is None:
        return ()
    # The domain counts: in some clouds every GPU has a domain of its own, and all have the same bus and device.
    pattern = re.compile(rf"NVRM: Xid \(PCI:0*{place[1]}:{place[2]}(?:\.\d)?\): (\d+)", re.IGNORECASE)
    return tuple(int(match[1]) for line in lines if (match := pattern.search(line)))


_NOBODYS_BYTES = 768 << 20
"""More or less than this comes and goes by itself: the driver's own, windows of a desktop."""


def company_of(figures: OomFigures | None, view: View | None, siblings: frozenset[int]) -> Company:
    """Who it was; `siblings` are the pids of other workers of this run that were on the device.

    torch's figures go before the gate's look, which is older than the fault. Others who were there when the run began
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
    if view.blind:
        return Company.BLIND
    return Company.ALONE if view.alone else Company.UNTOLD


def in_company(verdict: Verdict, company: Company, siblings: frozenset[int]) -> Verdict:
    """The verdict with words that do not blame others for what another worker of this run held."""
    if company is not Company.OURS or verdict.outcome is not Outcome.GPU_BUSY or not verdict.weights_did_not_fit:
        return verdict
    pids = ", ".join(map(str, sorted(siblings)))
    return replace(
        verdict,
        reason=f"the GPU had no room for the weights beside another worker of this run (pid {pids})",
        remedy="Lower workers.per_device: the GPU has no room for so many copies of the model.",
    )


class Processes:
    """The processes of a run; `cpu` is how many cores one has kept busy since the reading before."""

    def __init__(self) -> None:
        self._parent = psutil.Process()
        self._workers: dict[int, psutil.Process] = {}
        self._measured: set[int] = set()

    def add(self, pid: int) -> None:
        """A process was started."""
        with contextlib.suppress(psutil.Error):
            self._workers[pid] = psutil.Process(pid)

    def drop(self, pid: int) -> None:
        """A process has ended."""
        self._workers.pop(pid, None)
        self._measured.discard(pid)

    def read(self) -> dict[str, Any]:
        """`workers`, `parent` and `host`, as a line of the sensors has them."""
        workers = []
        for pid in list(self._workers):
            try:
                workers.append({"pid": pid, **self._figures(self._workers[pid]), **_peak(pid)})
            except (psutil.Error, OSError):
                self.drop(pid)
        return {
            "workers": workers,
            "parent": self._figures(self._parent),
            "host": {"available_bytes": int(psutil.virtual_memory().available)},
        }

    def _figures(self, process: psutil.Process) -> dict[str, Any]:
        with process.oneshot():
            figures: dict[str, Any] = {"rss_bytes": int(process.memory_info().rss)}
            cpu = process.cpu_percent() / 100
        # The first call of psutil's cpu_percent has nothing to compare with, and gives 0.
        if process.pid in self._measured:
            figures["cpu"] = round(cpu, 3)
        self._measured.add(process.pid)
        return figures


def _peak(pid: int) -> dict[str, int]:
    """The most memory that the process has held: VmHWM of proc(5), which misses nothing between two readings."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return {"peak_bytes": int(line.split()[1]) << 10}
    return {}
