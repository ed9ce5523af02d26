"""The outcomes that an attempt can have, the exit codes of a worker, and the variables of its environment."""

from enum import IntEnum, StrEnum

# Marks every process that a run starts, so that a later run can tell them from those of others.
RUN_ID = "CHUNKVISOR_RUN_ID"
# Set for a supervised worker, which lives and waits by its standard input; a worker run by hand has it not.
PARENT_PID = "CHUNKVISOR_PARENT_PID"
# The folders of the faults that are to strike, as PATH has folders; set by `chunkvisor.testing`.
TESTING_FAULTS = "CHUNKVISOR_TESTING_FAULTS"


class Outcome(StrEnum):
    """What became of one attempt at one chunk."""

    COMMITTED = "committed"  # its vectors are verified and part of the output
    GPU_OOM = "gpu_oom"  # the GPU ran out of memory: a smaller batch can help
    DEVICE_FAULT = "device_fault"  # the CUDA context is broken: only a new process helps
    HARDWARE_FAULT = "hardware_fault"  # the GPU itself is faulty or gone: no process of ours can help
    GPU_BUSY = "gpu_busy"  # another process holds the GPU: wait
    SETUP = "setup"  # driver, packages, model or configuration are wrong: every worker would fail
    HOST_OOM = "host_oom"  # the machine ran out of memory, threads or file descriptors
    CRASHED = "crashed"  # it died, or raised something that chunkvisor does not know
    HUNG = "hung"  # it made no progress and was ended
    BAD_INPUT = "bad_input"  # a text cannot be encoded by this model
    BAD_OUTPUT = "bad_output"  # it claimed success but its vectors are missing, misshapen, not finite or all zero
    DISK_FULL = "disk_full"  # the disk is full or failing
    HUB = "hub"  # the model hub cannot be reached or asks us to wait
    INTERRUPTED = "interrupted"  # it was asked to stop
    LOST = "lost"  # its node died


class WorkerExit(IntEnum):
    """Exit codes of `python -m chunkvisor_worker`, for an attempt whose fault record cannot be read."""

    DONE = 0
    UNKNOWN = 1
    USAGE = 2
    GPU_OOM = 20
    DEVICE_FAULT = 21
    BAD_INPUT = 22
    SETUP = 23
    DISK_FULL = 24
    ORPHANED = 25
    HOST_OOM = 26
    BAD_OUTPUT = 27
    GPU_BUSY = 28
    TAINTED_TEMPLATE = 29
    HARDWARE_FAULT = 30
    HUB = 31


# The exit code with which a worker reports a fault of each outcome that a fault can have.
EXIT_OF_OUTCOME: dict[Outcome, WorkerExit] = {
    Outcome.CRASHED: WorkerExit.UNKNOWN,
    Outcome.INTERRUPTED: WorkerExit.ORPHANED,
    **{outcome: WorkerExit[outcome.name] for outcome in Outcome if outcome.name in WorkerExit.__members__},
}
# The reverse, for an attempt that left no readable record.
OUTCOME_OF_EXIT: dict[int, Outcome] = {int(code): outcome for outcome, code in EXIT_OF_OUTCOME.items()}
