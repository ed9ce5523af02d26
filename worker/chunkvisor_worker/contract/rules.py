"""The faults that we know, a row each: name, what happened, what to do, and how an exception or a log shows it.

The first row that fits wins. After an interruption the worst come first: a sticky CUDA fault makes all later calls
fail, allocations included, so it is the cause wherever it is in a chain. Numbers are cudaError_t; those of a broken
context are the codes for which CUDA's driver_types.h (13.0) says "the process must be terminated and relaunched".
"""

import errno
from collections.abc import Callable
from signal import SIGABRT, SIGBUS, SIGFPE, SIGHUP, SIGILL, SIGINT, SIGKILL, SIGSEGV, SIGTERM
from typing import Any

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rule import (
    AT_WORK,
    BEFORE_WORK,
    CONFIG,
    DISK,
    LOAD,
    MACHINE,
    ON_TEXTS,
    PASSING,
    Rule,
    Sign,
)


def runtime_error(pattern: str, *codes: int) -> Sign:
    """Make the sign of most of torch's faults: RuntimeError, with a cudaError_t if the release gives one."""
    return Sign(classes=("builtins.RuntimeError",), codes=codes, pattern=pattern)


def error(pattern: str, *classes: str) -> Sign:
    """Make the sign of a text, in exceptions of the given classes or, without any, in all."""
    return Sign(classes=classes, pattern=pattern)


def of_class(*classes: str) -> Sign:
    """Make the sign of a class that says it all."""
    return Sign(classes=classes)


def os_error(*errnos: int) -> Sign:
    """Make the sign of an error of the system."""
    return Sign(classes=("builtins.OSError",), errnos=errnos)


def hub_error(name: str) -> str:
    """Name a class of huggingface_hub."""
    return f"huggingface_hub.errors.{name}"


def _family(outcome: Outcome, **usual: Any) -> Callable[..., Rule]:
    """Make rows of one outcome: name, cause, remedy and signs, and by name what is not `usual`."""

    def rule(name: str, cause: str, remedy: str, *signs: Sign, **unusual: Any) -> Rule:
        return Rule(name=name, cause=cause, remedy=remedy, signs=signs, **({"outcome": outcome} | usual | unusual))

    return rule


crashed = _family(Outcome.CRASHED)
misconfigured = _family(Outcome.SETUP, exit_code=CONFIG)
setup = _family(Outcome.SETUP, exit_code=MACHINE)
gpu_busy = _family(Outcome.GPU_BUSY, exit_code=PASSING)
gpu_oom = _family(Outcome.GPU_OOM, smaller_batch_helps=True, row_can_cause=True)
device_fault = _family(Outcome.DEVICE_FAULT)
hardware_fault = _family(Outcome.HARDWARE_FAULT, exit_code=MACHINE)
disk_full = _family(Outcome.DISK_FULL, exit_code=DISK)
host_oom = _family(Outcome.HOST_OOM, exit_code=MACHINE)
hub = _family(Outcome.HUB, exit_code=PASSING)
bad_input = _family(Outcome.BAD_INPUT, phases=ON_TEXTS, exit_code=CONFIG, row_can_cause=True)

_SAFETENSORS = ("safetensors._safetensors_rust.SafetensorError", "safetensors_rust.SafetensorError")
_MISMATCH = of_class("chunkvisor_worker.loaded.TokenizerMismatchError")

_INTERRUPTION = (
    crashed(
        "interrupted",
        "A signal asked the worker to stop, or the program sent itself one.",
        "Run the same command again to go on.",
        of_class("builtins.KeyboardInterrupt"),
        outcome=Outcome.INTERRUPTED,
        returncodes=(-SIGINT, -SIGTERM, -SIGHUP),
        row_can_cause=True,  # if it comes back with the same texts, and with no others
    ),
)

_ECC, _NVLINK, _LOST_GPU = r"uncorrectable ECC error encountered", r"uncorrectable NVLink error", "GPU is lost"
_HARDWARE = (
    hardware_fault(
        "gpu-lost",
        "The GPU has fallen off the PCIe bus (Xid 79): the driver cannot talk to it any more.",
        "Reboot the machine; if it comes back, check power cables, seating and cooling of the GPU.",
        error(rf"{_LOST_GPU}|GPU has fallen off the bus"),
        log=rf"{_LOST_GPU}|GPU has fallen off the bus",
    ),
    hardware_fault(
        "gpu-needs-reset",
        "The GPU is in a state that only a reset ends.",
        "End every process on the GPU and reset it as root (`nvidia-smi -r -i <GPU>`), or reboot.",
        error(r"GPU requires re(?:start|set)"),
    ),
    hardware_fault(
        "gpu-ecc-error",
        "The GPU's memory has an error that ECC cannot correct (Xid 48, 94 or 95).",
        "See `nvidia-smi -q -d ECC,ROW_REMAPPER`; reset the GPU or reboot, and replace the card if errors return.",
        runtime_error(_ECC, 214),
        log=_ECC,
    ),
    hardware_fault(
        "gpu-nvlink-error",
        "The link between the GPUs failed (Xid 74).",
        "See `nvidia-smi nvlink -e`; run on one GPU, reset the GPUs or reboot.",
        runtime_error(_NVLINK, 220),
        log=_NVLINK,
    ),
)

