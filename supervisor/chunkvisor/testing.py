"""Faults on purpose, at a chosen chunk, for integration tests of pipelines and for the fire drill.

While the block lasts, an environment variable names the fault to the workers; no workdir or config
is changed. `chunkvisor_worker.drill` causes the faults, under the same names.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.units import did_you_mean
from chunkvisor_worker.contract.exits import TESTING_FAULTS, Outcome
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import ProvokedFault
from chunkvisor_worker.contract.wire import write_message

__all__ = ["FAULTS", "Provoked", "fault"]

POISON_ROW = "poison-row"
PARENT_KILLED = "supervisor-killed"


@frozen
class DrillFault:
    """A fault, and how the run with it must go."""

    name: str
    what: str  # how it is provoked, in a few words
    seen_as: str
    """The outcome of the attempt that meets it; for a killed run, the state that `status` shows."""
    exit_code: ExitCode = ExitCode.COMPLETE
    """Of the run that meets it; after any code but 0 and 3, the same run again must complete."""


FAULTS: tuple[DrillFault, ...] = (
    DrillFault("oom", "the GPU is filled up in a batch", Outcome.GPU_OOM),
    DrillFault(
        "nvml-assert", "torch's NVML assertion instead of an out-of-memory error", Outcome.GPU_OOM
    ),
    DrillFault("cublas", "cuBLAS gets no memory", Outcome.GPU_OOM),
    DrillFault("device-assert", "an index out of range in a kernel", Outcome.DEVICE_FAULT),
    DrillFault("illegal-access", "CUDA error 700", Outcome.DEVICE_FAULT),
    DrillFault("ecc", "CUDA error 214", Outcome.HARDWARE_FAULT, exit_code=ExitCode.MACHINE),
    DrillFault("segfault", "the worker reads address 0", Outcome.CRASHED),
    DrillFault("abort", "the worker calls abort()", Outcome.CRASHED),
    DrillFault("sigkill", "the worker is killed", Outcome.CRASHED),
    DrillFault("sigterm", "another process asks the worker to stop", Outcome.INTERRUPTED),
    DrillFault("sigstop", "the worker is stopped and never continued", Outcome.HUNG),
    DrillFault("hang", "the worker sleeps for ever and ignores SIGTERM", Outcome.HUNG),
    DrillFault("exit-0-without-result", "the worker ends as if all were well", Outcome.CRASHED),
    DrillFault("exit-1-after-result", "the worker fails after its work is done", Outcome.COMMITTED),
    DrillFault("nan-row", "one vector is NaN", Outcome.BAD_OUTPUT),
    DrillFault(
        "lost-vectors",
        "half of the vectors are gone after the worker has ended well",
        Outcome.BAD_OUTPUT,
    ),
    DrillFault("host-oom", "MemoryError", Outcome.HOST_OOM),
    DrillFault("disk-full", "ENOSPC when the vectors are written", Outcome.DISK_FULL),
    DrillFault("hub-busy", "HTTP 429 while the model is loaded", Outcome.HUB),
    DrillFault("gpu-busy", "CUDA error 46: another process holds the GPU", Outcome.GPU_BUSY),
    DrillFault("import-failed", "a package is missing while the model is loaded", Outcome.SETUP),
    DrillFault("bad-input", "a batch of texts that cannot be encoded", Outcome.BAD_INPUT),
    DrillFault(PARENT_KILLED, "the run itself is killed after its first chunk", "stopped"),
    DrillFault(
        POISON_ROW, "one text crashes every worker", Outcome.CRASHED, exit_code=ExitCode.QUARANTINED
    ),
)
"""In the order in which they are provoked; only the last two are faults of a run or of one text."""

NAMES = tuple(fault.name for fault in FAULTS if fault.name != PARENT_KILLED)
_FAULT_OF = {
    **{name: name for name in NAMES},
    **{str(fault.seen_as): fault.name for fault in reversed(FAULTS[:-2])},
    Outcome.HUNG: "hang",
}
"""Names of faults and outcomes -> the fault: for an outcome the first in the table that leads to
it, except for `hung`."""


@dataclass(slots=True)
class Provoked:
    """A fault that was asked for, and how often it has struck."""

    name: str  # as the drill calls it
    chunk: int
    output: str | None
    struck: int = 0
    """In how many attempts it has struck, known after the block; for `poison-row` 1 at most."""


@contextlib.contextmanager
def fault(
    name: str, *, chunk: int, output: str | None = None, times: int = 1
) -> Iterator[Provoked]:
    """Make the workers of a chunk meet a fault, in a block.

    `with chunkvisor.testing.fault("gpu_oom", chunk=1): …`

    `name` is a fault of the drill ("segfault", "nan-row"; docs/reference/checks.md has all) or an
    outcome ("gpu_oom", "hung"); `chunk` is counted from 0; `output` names one, None = any; `times`
    says in how many attempts it strikes, the first of the chunk and those that follow. "poison-row"
    strikes wherever the first text of the chunk is.

    It holds for `chunkvisor.run` and `chunkvisor.encode`, and for the commands that the block
    starts, on this machine: not for the nodes of a cluster. Nothing of it is left afterwards.
    Blocks may be nested.

    Raises ChunkvisorError (2) for a name that is not known, and AssertionError at the end of a
    block in which the fault never struck: such a test would show nothing.
    """
    if name not in _FAULT_OF:
        hint = did_you_mean(name, _FAULT_OF)
        if name == PARENT_KILLED:
            hint = "it would kill your test; start the command as a process, and kill that"
        raise Halt(ExitCode.USAGE, f"there is no fault {name} to provoke; {hint}")
    provoked = ProvokedFault(_FAULT_OF[name], chunk, output, times)
    if chunk < 0 or times < 1:
        raise Halt(
            ExitCode.USAGE,
            f"chunk={chunk}, times={times}: chunks are counted from 0, and times from 1",
        )
    with tempfile.TemporaryDirectory(prefix="chunkvisor-testing-") as place:
        folder = Path(place)
        write_message(AttemptFiles(folder).fault, provoked)
        found = Provoked(provoked.name, chunk, output)
        before = os.environ.get(TESTING_FAULTS, "")
        os.environ[TESTING_FAULTS] = os.pathsep.join(filter(None, [before, place]))
        try:
            yield found
        finally:
            del os.environ[TESTING_FAULTS]
            if before:
                os.environ[TESTING_FAULTS] = before
            found.struck = len(list(folder.glob("struck-*")))  # made by the workers
    if not found.struck:
        of_output = f" of output {output}" if output else ""
        raise AssertionError(
            f"the fault {provoked.name} never struck: in this block, no worker of this machine "
            f"reached it in chunk {chunk}{of_output}; chunks are counted from 0, and a finished "
            "one is not encoded again"
        )
