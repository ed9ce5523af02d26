"""The outcomes of an attempt, a worker's exit codes, and its environment variables."""

import errno
from enum import IntEnum, StrEnum

# The mark of every process that a run starts: by it a later run finds those that are left.
RUN_ID = "CHUNKVISOR_RUN_ID"
# Set for a worker whose standard input is a gate and a lifeline; not set for one run by hand.
PARENT_PID = "CHUNKVISOR_PARENT_PID"
# The path of a pipe that the parent holds open, and that the kernel closes when the parent ends.
PARENT_PIPE = "CHUNKVISOR_PARENT_PIPE"
# Folders of provoked faults, separated as in PATH; set by `chunkvisor.testing`.
TESTING_FAULTS = "CHUNKVISOR_TESTING_FAULTS"
# The file in which the first worker on a CPU writes the kernel that it chose, for all later ones.
LINEAR_FILE = "CHUNKVISOR_LINEAR_FILE"

# Errors of a disk that is full or failing.
DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE)


class Outcome(StrEnum):
    """What became of one attempt at one chunk."""

    COMMITTED = "committed"  # its vectors are verified and part of the output
    GPU_OOM = "gpu_oom"  # the GPU ran out of memory: a smaller batch can help
    DEVICE_FAULT = "device_fault"  # the CUDA context is broken: only a new process helps
    # the GPU itself is faulty or gone: no process of ours can help
    HARDWARE_FAULT = "hardware_fault"
    GPU_BUSY = "gpu_busy"  # another process holds the GPU: wait
    SETUP = "setup"  # driver, packages, model or configuration are wrong: every worker would fail
    HOST_OOM = "host_oom"  # the machine ran out of memory, threads or file descriptors
    CRASHED = "crashed"  # it died, or raised an unrecognized error
    HUNG = "hung"  # it made no progress and was ended
    BAD_INPUT = "bad_input"  # a text cannot be encoded by this model
    # it claimed success but its vectors are missing, misshapen, not finite or all zero
    BAD_OUTPUT = "bad_output"
    DISK_FULL = "disk_full"  # the disk is full or failing
    HUB = "hub"  # the model hub cannot be reached or asks us to wait
    INTERRUPTED = "interrupted"  # it was asked to stop
    LOST = "lost"  # its node died


class WorkerExit(IntEnum):
    """Exit codes of `python -m chunkvisor_worker`, whose folder says what happened."""

    DONE = 0
    FAULT = 1  # its record says which
    USAGE = 2
    DISK_FULL = 24  # the disk, full or failing, did not take the record of a fault
    NO_RECORD = 26  # the record of a fault could not be written, for want of memory say
    ORPHANED = 25  # it was asked to leave, or its parent is gone
    TAINTED_TEMPLATE = 29