_CONTAINED = r"Invalid access of peer GPU memory over nvlink or a hardware error"
_KERNEL = (
    r"an illegal instruction was encountered|misaligned address|invalid program counter"
    r"|operation not supported on global/shared address space|hardware stack error"
)
_CONTEXT = r"tensor memory not completely freed|an async error has occured in external entity outside of CUDA"
_ILLEGAL = r"an illegal memory access was encountered|unspecified launch failure"
_ASSERT, _TIMEOUT = r"device-side assert triggered", r"the launch timed out and was terminated"
_MPS_ENDED = r"the MPS client has been terminated by the server"
_CUDA = (
    device_fault(
        # Codes that mean a kernel's or a text's fault once there has been a kernel and a text.
        "gpu-fault-before-work",
        "The GPU failed before the first batch, while the CUDA context was made or the weights were copied.",
        "A new worker tries again; if it returns, see the kernel's log for Xid messages and reset the GPU or reboot.",
        runtime_error(
            rf"{_ASSERT}|{_ILLEGAL}|{_TIMEOUT}|{_KERNEL}|{_CONTEXT}",
            *(53, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 911),
        ),
        phases=BEFORE_WORK,
        exit_code=MACHINE,
    ),
    device_fault(
        "device-side-assert",
        "A kernel found an index out of bounds; mostly a token id or a position that the model does not have.",
        "The next worker runs with CUDA_LAUNCH_BLOCKING=1 to name the place; if many rows do it, tokenizer and "
        "model do not belong together, or model.max_length is more than the model has positions.",
        runtime_error(_ASSERT, 710),
        # The kernel prints its assertion to stderr, e.g. Indexing.cu: "Assertion `srcIndex < srcSelectDimSize` failed".
        log=rf"{_ASSERT}|block: \[[\d,]{{1,40}}\], thread: \[[\d,]{{1,40}}\] Assertion ",
        row_can_cause=True,
    ),
    device_fault(
        "illegal-memory-access",
        "A kernel touched memory that is not its own: a bug, an overflow at a huge batch, rarely the hardware.",
        "The chunk is tried again, then with a smaller batch, then row by row; if it returns, look for Xid 48, "
        "94 or 95 in the kernel's log and try another attn_implementation.",
        runtime_error(_ILLEGAL, 53, 700, 719),
        log=_ILLEGAL,  # bitsandbytes prints this and calls exit(1)
        smaller_batch_helps=True,
        row_can_cause=True,
    ),
    device_fault(
        "broken-kernel",
        "The GPU refused a kernel's instructions: a wrong build or a bug of a kernel.",
        "Install builds of torch and of the extensions (flash-attn, bitsandbytes) that fit this GPU and each "
        "other, or set model.kwargs.attn_implementation to sdpa.",
        runtime_error(_KERNEL, 714, 715, 716, 717, 718),
        log=r"an illegal instruction was encountered|CUDA error: (?:misaligned address|hardware stack)",
        exit_code=MACHINE,
    ),
    device_fault(
        "launch-timeout",
        "The watchdog of a GPU that drives a display ended a kernel that ran too long.",
        "Use a GPU without a display, or a smaller batch.",
        runtime_error(_TIMEOUT, 702),
        log=_TIMEOUT,
        smaller_batch_helps=True,
    ),
    device_fault(
        "contained-error",
        "A hardware error, or an access to another GPU's memory, hit this process only (Xid 94); the GPU goes on.",
        "The chunk is tried again; if it returns, see `nvidia-smi -q -d ECC,ROW_REMAPPER` and reset the GPU.",
        runtime_error(_CONTAINED, 226),
        log=_CONTAINED,
        exit_code=MACHINE,
    ),
    device_fault(
        "mps-terminated",
        "The MPS server ended this process, mostly because a neighbor on the same GPU crashed.",
        "The chunk is tried again; run without MPS if neighbors crash often.",
        runtime_error(_MPS_ENDED, 810),
        log=_MPS_ENDED,
        exit_code=PASSING,
    ),
    device_fault(
        "context-lost",
        "The CUDA context is broken by an error that CUDA calls fatal for the process.",
        "The chunk is tried again in a new process; if it returns, report the error to the model's authors.",
        runtime_error(_CONTEXT, 721, 911),
        log=_CONTEXT,
    ),
    device_fault(
        # Without the statuses that mean out of memory or setup: they have rules of their own.
        "cuda-library-failed",
        "cuBLAS or cuDNN failed inside a computation: out of memory in disguise, an earlier fault, or a bug.",
        "The chunk is tried again, then with a smaller batch, then row by row.",
        runtime_error(
            r"CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR|INVALID_VALUE|NOT_SUPPORTED)"
            r"|CUDNN_STATUS_(?:EXECUTION_FAILED|MAPPING_ERROR|INTERNAL_ERROR(?!_)|NOT_SUPPORTED|NOT_INITIALIZED)"
        ),
        smaller_batch_helps=True,
        row_can_cause=True,
    ),
)

