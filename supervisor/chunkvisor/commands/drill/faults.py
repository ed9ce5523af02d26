"""The table of faults that a drill can provoke, and what has to come of each.

`chunkvisor_worker.sabotage` provokes those that strike in a worker, under the same names.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.observe.status import State
from chunkvisor.units import did_you_mean
from chunkvisor_worker.contract.exits import Outcome


class Place(Enum):
    """Where a fault strikes."""

    WORKER = "worker"
    """In the worker of the first attempt at the second chunk."""
    ROW = "row"
    """In every worker that gets a certain text."""
    MEMORY = "memory"
    """In such a worker, inside a cgroup with a limit."""
    DISK = "disk"
    """In a workdir on a file system that is full."""
    SUPERVISOR = "supervisor"
    """In the run itself."""


class Provoked(StrEnum):
    """How far a fault is the real thing."""

    REAL = "real"
    SIMULATED = "simulated"
    """The exact exception, raised by us."""
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class DrillFault:
    """One fault, and what the run has to make of it."""

    name: str
    what: str
    """How it is provoked, in a few words."""
    seen_as: Outcome | State
    """What the run has to take it for; for the end of the run itself, what `status` has to say."""
    place: Place = Place.WORKER
    real_on: tuple[str, ...] = ("cpu", "cuda")
    """Devices on which it is the real thing; elsewhere it is simulated."""
    exit_code: ExitCode = ExitCode.COMPLETE
    """With which the struck run has to end; after any other than 0 and 3, the same run again has to complete."""
    stalls: bool = False
    """The run has to lose its patience first."""


FAULTS: tuple[DrillFault, ...] = (
    DrillFault("oom", "the GPU is filled up in a batch", Outcome.GPU_OOM, real_on=("cuda",)),
    DrillFault("nvml-assert", "torch's NVML assertion instead of an out-of-memory error", Outcome.GPU_OOM, real_on=()),
    DrillFault("cublas", "cuBLAS gets no memory", Outcome.GPU_OOM, real_on=()),
    DrillFault("device-assert", "an index out of range in a kernel", Outcome.DEVICE_FAULT, real_on=("cuda",)),
    DrillFault("illegal-access", "CUDA error 700", Outcome.DEVICE_FAULT, real_on=()),
    DrillFault("ecc", "CUDA error 214", Outcome.HARDWARE_FAULT, real_on=(), exit_code=ExitCode.MACHINE),
    DrillFault("segfault", "the worker reads address 0", Outcome.CRASHED),
    DrillFault("abort", "the worker calls abort()", Outcome.CRASHED),
    DrillFault("sigkill", "the worker is killed", Outcome.CRASHED),
    DrillFault("sigterm", "somebody else asks the worker to stop", Outcome.INTERRUPTED),
    DrillFault("sigstop", "the worker is stopped and never continued", Outcome.HUNG, stalls=True),
    DrillFault("hang", "the worker sleeps for ever and ignores SIGTERM", Outcome.HUNG, stalls=True),
    DrillFault("exit-0-without-result", "the worker ends as if all were well", Outcome.BAD_OUTPUT),
    DrillFault("exit-1-after-result", "the worker fails after its work is done", Outcome.COMMITTED),
    DrillFault("nan-row", "one vector is NaN", Outcome.BAD_OUTPUT),
    DrillFault("lost-vectors", "half of the vectors are gone after the worker has ended well", Outcome.BAD_OUTPUT),
    DrillFault("host-oom", "MemoryError", Outcome.HOST_OOM, real_on=()),
    DrillFault("host-limit", "the worker fills a cgroup with a memory limit", Outcome.HOST_OOM, Place.MEMORY),
    DrillFault("disk-full", "ENOSPC when the vectors are written", Outcome.DISK_FULL, real_on=()),
    DrillFault("disk-limit", "a small file system is full until the run waits", Outcome.DISK_FULL, Place.DISK),
    DrillFault("hub-busy", "HTTP 429 while the model is loaded", Outcome.HUB, real_on=()),
    DrillFault("gpu-busy", "CUDA error 46: somebody else holds the GPU", Outcome.GPU_BUSY, real_on=()),
    DrillFault("import-failed", "a package is missing while the model is loaded", Outcome.SETUP, real_on=()),
    DrillFault("bad-input", "a batch of texts that cannot be encoded", Outcome.BAD_INPUT, real_on=()),
    DrillFault("supervisor-killed", "the run itself is killed after its first chunk", State.STOPPED, Place.SUPERVISOR),
    DrillFault(
        "poison-row", "one text crashes every worker", Outcome.CRASHED, Place.ROW, exit_code=ExitCode.QUARANTINED
    ),
)
"""In the order in which they are provoked."""


def choose(names: Sequence[str]) -> list[DrillFault]:
    """The faults of these names, in the table's order; all for none. Raises Halt (2) for an unknown name."""
    known = [fault.name for fault in FAULTS]
    for name in names:
        if name not in known:
            raise Halt(ExitCode.USAGE, f"there is no fault {name} to drill; {did_you_mean(name, known)}")
    return [fault for fault in FAULTS if not names or fault.name in names]
