"""The machine ran out of memory, threads or file descriptors.

It never holds the kernel's kills, which leave no text: the supervisor finds them in the counters of the cgroup.
"""

import errno
import re

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rule import MACHINE, Evidence, Rule, Sign, error, runtime_error

_THREADS = (
    r"can't start new thread|Thread creation failed|ThreadPoolBuildError|global thread pool has not been initialized"
)

HOST_RULES: tuple[Rule, ...] = (
    Rule(
        # Before memory: the Rust panic of a failed thread pool quotes EAGAIN's text as well.
        name="thread-limit",
        outcome=Outcome.HOST_OOM,
        cause="The machine or the container allows no more threads or processes.",
        remedy="Raise the limit (`docker run --pids-limit`, `ulimit -u`, TasksMax= of systemd), or set "
        'OMP_NUM_THREADS: "4" and TOKENIZERS_PARALLELISM: "false" under `env:`.',
        signs=(
            runtime_error(r"can't start new thread"),
            error(_THREADS, "pyo3_runtime.PanicException"),
        ),
        log=re.compile(_THREADS),
        exit_code=MACHINE,
        fresh_process_helps=True,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="file-limit",
        outcome=Outcome.HOST_OOM,
        cause="The process may open no more files.",
        remedy="Raise the limit (`ulimit -n 65536`, LimitNOFILE= of systemd).",
        signs=(
            Sign(classes=("builtins.OSError",), errnos=(errno.EMFILE, errno.ENFILE)),
            error(r"Too many open files|os error 24\b"),
        ),
        log=re.compile(r"Too many open files"),
        exit_code=MACHINE,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="host-out-of-memory",
        outcome=Outcome.HOST_OOM,
        cause="The machine or the container had no memory left for the process; this is not the GPU's memory.",
        remedy="Give it more memory, end other programs, or lower workers.standby and workers.per_device; the run goes "
        "on with a smaller batch.",
        signs=(
            Sign(classes=("builtins.MemoryError",)),
            # RuntimeErrors of torch: its CPU allocator, and cuDNN's buffers on the host.
            runtime_error(
                r"DefaultCPUAllocator: (?:can't allocate|not enough) memory"
                r"|CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED|CUDNN_STATUS_ALLOC_FAILED|^std::bad_alloc"
            ),
            Sign(classes=("builtins.OSError",), errnos=(errno.ENOMEM,)),
            error(r"Cannot allocate memory \(os error 12\)"),
        ),
        log=re.compile(
            r"std::bad_alloc|DefaultCPUAllocator: |^MemoryError|memory allocation of \d{1,20} bytes failed",
            re.MULTILINE,
        ),
        smaller_batch_helps=True,
        fresh_process_helps=True,
        evidence=Evidence.RUN,
    ),
)