# Out of memory, in all its spellings: torch's allocator; plain RuntimeErrors of old torch, of the cudaMallocAsync
# backend, of driver calls and of the libraries' handles; JAX and ONNX Runtime, for plug-in encoders.
_OOM = (
    of_class("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError", "cupy.cuda.memory.OutOfMemoryError"),
    runtime_error(
        r"CUDA out of memory|CUDA (?:driver )?error: out of memory|would exceed allowed memory\. \(out of memory\)"
        r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        2,
    ),
    error(r"RESOURCE_EXHAUSTED: |Failed to allocate memory for requested buffer of size"),
)
_NVML = r'NVML_SUCCESS == (?s:.{0,300})INTERNAL ASSERT FAILED at "[^"]{0,300}\b'
_NO_HANDLE = runtime_error(r"CUBLAS_STATUS_NOT_INITIALIZED")
# Before the first batch the weights did not fit next to what others hold, and a smaller batch cannot help.
_GPU_MEMORY = (
    gpu_busy(
        "gpu-full-at-first-call",
        "The GPU had no room even for a CUDA context: other processes hold its memory.",
        "See `nvidia-smi` for the processes on the GPU and end them, or choose another with `device:`.",
        runtime_error(r"Unexpected error from cudaGetDeviceCount(?s:.{0,300})Error 2: out of memory"),
    ),
    gpu_busy(
        # torch 2.13 and later reach NVML from ExpandableSegment::map; torch itself refuses the remedy that it prints
        # (expandable_segments_handle_type:posix_fd) as an unknown key.
        "nvml-assert-expandable-segments",
        "The allocator option expandable_segments needs NVML, and NVML is broken on this machine (driver updated "
        "under a running kernel module, container, MIG). It is not an out-of-memory.",
        "Remove expandable_segments from PYTORCH_CUDA_ALLOC_CONF; or leave TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC "
        "at 0, as chunkvisor sets it, and update torch; a reboot repairs NVML.",
        runtime_error(rf'{_NVML}PeerToPeerAccess\.cpp"'),
        outcome=Outcome.SETUP,
        exit_code=CONFIG,
    ),
    gpu_busy(
        "nvml-assert-before-work",
        "The weights did not fit in the GPU's free memory, and torch failed to say so because NVML is broken.",
        "Free the GPU (see `nvidia-smi`) or take a larger one; reboot or reload the driver to repair NVML.",
        runtime_error(rf'{_NVML}CUDACachingAllocator\.cpp"'),
        phases=BEFORE_WORK,
        exit_code_alone=MACHINE,
    ),
    gpu_oom(
        # torch 2.1 to 2.13 ask NVML for the process list while composing the message (pytorch#99699);
        # 2.14 warns instead (pytorch#185946).
        "nvml-assert-allocator",
        "The GPU ran out of memory, and torch failed to say so because NVML is broken: the assertion is in the "
        "code that composes the out-of-memory message.",
        "The run goes on with a smaller batch; reboot or reload the driver when you can, since `nvidia-smi` is "
        "probably broken too.",
        runtime_error(rf'{_NVML}CUDACachingAllocator\.cpp"'),
        if_ended="Run `nvidia-smi`. If it fails, reload the NVIDIA driver or reboot. If it works, see who holds the "
        "GPU's memory; else use a GPU with more of it, or a smaller model.max_length.",
    ),
    gpu_oom(
        "gpu-memory-cap",
        "The process reached the share of GPU memory that it was given (per_process_memory_fraction).",
        "Raise the share in PYTORCH_CUDA_ALLOC_CONF under `env:`; the run goes on with a smaller batch.",
        runtime_error(r"preemptively rejected|Preemptively rejecting allocation"),
    ),
    gpu_busy(
        "gpu-full-before-work",
        "The GPU had no room for the weights or the libraries before the first batch: other processes hold its "
        "memory, or the model is larger than the GPU.",
        "See `nvidia-smi` for the processes on the GPU and end them; if there are none, use a smaller model or a "
        "larger GPU; `chunkvisor doctor CONFIG` says which model.dtype suits the card.",
        *(*_OOM, _NO_HANDLE),
        phases=BEFORE_WORK,
        exit_code_alone=MACHINE,
    ),
    gpu_oom(
        "gpu-out-of-memory",
        "The batch did not fit in the GPU's memory.",
        "The run goes on with half the batch; smaller encode.batch_size and encode.batch_tokens save the failed "
        "tries. If single long texts do not fit, `chunkvisor doctor CONFIG` says which model.dtype takes less memory.",
        *_OOM,
        log=r"CUDA out of memory|CUDA error: out of memory",
    ),
    gpu_oom(
        "cublas-not-initialized",
        "cuBLAS could not start: mostly because the GPU's memory is full, sometimes because of an earlier fault "
        "such as a token id that the model does not have.",
        "The chunk is tried again, then with a smaller batch, then row by row.",
        _NO_HANDLE,
        phases=AT_WORK,
    ),
)

