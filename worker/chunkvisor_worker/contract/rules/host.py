"""The disk is full or failing; the machine has no memory, threads or file descriptors left.

The kernel's kills leave no text: the supervisor finds them in the counters of the cgroup.
"""

import errno

from chunkvisor_worker.contract.rule import (
    NEW_PROCESS,
    ROW,
    SAFETENSORS,
    SMALLER_BATCH,
    Evidence,
    Rule,
    Sign,
    disk_full,
    error,
    host_oom,
    of_class,
    runtime_error,
)

_NO_SPACE = r"No space left on device|Disk quota exceeded|os error (?:28|122)\b"
_THREADS = (
    r"can't start new thread|Thread creation failed|ThreadPoolBuildError|global thread pool has not been initialized"
)

DISK_RULES: tuple[Rule, ...] = (
    disk_full(
        "disk-full",
        "The disk is full, or the user's quota is.",
        "Free some space on the disk of the workdir, and on that of TMPDIR.",
        # numpy's tofile and np.save(path) raise OSError without an errno.
        Sign(
            classes=("builtins.OSError",),
            errnos=(errno.ENOSPC, errno.EDQUOT),
            pattern=rf"{_NO_SPACE}|Not enough free space to write|\d{{1,20}} requested and \d{{1,20}} written",
        ),
        error(r"database or disk is full", "sqlite3.OperationalError"),
        # torch.save: the position in the zip file is not what was written.
        runtime_error(r"enforce fail at inline_container\.cc.{0,80}unexpected pos"),
        # hf_xet, which downloads for the hub, raises RuntimeError.
        runtime_error(_NO_SPACE),
        error(_NO_SPACE, *SAFETENSORS),
        log=r"No space left on device|Disk quota exceeded",
        # Python's own: the work was done, but flushing stdout failed.
        returncodes=(120,),
    ),
    disk_full(
        "disk-failing",
        "The disk gives errors, was remounted read-only, or its server forgot the file (NFS).",
        "See the kernel's log (`dmesg`) and the mount; move the workdir to a sound disk.",
        Sign(classes=("builtins.OSError",), errnos=(errno.EIO, errno.EROFS, errno.ESTALE)),
        evidence=Evidence.READ,
    ),
)

HOST_RULES: tuple[Rule, ...] = (
    host_oom(
        # Before memory: the Rust panic of a failed thread pool quotes EAGAIN's text as well.
        "thread-limit",
        "The machine or the container allows no more threads or processes.",
        "Raise the limit (`docker run --pids-limit`, `ulimit -u`, TasksMax= of systemd), or set "
        'OMP_NUM_THREADS: "4" and TOKENIZERS_PARALLELISM: "false" under `env:`.',
        runtime_error(r"can't start new thread"),
        error(_THREADS, "pyo3_runtime.PanicException"),
        log=_THREADS,
        hints=NEW_PROCESS,
    ),
    host_oom(
        "file-limit",
        "The process may open no more files.",
        "Raise the limit (`ulimit -n 65536`, LimitNOFILE= of systemd).",
        Sign(classes=("builtins.OSError",), errnos=(errno.EMFILE, errno.ENFILE)),
        error(r"Too many open files|os error 24\b"),
        log=r"Too many open files",
    ),
    host_oom(
        "host-out-of-memory",
        "The machine or the container had no memory left for the process; this is not the GPU's memory.",
        "Give it more memory, end other programs, or lower workers.standby and workers.per_device; the run goes "
        "on with a smaller batch.",
        of_class("builtins.MemoryError"),
        # RuntimeErrors of torch: its CPU allocator, and cuDNN's buffers on the host.
        runtime_error(
            r"DefaultCPUAllocator: (?:can't allocate|not enough) memory"
            r"|CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED|CUDNN_STATUS_ALLOC_FAILED|^std::bad_alloc"
        ),
        Sign(classes=("builtins.OSError",), errnos=(errno.ENOMEM,)),
        error(r"Cannot allocate memory \(os error 12\)"),
        log=r"std::bad_alloc|DefaultCPUAllocator: |^MemoryError|memory allocation of \d{1,20} bytes failed",
        exit_code=None,
        hints=SMALLER_BATCH | NEW_PROCESS | ROW,
    ),
)