_CUDNN = (
    r"CUDNN_STATUS_SUBLIBRARY_(?:LOADING_FAILED|VERSION_MISMATCH)|CUDNN_STATUS_VERSION_MISMATCH"
    r"|Unable to load any of \{libcudnn|Could not load symbol cudnn|Cannot load symbol cudnn"
)
# torch reports most of these as RuntimeError("Unexpected error from cudaGetDeviceCount(). ... Error N: <string>"),
# without a code; the strings are libcudart's.
_DRIVER = (
    setup(
        "no-nvidia-driver",
        "There is no NVIDIA driver here, or the container was started without one.",
        "Install the driver, or start the container with `docker run --gpus all`, until `nvidia-smi` works.",
        runtime_error(r"Found no NVIDIA driver on your system"),
        error(r"couldn't communicate with the NVIDIA driver"),
    ),
    setup(
        "driver-too-old",
        "The NVIDIA driver is older than the CUDA that this torch was built for.",
        "Update the driver, or install a torch built for the CUDA version that `nvidia-smi` shows.",
        runtime_error(
            r"NVIDIA driver on your system is too old|CUDA driver version is insufficient for CUDA runtime"
            r"|API call is not supported in the installed CUDA driver",
            *(35, 36),
        ),
    ),
    setup(
        "no-gpu-visible",
        "The driver works but shows this process no GPU.",
        "Check CUDA_VISIBLE_DEVICES, `device:` in the config and the container's GPUs against `nvidia-smi -L`.",
        runtime_error(r"No CUDA GPUs are available|no CUDA-capable device is detected", 100),
    ),
    gpu_busy(
        "gpu-exclusive",
        "Another process holds the GPU for itself (exclusive compute mode).",
        "Wait for the other process or end it; `nvidia-smi -q -d COMPUTE` shows the mode.",
        runtime_error(r"CUDA-capable device\(s\) is/are busy or unavailable", 46),
    ),
    setup(
        "gpu-services-not-ready",
        "The GPU's services are not up yet, mostly the Fabric Manager of a machine with NVSwitch.",
        "Start them (`systemctl start nvidia-fabricmanager nvidia-persistenced`).",
        runtime_error(r"system not yet initialized", 802),
        outcome=Outcome.GPU_BUSY,
    ),
    gpu_busy(
        "mps-unavailable",
        "The MPS server of this GPU refuses clients or cannot be reached.",
        "Start or restart it (`nvidia-cuda-mps-control -d`), or unset CUDA_MPS_PIPE_DIRECTORY.",
        runtime_error(
            r"Error 80[5-9]: |MPS client failed to connect|between the MPS server and the MPS client failed"
            r"|MPS server is not ready|hardware resources required to (?:create MPS client|support device connections)",
            *(805, 806, 807, 808, 809),
        ),
    ),
    setup(
        "driver-library-mismatch",
        "Kernel module and libraries of the NVIDIA driver are of different versions, mostly after an update.",
        "Reboot, or unload and load the nvidia kernel modules.",
        runtime_error(r"unsupported display driver / cuda driver combination", 803),
        error(r"Driver/library version mismatch"),
    ),
    setup(
        "forward-compatibility",
        "A CUDA compatibility library was loaded that this GPU or driver does not support.",
        "Remove the cuda-compat package or its folder from LD_LIBRARY_PATH; if there is none, reboot.",
        runtime_error(r"forward compatibility was attempted on non supported HW", 804),
    ),
    setup(
        "stub-driver",
        "The CUDA stub library, made for building only, was loaded instead of the driver's.",
        "Remove the folder cuda/stubs from LD_LIBRARY_PATH.",
        runtime_error(r"CUDA driver is a stub library", 34),
    ),
    setup(
        "torch-without-cuda",
        "The installed torch is a build without CUDA.",
        "Install a CUDA build of torch, or set `device: cpu`.",
        error(r"Torch not compiled with CUDA enabled", "builtins.AssertionError"),
    ),
    device_fault(
        # A forked worker found CUDA initialized before the fork; a fresh interpreter never does.
        "cuda-before-fork",
        "The worker was forked from a process that had touched CUDA, which no fork survives.",
        "Set workers.start to fresh; if the model or a plug-in touches CUDA while loading, make it wait.",
        runtime_error(r"Cannot re-initialize CUDA in forked subprocess"),
        outcome=Outcome.CRASHED,
    ),
    setup(
        "gpu-not-supported-by-torch",
        "This torch, or an extension, was not built for this generation of GPU.",
        "Install a torch whose `torch.cuda.get_arch_list()` has this GPU's compute capability.",
        runtime_error(
            r"no kernel image is available for execution on the device|invalid device function"
            r"|device kernel image is invalid|the provided PTX was compiled with an unsupported toolchain"
            r"|CUBLAS_STATUS_ARCH_MISMATCH|CUDNN_STATUS_ARCH_MISMATCH",
            *(98, 200, 209, 222, 300),
        ),
        log=r"no kernel image is available for execution on the device|device kernel image is invalid",
    ),
    setup(
        "ptx-not-compiled",
        "torch or an extension has no ready kernels for this GPU, and those in PTX cannot be compiled here.",
        "Install a build for this GPU; or unset CUDA_DISABLE_PTX_JIT and CUDA_DISABLE_JIT, and give the "
        "container the driver's libnvidia-ptxjitcompiler.",
        runtime_error(
            r"a PTX JIT compilation failed|PTX JIT compiler library not found|PTX JIT compilation was disabled",
            *(218, 221, 223),
        ),
    ),
    setup(
        "cuda-call-refused",
        "The operating system, the container or this kind of GPU (virtual, a slice) does not allow a CUDA call.",
        "Take allocator options such as expandable_segments out of PYTORCH_CUDA_ALLOC_CONF, give the container "
        "all devices of the GPU (`docker run --gpus all`), and see the kernel's log.",
        runtime_error(
            r"OS call failed or operation not supported on this OS"
            r"|(?m:CUDA (?:driver )?error: operation not (?:permitted|supported)$)",
            *(304, 800, 801),
        ),
    ),
    setup(
        "no-such-gpu",
        "The config names a GPU or a device that does not exist here.",
        "Correct `device:`; `nvidia-smi -L` lists the GPUs.",
        runtime_error(r"GPU device may be out of range|invalid device ordinal", 101),
        runtime_error(r"^Expected one of cpu, cuda, .{0,300} device type at start|^Invalid device string: "),
        exit_code=CONFIG,
    ),
    setup(
        "cudnn-mixed",
        "Parts of several cuDNN versions were loaded together, or some are missing.",
        "Remove other copies of cuDNN from LD_LIBRARY_PATH, and install the nvidia-cudnn package that torch asks for.",
        runtime_error(_CUDNN),
        log=_CUDNN,
    ),
    setup(
        "container-lost-gpu",
        "The container lost its right to the GPU's devices, mostly by a reload of systemd on the host.",
        "Recreate the container with the devices given explicitly (NVIDIA/nvidia-container-toolkit#48 lists the ways).",
        error(r"Failed to initialize NVML: Unknown Error|operating system has blocked the request"),
    ),
    device_fault(
        "cuda-unknown-error",
        "CUDA failed in the middle of the work, without saying why.",
        "The chunk is tried again in a new process; if it returns, see the kernel's log for Xid messages and "
        "`nvidia-smi`.",
        runtime_error(r"CUDA (?:driver )?error: unknown error", 999),
        phases=AT_WORK,
        exit_code=MACHINE,
    ),
    setup(
        "cuda-does-not-start",
        "The driver could not be started, without saying why.",
        "See whether `nvidia-smi` works and what the kernel's log says; after a suspend, reload nvidia_uvm "
        "(`modprobe -r nvidia_uvm && modprobe nvidia_uvm`) or reboot.",
        runtime_error(
            r"CUDA driver initialization failed|CUDA unknown error - this may be due to"
            r"|CUDA (?:driver )?error: (?:initialization|unknown) error",
            *(3, 999),
        ),
        runtime_error(r"Unexpected error from cudaGetDeviceCount"),
    ),
    setup(
        # Only the context and the weights have been asked for: what fails here fails in every worker.
        "cuda-error-before-work",
        "A CUDA call failed before the first batch, with an error that chunkvisor does not know.",
        "Look the error up in NVIDIA's documentation; `chunkvisor doctor` tries the GPU without a run.",
        of_class("torch.AcceleratorError", "torch.cuda.CudaError"),
        runtime_error(r"\bCUDA (?:driver )?error: "),
        outcome=Outcome.DEVICE_FAULT,
        phases=BEFORE_WORK,
    ),
    device_fault(
        # AcceleratorError of a code without a rule; and old torch, which raises a plain RuntimeError.
        "cuda-error",
        "A CUDA call failed with an error that chunkvisor does not know.",
        "The chunk is tried again in a new process; if it returns, look the error up in NVIDIA's documentation.",
        of_class("torch.AcceleratorError", "torch.cuda.CudaError"),
        runtime_error(r"\bCUDA (?:driver )?error: "),
    ),
)

_NO_SPACE = r"No space left on device|Disk quota exceeded|os error (?:28|122)\b"
_THREADS = (
    r"can't start new thread|Thread creation failed|ThreadPoolBuildError|global thread pool has not been initialized"
)
_HOST = (
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
        # torch.save: the position in the zip file is not what was written. hf_xet raises RuntimeError.
        runtime_error(rf"enforce fail at inline_container\.cc.{{0,80}}unexpected pos|{_NO_SPACE}"),
        error(_NO_SPACE, *_SAFETENSORS),
        log=r"No space left on device|Disk quota exceeded",
        returncodes=(120,),  # Python's own: the work was done, but flushing stdout failed
    ),
    disk_full(
        "disk-failing",
        "The disk gives errors, was remounted read-only, or its server forgot the file (NFS).",
        "See the kernel's log (`dmesg`) and the mount; move the workdir to a sound disk.",
        os_error(errno.EIO, errno.EROFS, errno.ESTALE),
    ),
    host_oom(
        # Before memory: the Rust panic of a failed thread pool quotes EAGAIN's text as well.
        "thread-limit",
        "The machine or the container allows no more threads or processes.",
        "Raise the limit (`docker run --pids-limit`, `ulimit -u`, TasksMax= of systemd), or set "
        'OMP_NUM_THREADS: "4" and TOKENIZERS_PARALLELISM: "false" under `env:`.',
        runtime_error(r"can't start new thread"),
        error(_THREADS, "pyo3_runtime.PanicException"),
        log=_THREADS,
    ),
    host_oom(
        "file-limit",
        "The process may open no more files.",
        "Raise the limit (`ulimit -n 65536`, LimitNOFILE= of systemd).",
        os_error(errno.EMFILE, errno.ENFILE),
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
        os_error(errno.ENOMEM),
        error(r"Cannot allocate memory \(os error 12\)"),
        log=r"std::bad_alloc|DefaultCPUAllocator: |^MemoryError|memory allocation of \d{1,20} bytes failed",
        exit_code=None,
        smaller_batch_helps=True,
        row_can_cause=True,
    ),
)

# transformers turns all of the hub's faults into one OSError, "We couldn't connect to ..."; the truth is further down
# the chain.
_HUB = (
    misconfigured(
        "model-not-cached",
        "The model is not, or not completely, in the local cache, and the hub may not be asked (offline mode).",
        "Run once with the network allowed, or copy the model here and give model.name its folder.",
        of_class(hub_error("OfflineModeIsEnabled"), hub_error("IncompleteSnapshotError")),
        error(r"outgoing traffic has been disabled", hub_error("LocalEntryNotFoundError")),
    ),
    hub(
        "hub-busy",
        "The server of the model hub is overloaded or down, or limits our rate.",
        "The run waits and asks again; set HF_TOKEN for a higher limit, or give model.name a local folder.",
        Sign(http_statuses=(408, 429, 500, 502, 503, 504)),
        error(r"\b429 Too Many Requests|Server error '5\d\d", hub_error("HfHubHTTPError")),
    ),
    misconfigured(
        # A subclass of RepositoryNotFoundError.
        "model-gated",
        "The model is gated: its owner wants you to accept the license first.",
        "Accept it on the model's page, and set HF_TOKEN to a token of that account.",
        of_class(hub_error("GatedRepoError")),
    ),
    misconfigured(
        "model-not-found",
        "The hub has no such model, or hides it: it is private, or the token is wrong or expired.",
        "Check model.name and HF_TOKEN.",
        of_class(hub_error("RepositoryNotFoundError")),
    ),
    misconfigured(
        "revision-not-found",
        "The model has no such revision, or lacks a file in it.",
        "Check model.revision against the model's page.",
        of_class(hub_error("RevisionNotFoundError"), hub_error("RemoteEntryNotFoundError")),
    ),
    misconfigured(
        "hub-access-denied",
        "The hub refused access, or has disabled this model.",
        "Check that HF_TOKEN is valid and may read this model.",
        Sign(http_statuses=(401, 403), classes=(hub_error("HfHubHTTPError"),)),
        of_class(hub_error("LocalTokenNotFoundError"), hub_error("DisabledRepoError")),
    ),
    misconfigured(
        "model-name-invalid",
        "model.name is neither a folder here nor a possible name on the hub.",
        "Write it as owner/name, or as the path of a folder.",
        of_class(hub_error("HFValidationError")),
        error(r"^Repo id must ", "builtins.OSError"),
    ),
    hub(
        "hub-unreachable",
        "The model hub cannot be reached.",
        "Check the network, the proxy and HF_ENDPOINT, or give model.name a local folder; the run waits "
        "and asks again.",
        of_class("httpx.TransportError", "httpx2.TransportError"),
        of_class("requests.exceptions.ConnectionError", "requests.exceptions.Timeout"),
        error(r"An error happened while trying to locate", hub_error("LocalEntryNotFoundError")),
    ),
    hub(
        # Not in the later phases: there a broken pipe is a ConnectionError too.
        "network-failed",
        "A network connection failed while the model was being loaded.",
        "Check the network and the proxy. The run waits and asks again.",
        of_class("builtins.ConnectionError", "builtins.TimeoutError", "socket.gaierror"),
        error(r"We couldn't connect to '", "builtins.OSError"),
        phases=LOAD,
    ),
)

_MODEL = (
    misconfigured(
        # The worker's own checks.
        "setting-impossible",
        "The model or the plug-in cannot do what the config asks for.",
        "Correct the key of the config that the message names.",
        of_class("chunkvisor_worker.plugin.PluginError"),
        error(r"^(?:model|encode)\.\w+ is ", "builtins.ValueError"),
    ),
    misconfigured(
        "wrong-model",
        "The model that is loaded is not the one that its files describe.",
        "The message says what to set or to install. docs/reference/right-vectors.md has all that is checked.",
        of_class("chunkvisor_worker.loaded.WrongModelError"),
    ),
    misconfigured(
        # transformers builds a tokenizer of five special tokens if the files are missing, and says nothing.
        "tokenizer-mismatch",
        "The tokenizer does not belong to the weights, or its files are missing: the vectors would look right "
        "and be wrong.",
        "Download the model again, with all its tokenizer files.",
        _MISMATCH,
        phases=LOAD,
    ),
    misconfigured(
        "model-folder-missing",
        "The model's folder does not exist here.",
        "Correct model.name; a relative path is relative to the config file.",
        error(r"^Path .{1,4096} not found$", "builtins.FileNotFoundError"),
        phases=LOAD,
    ),
    misconfigured(
        "custom-code-refused",
        "The model brings Python code of its own, which is not run without consent.",
        "Read that code; if you trust it, set model.trust_remote_code to true.",
        error(r"contains custom code which must be executed|trust_remote_code=True", "builtins.ValueError"),
    ),
    misconfigured(
        "architecture-unknown",
        "The installed transformers does not know this model's architecture.",
        "Update transformers, or choose a model that it knows.",
        error(r"does not recognize this architecture", "builtins.ValueError"),
    ),
    misconfigured(
        "weights-missing",
        "The model's folder has no weights, mostly because a download was cut short.",
        "Download the model again.",
        error(r"^Error no file named ", "builtins.OSError"),
    ),
    misconfigured(
        "weights-damaged",
        "The weights file is cut short, empty, or the pointer of a Git LFS checkout.",
        "Download the model again; in a Git checkout run `git lfs pull`.",
        error(r"Error while deserializing", *_SAFETENSORS),
        runtime_error(r"PytorchStreamReader failed"),
    ),
    misconfigured(
        "model-config-damaged",
        "The model's config.json is not valid JSON.",
        "Download the model again.",
        error(r"is not a valid JSON file", "builtins.OSError"),
    ),
    misconfigured(
        "weights-mismatch",
        "The shapes of the weights are not those that the model's config.json asks for; the log lists them.",
        "Download config and weights again, from the same revision.",
        runtime_error(r"You set `ignore_mismatched_sizes` to `False`|^Error\(s\) in loading state_dict"),
    ),
    misconfigured(
        "prompt-unknown",
        "The model has no prompt of that name.",
        "Correct encode.prompt_name; the message lists the names.",
        error(r"^Prompt name .{1,300} not found in the|is not a prompt of this model", "builtins.ValueError"),
    ),
    misconfigured(
        "attention-unsupported",
        "The attention implementation is not installed, or not possible with this model or GPU.",
        "Set model.kwargs.attn_implementation to sdpa or eager, or install the package that the message names.",
        error(r"^FlashAttention\d? has been toggled on", "builtins.ImportError"),
        error(r"attn_implementation|FlashAttention only supports", "builtins.ValueError", "builtins.RuntimeError"),
    ),
    misconfigured(
        # Not raised at import but at the first use of the allocator.
        "allocator-config",
        "PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF has an option that torch does not take.",
        "Correct it under `env:` or in the shell; commas part the options, and Booleans are True and False.",
        error(
            r"Unrecognized key .{1,300} in .{0,40}allocator config|CachingAllocator option "
            r"|Unknown allocator backend|^Expected 'True' or 'False' at index|is invalid, set it in [(\[]0\.0, 1\.0"
            r"|^For roundups, the divisions has to be|c10/core/AllocatorConfig\.h",
            *("builtins.ValueError", "builtins.RuntimeError"),
        ),
    ),
    misconfigured(
        "model-option-unknown",
        "The model's constructor does not take one of the options.",
        "Correct model.kwargs; the message names the option.",
        error(r"got an unexpected keyword argument", "builtins.TypeError"),
        phases=LOAD,
    ),
    misconfigured(
        "library-missing",
        "A package is installed, but a shared library that it needs is missing or of another version.",
        "Install builds that belong together, in a separate environment; the message names the library.",
        error(
            r"cannot open shared object file|undefined symbol|version `.{1,80}' not found",
            *("builtins.ImportError", "builtins.OSError"),
        ),
    ),
    misconfigured(
        "permission-denied",
        "The worker may not read or write a file that it needs.",
        "Give the user the right to the path in the message; all workers run as the user of the run.",
        of_class("builtins.PermissionError"),
    ),
)

# What the tokenizer and a CPU say of a text; the GPU's word for the same is `device-side-assert`.
_INPUT = (
    crashed(
        "texts-damaged",
        "The texts of the attempt are not those that were written for it.",
        "The chunk is tried again; if it returns, check the disk, and that nothing else writes in the workdir.",
        of_class("chunkvisor_worker.job.TextsDamagedError"),
    ),
    crashed(
        "bad-output",
        "The encoder gave vectors that cannot be right: too few, misshapen or of the wrong type.",
        "The chunk is tried again, then bisected; a plug-in has to return float32 of (texts, dimension).",
        of_class("chunkvisor_worker.plugin.BadOutputError"),
        outcome=Outcome.BAD_OUTPUT,
        row_can_cause=True,
    ),
    bad_input(
        # The tokenizer's message is misleading: the argument is a str, but UTF-8 cannot hold it.
        "text-not-unicode",
        "A text is not valid Unicode (it holds half of a surrogate pair), or is not a text at all.",
        "Correct the row in the source, mostly text cut in the middle of an emoji.",
        error(r"^(?:TextEncodeInput|TextInputSequence|PreTokenizedInputSequence) must be", "builtins.TypeError"),
        of_class("builtins.UnicodeEncodeError"),
    ),
    bad_input(
        "not-a-text",
        "A value is not a text (a number, bytes or nothing).",
        "Correct the row in the source.",
        error(r"^Unsupported input type: ", "builtins.ValueError"),
    ),
    bad_input(
        "token-out-of-range",
        "A token id or a position is more than the model has.",
        "If it is one row, correct it; if many, tokenizer and model do not belong together.",
        _MISMATCH,  # before the GPU, where it would be a device-side assert
        error(r"^index out of range in self", "builtins.IndexError"),
    ),
    bad_input(
        "text-too-long",
        "A text has more tokens than the model has positions.",
        "Set model.max_length to what the model was built for.",
        runtime_error(
            r"^The size of tensor a \(\d+\) must match the size of tensor b \(\d+\)"
            r"|^The expanded size of the tensor \(\d+\) must match the existing size"
        ),
    ),
    crashed(
        # A Rust panic is a BaseException, not an Exception.
        "tokenizer-panic",
        "A library written in Rust, mostly the tokenizer, stopped at a bug of its own.",
        "The chunk is tried again, then bisected; update tokenizers.",
        of_class("pyo3_runtime.PanicException"),
        log=r"^thread '.{0,80}' panicked at ",
        row_can_cause=True,
    ),
)

# SIGKILL looks the same from the kernel's OOM killer, from us and from a person: before it comes to the rules, the
# parent asks the counters of the cgroup and itself.
_PROCESS = (
    crashed(
        "killed-from-outside",
        "The kernel (for want of memory), a batch system, a person or the program itself killed the worker.",
        "Nothing, as long as the run continues: the chunk is tried again, then in halves.",
        returncodes=(-SIGKILL,),
        exit_code=MACHINE,  # no text and no package kills from outside
        smaller_batch_helps=True,
        row_can_cause=True,
        if_ended="What is killed writes no log. To see whether it was the kernel: dmesg -T | grep -i 'out of memory' "
        "(it may need root; no line means that it was not). Look at the limits of the container or the batch system as "
        "well. If the same texts end it each time, or all do, it is most likely the encoder's own doing.",
    ),
    misconfigured(
        "worker-not-started",
        "The worker's interpreter or package is missing or broken, so that it never came to its first line.",
        "Install chunkvisor[worker] where the workers run; the log names what is missing. A variable such as "
        "PYTHONHOME, of the shell or under `env`, does this as well.",
        # The last line of the log only: a traceback further up was survived.
        log=r"No module named '?chunkvisor_worker|^(?:ModuleNotFoundError|ImportError|SyntaxError): [^\n]*\s*\Z"
        r"|Fatal Python error: (?:init_|config_|Failed to import)",
        returncodes=(126, 127),
    ),
    crashed(
        "illegal-instruction",
        "The processor does not know an instruction of an installed package: the CPU is older than the build.",
        "Install builds for this CPU, or use another machine.",
        log=r"Fatal Python error: Illegal instruction",
        returncodes=(-SIGILL,),
        row_can_cause=True,  # if that text takes another way through native code
        exit_code=MACHINE,
    ),
    crashed(
        # A page of a memory-mapped file that has no disk behind it: np.memmap on a full disk, truncated weights.
        "bus-error",
        "The process touched a part of a mapped file that is not there: the disk is full, /dev/shm is too small, "
        "or the weights were cut short while open.",
        "Check free space and the model's files; the chunk is tried again.",
        log=r"Fatal Python error: Bus error",
        returncodes=(-SIGBUS,),
        row_can_cause=True,
    ),
    crashed(
        "segmentation-fault",
        "Native code crashed: a bug or a clash of packages; the log has the Python stack.",
        "Update torch and the packages on the stack if it returns. Meanwhile the chunk is tried again, then with a "
        "smaller batch, then in halves.",
        log=r"Fatal Python error: (?:Segmentation fault|Floating.point exception)",
        returncodes=(-SIGSEGV, -SIGFPE),
        smaller_batch_helps=True,
        row_can_cause=True,
    ),
    crashed(
        "aborted",
        "Native code gave up; the log says why, above the Python stack.",
        "Read the lines above the stack, and update the package that wrote them. Meanwhile the chunk is tried again, "
        "then in halves.",
        log=r"Fatal Python error: Aborted|terminate called (?:after throwing|without an active exception)",
        returncodes=(-SIGABRT,),
        row_can_cause=True,
    ),
)

# Last, since they take everything.
_UNKNOWN = (
    misconfigured(
        "import-failed",
        "What the model or the plug-in imports is missing, broken, or has an error in its own code.",
        "Install the package that the message names into the workers' environment; if it is your own code, correct "
        "it. The end of the log has the line.",
        of_class("builtins.ImportError", "builtins.SyntaxError"),
    ),
    misconfigured(
        "unknown-at-load",
        "The model or the encoder could not be loaded.",
        "Repair what the end of the log names: a file of the model, or the encoder. `chunkvisor doctor CONFIG` repeats "
        "it without a run.",
        Sign(),
        phases=LOAD,
    ),
    crashed(
        "unknown-on-texts",
        "The encoder failed while it handled texts, with an error that chunkvisor does not know.",
        "Read the traceback at the end of the log. If few texts fail, look at them; if many do, look at the encoder "
        "and the model. Meanwhile the chunk is tried again, then in halves.",
        Sign(),
        phases=ON_TEXTS,
        row_can_cause=True,
    ),
    crashed(
        "unknown",
        "The worker failed with an error that chunkvisor does not know.",
        "The chunk is tried again; read the traceback in the attempt's fault.json.",
        Sign(),
    ),
)

_OF_GPUS = (*_HARDWARE, *_CUDA, *_GPU_MEMORY, *_DRIVER)
OF_GPUS = frozenset(rule.name for rule in _OF_GPUS)
"""Rules about a GPU, its memory or its driver: in a run on the CPU such an error is the encoder's own."""

RULES: tuple[Rule, ...] = (*_INTERRUPTION, *_OF_GPUS, *_HOST, *_HUB, *_MODEL, *_INPUT, *_PROCESS, *_UNKNOWN)
"""All rules, in the order in which they are tried; the first that fits wins."""
