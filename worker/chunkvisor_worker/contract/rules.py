"""The table of known faults: name, cause, remedy, and how an exception or a log shows each.

The first row that fits wins. After an interruption come the worst faults: after a sticky CUDA fault
all later calls fail, allocations included, so it is the cause wherever it is in a chain. Numbers
are cudaError_t.
"""

import errno
import os
from collections.abc import Callable
from signal import SIGABRT, SIGBUS, SIGFPE, SIGHUP, SIGILL, SIGINT, SIGKILL, SIGSEGV, SIGTERM
from typing import Any

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import Phase

# Exit codes of `chunkvisor`: 69 this machine can't do it, 74 disk, 75 a passing cause, 78 config,
# model or input.
MACHINE = os.EX_UNAVAILABLE
DISK = os.EX_IOERR
PASSING = os.EX_TEMPFAIL
CONFIG = os.EX_CONFIG

# No text has been read yet, so no row of the input can be the cause.
LOAD = (
    Phase.START,
    Phase.IMPORT,
    Phase.MODEL_LOAD,
)
# No batch has been on the device yet, so a smaller one cannot help.
BEFORE_WORK = (*LOAD, Phase.TOKENIZE, Phase.READY, Phase.CUDA_INIT, Phase.WEIGHTS_COPY)
AT_WORK = (Phase.FORWARD, Phase.WRITE, Phase.DONE)  # the device has begun to compute
# The worker handles texts, so one of them can be the cause.
ON_TEXTS = (
    Phase.TOKENIZE,
    Phase.FORWARD,
)


@frozen
class Sign:
    """What an exception must have to show a fault: everything that is set."""

    classes: tuple[str, ...] = ()
    """Qualified class names, of the exception or of a base class; empty = any."""
    numbers: tuple[int, ...] = ()
    """cudaError_t, errno or HTTP status. If the exception has one, the pattern does not count."""
    pattern: str | None = None  # searched in the head of the message


@frozen
class Rule:
    """A known fault."""

    name: str  # stable identifier; users search the handbook for it
    outcome: Outcome
    cause: str  # what happened, in a sentence or two for the person
    remedy: str  # what to do, likewise
    signs: tuple[Sign, ...] = ()  # any of them suffices
    phases: tuple[Phase, ...] = ()  # the rule holds in these only; empty = any
    log: str | None = None
    """Searched in the end of the log of a worker that left no record, `^` and `$` line by line."""
    returncodes: tuple[int, ...] = ()
    """Of a worker that left no record, as `Popen.returncode`: -n is death by signal n."""
    exit_code: int | None = None
    """With which `chunkvisor` ends if this stops the run; None = the outcome alone decides."""
    smaller_batch_helps: bool = False  # the same work can succeed in smaller batches
    row_can_cause: bool = False
    """A row of the input can be the cause: taking the chunk apart makes sense."""
    if_ended: str = ""
    """What to do if it has ended the run; empty = what is said of every fault of the outcome."""


def of_class(*classes: str) -> Sign:
    """Make the sign of exceptions of these classes, whatever their message."""
    return Sign(classes)


def error(pattern: str, *classes: str) -> Sign:
    """Make the sign of a message, in exceptions of these classes, or of any if there are none."""
    return Sign(classes, (), pattern)


def runtime_error(pattern: str, *codes: int) -> Sign:
    """Make the sign of a RuntimeError, as most of torch's faults are, with its cudaError_t."""
    return Sign(("builtins.RuntimeError",), codes, pattern)


def _family(outcome: Outcome, **usual: Any) -> Callable[..., Rule]:
    """Return a function that makes rows of one outcome; its keywords go over the `usual`."""

    def rule(name: str, cause: str, remedy: str, *signs: Sign, **unusual: Any) -> Rule:
        return Rule(
            name=name,
            cause=cause,
            remedy=remedy,
            signs=signs,
            **({"outcome": outcome} | usual | unusual),
        )

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


def at_work(name: str, cause: str, remedy: str, pattern: str, *codes: int, **unusual: Any) -> Rule:
    """Make the row of a fault of a GPU that computes; the log shows it as well."""
    usual: dict[str, Any] = {"phases": AT_WORK, "log": pattern}
    return device_fault(name, cause, remedy, runtime_error(pattern, *codes), **(usual | unusual))


# Out of memory, in all its spellings: torch's allocator; plain RuntimeErrors of the cudaMallocAsync
# backend, of driver calls and of the libraries' handles; JAX and ONNX Runtime, for plug-in
# encoders.
_OOM = (
    of_class(
        "torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError", "cupy.cuda.memory.OutOfMemoryError"
    ),
    runtime_error(
        r"CUDA out of memory|CUDA (?:driver )?error: out of memory"
        r"|would exceed allowed memory\. \(out of memory\)|CUBLAS_STATUS_ALLOC_FAILED"
        r"|CUBLAS_STATUS_NOT_INITIALIZED|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
        r"|cudaGetDeviceCount(?s:.{0,300})Error 2: out of memory",
        2,
    ),
    error(r"RESOURCE_EXHAUSTED: |Failed to allocate memory for requested buffer of size"),
)
_NVML = r'NVML_SUCCESS == (?s:.{0,300})INTERNAL ASSERT FAILED at "[^"]{0,300}\b'
_NVML_ALLOCATOR = runtime_error(rf'{_NVML}CUDACachingAllocator\.cpp"')
NO_ROOM = "gpu-full-before-work"
# What may stand before such words in a line of a log that is not a text: the class of an exception,
# or a program.
_SAID = r"^(?:\S+: )?(?:\[Errno -?\d{1,5}\] )?"
_NO_SPACE = r"No space left on device|Disk quota exceeded|os error (?:28|122)\b"
_THREADS = (
    r"can't start new thread|Thread creation failed|ThreadPoolBuildError"
    r"|global thread pool has not been initialized"
)
_TOO_BUSY = Sign(numbers=(408, 429, *range(500, 600)))
_NO_CONNECTION = of_class(
    "httpx.TransportError",
    "httpx2.TransportError",
    "requests.exceptions.ConnectionError",
    "requests.exceptions.Timeout",
    "builtins.ConnectionRefusedError",
    "builtins.ConnectionResetError",
    "builtins.TimeoutError",
    "socket.gaierror",
)
_HUBS = "huggingface_hub.errors"
ENCODER_BROKEN = "encoder-broken"
ANSWERED = "the server answered"
"""Stands before status and text of a reply in the message of a `Cause`."""
OS_ERROR = ("builtins.OSError",)
PERMISSION_DENIED = "permission-denied"
_SAFETENSORS = ("safetensors._safetensors_rust.SafetensorError", "safetensors_rust.SafetensorError")
_CUDA_ERROR = (
    of_class("torch.AcceleratorError", "torch.cuda.CudaError"),
    runtime_error(r"\bCUDA (?:driver )?error: "),
)

_OF_GPUS = (
    hardware_fault(
        "gpu-lost",
        "The GPU has fallen off the PCIe bus (Xid 79), or is in a state that only a reset ends.",
        "End every process on the GPU and reset it as root (`nvidia-smi -r -i <GPU>`), or reboot; "
        "check its cooling.",
        error(r"GPU is lost|GPU has fallen off the bus|GPU requires re(?:start|set)"),
    ),
    hardware_fault(
        "gpu-ecc-error",
        "The GPU's memory has an error that ECC cannot correct (Xid 48, 94 or 95).",
        "See `nvidia-smi -q -d ECC,ROW_REMAPPER`; reset the GPU or reboot, and replace the card if "
        "errors return.",
        runtime_error(r"uncorrectable ECC error encountered", 214),
        # as a C++ exception that nothing catches says it
        log=r"CUDA error: uncorrectable ECC error encountered",
    ),
    at_work(
        "device-side-assert",
        "A kernel found an index out of bounds; usually a token id or a position that the model "
        "does not have.",
        "If many rows do it, tokenizer and model do not belong together, or model.max_length is "
        "beyond its positions.",
        # The kernel prints its assertion to stderr, e.g. Indexing.cu: "Assertion `srcIndex <
        # srcSelectDimSize` failed".
        r"device-side assert triggered|block: \[[\d,]{1,40}\], thread: \[[\d,]{1,40}\] Assertion ",
        710,
        row_can_cause=True,
    ),
    at_work(
        "illegal-memory-access",
        "A kernel touched memory that is not its own, or ran too long for the watchdog of a GPU "
        "with a display.",
        "Look for Xid 48, 94 or 95 in the kernel's log, and try another attn_implementation or a "
        "smaller batch.",
        # bitsandbytes prints it, and exits.
        r"an illegal memory access was encountered|unspecified launch failure"
        r"|the launch timed out and was terminated",
        *(53, 700, 702, 719),
        smaller_batch_helps=True,
        row_can_cause=True,
    ),
    at_work(
        "context-lost",
        "The CUDA context is broken by an error that CUDA calls fatal: a kernel of a wrong build, "
        "or the hardware.",
        "Install builds of torch and of the extensions (flash-attn, bitsandbytes) that fit this "
        "GPU and each other. If the kernel's log has Xid messages, see `nvidia-smi -q -d "
        "ECC,ROW_REMAPPER`, and reset the GPU.",
        r"an illegal instruction was encountered|CUDA error: misaligned address"
        r"|invalid program counter|operation not supported on global/shared address space"
        r"|hardware stack error|Invalid access of peer GPU memory over nvlink or a hardware error"
        r"|uncorrectable NVLink error|tensor memory not completely freed"
        r"|an async error has occured in external entity outside of CUDA",
        *(220, 226, 714, 715, 716, 717, 718, 721, 911),
        exit_code=MACHINE,
    ),
    device_fault(
        # Without the statuses that mean out of memory or setup: other rules are for them.
        "cuda-library-failed",
        "cuBLAS or cuDNN failed inside a computation: out of memory in disguise, an earlier fault, "
        "or a bug.",
        "Try a smaller encode.batch_tokens, and builds of torch and the driver that belong "
        "together.",
        runtime_error(
            r"CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR|INVALID_VALUE"
            r"|NOT_SUPPORTED)|CUDNN_STATUS_(?:EXECUTION_FAILED|MAPPING_ERROR|INTERNAL_ERROR(?!_)"
            r"|NOT_SUPPORTED|NOT_INITIALIZED)"
        ),
        smaller_batch_helps=True,
        row_can_cause=True,
    ),
    misconfigured(
        # torch 2.13 and later reach NVML from ExpandableSegment::map; torch itself refuses the
        # remedy that it prints (expandable_segments_handle_type:posix_fd) as an unknown key.
        "nvml-assert-expandable-segments",
        "The allocator option expandable_segments needs NVML, and NVML is broken here. It is not "
        "an out-of-memory.",
        "Remove expandable_segments from PYTORCH_CUDA_ALLOC_CONF; or leave "
        "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC at 0, as chunkvisor sets it, and update torch; a "
        "reboot repairs NVML.",
        runtime_error(rf'{_NVML}PeerToPeerAccess\.cpp"'),
    ),
    gpu_busy(
        # Before the first batch, so that a smaller one cannot help.
        NO_ROOM,
        "The GPU had no room for the weights or the libraries before the first batch: other "
        "processes hold its memory, or the model is larger than the GPU.",
        "See `nvidia-smi` for the processes on the GPU and end them, or lower workers.per_device; "
        "if there are none, use a smaller model or a larger GPU; `chunkvisor doctor CONFIG` says "
        "which model.dtype suits the card.",
        *_OOM,
        _NVML_ALLOCATOR,
        phases=BEFORE_WORK,
    ),
    gpu_oom(
        # torch 2.1 to 2.13 ask NVML for the process list while composing the message
        # (pytorch#99699); 2.14 warns instead (pytorch#185946).
        "nvml-assert-allocator",
        "The GPU ran out of memory, and torch failed to say so because NVML is broken.",
        "Reboot or reload the driver when you can, since `nvidia-smi` is probably broken too.",
        _NVML_ALLOCATOR,
        if_ended="If `nvidia-smi` fails, reload the NVIDIA driver or reboot. If it works, see who "
        "holds the GPU's memory; else use a GPU with more of it, or a smaller model.max_length.",
    ),
    gpu_oom(
        "gpu-out-of-memory",
        "The batch did not fit in the GPU's memory.",
        "Set a smaller encode.batch_tokens. If single texts do not fit, set a smaller "
        "model.max_length.",
        *_OOM,
        log=r"CUDA out of memory|CUDA error: out of memory",
    ),
    # torch reports most of these as RuntimeError("Unexpected error from cudaGetDeviceCount(). ...
    # Error N: <string>"), without a code; the strings are libcudart's.
    setup(
        "no-nvidia-driver",
        "There is no NVIDIA driver here, or the container was started without one.",
        "Install the driver, or start the container with `docker run --gpus all`, until "
        "`nvidia-smi` works.",
        error(r"Found no NVIDIA driver on your system|couldn't communicate with the NVIDIA driver"),
    ),
    setup(
        "driver-too-old",
        "The NVIDIA driver is older than the CUDA that this torch was built for.",
        "Update the driver, or install a torch built for the CUDA version that `nvidia-smi` shows.",
        runtime_error(
            r"NVIDIA driver on your system is too old"
            r"|CUDA driver version is insufficient for CUDA runtime"
            r"|API call is not supported in the installed CUDA driver",
            *(35, 36),
        ),
    ),
    setup(
        "no-gpu-visible",
        "The driver works but shows this process no GPU.",
        "Check CUDA_VISIBLE_DEVICES, `device:` in the config and the container's GPUs against "
        "`nvidia-smi -L`.",
        runtime_error(r"No CUDA GPUs are available|no CUDA-capable device is detected", 100),
    ),
    gpu_busy(
        "gpu-exclusive",
        "Another process holds the GPU for itself (exclusive compute mode).",
        "Wait for the other process or end it; `nvidia-smi -q -d COMPUTE` shows the mode.",
        runtime_error(r"CUDA-capable device\(s\) is/are busy or unavailable", 46),
    ),
    gpu_busy(
        "gpu-services-not-ready",
        "The GPU's services are not up yet, usually the Fabric Manager of a machine with NVSwitch.",
        "Start them (`systemctl start nvidia-fabricmanager nvidia-persistenced`).",
        runtime_error(r"system not yet initialized", 802),
        exit_code=MACHINE,
    ),
    setup(
        "driver-library-mismatch",
        "The CUDA library does not fit the NVIDIA driver, updated under a running kernel module, "
        "or is a stub.",
        "Remove cuda/stubs and cuda-compat from LD_LIBRARY_PATH; else reboot, or unload and load "
        "the kernel modules.",
        runtime_error(
            r"unsupported display driver / cuda driver combination|CUDA driver is a stub library"
            r"|forward compatibility was attempted on non supported HW",
            *(34, 803, 804),
        ),
        error(r"Driver/library version mismatch"),
    ),
    setup(
        "torch-without-cuda",
        "The installed torch is a build without CUDA.",
        "Install a CUDA build of torch, or set `device: cpu`.",
        error(r"Torch not compiled with CUDA enabled", "builtins.AssertionError"),
    ),
    setup(
        "gpu-not-supported-by-torch",
        "This torch, or an extension, has no kernels for this generation of GPU, and none can be "
        "compiled here.",
        "Install a torch whose `torch.cuda.get_arch_list()` has this GPU's compute capability.",
        runtime_error(
            r"no kernel image is available for execution on the device"
            r"|device kernel image is invalid|invalid device function"
            r"|the provided PTX was compiled with an unsupported toolchain"
            r"|CUBLAS_STATUS_ARCH_MISMATCH|CUDNN_STATUS_ARCH_MISMATCH|a PTX JIT compilation failed"
            r"|PTX JIT compiler library not found|PTX JIT compilation was disabled",
            *(98, 200, 209, 218, 221, 222, 223, 300),
        ),
        log=r"CUDA error: no kernel image is available for execution on the device",
    ),
    setup(
        "cuda-does-not-start",
        "The driver could not be started, or the system, the container or this kind of GPU does "
        "not allow a CUDA call.",
        "See whether `nvidia-smi` works. Unset PYTORCH_CUDA_ALLOC_CONF, start the container again "
        "with all devices of the GPU (`docker run --gpus all`), or reboot.",
        runtime_error(
            r"CUDA driver initialization failed|CUDA unknown error - this may be due to"
            r"|CUDA (?:driver )?error: (?:initialization error|operation not (?:permitted"
            r"|supported)\b(?! on global))|Unexpected error from cudaGetDeviceCount"
            r"|OS call failed or operation not supported on this OS",
            *(3, 304, 800, 801),
        ),
        error(r"Failed to initialize NVML: Unknown Error|operating system has blocked the request"),
    ),
    device_fault(
        # Codes that mean a kernel's or a text's fault once there has been a kernel and a text are
        # here as well.
        "gpu-fault-before-work",
        "The GPU failed before the first batch, while the CUDA context was made or the weights "
        "were copied.",
        "Look for Xid messages in the kernel's log; reset the GPU or reboot.",
        *_CUDA_ERROR,
        phases=BEFORE_WORK,
        exit_code=MACHINE,
    ),
    device_fault(
        "cuda-error",
        "A CUDA call failed with an unrecognized error.",
        "Look the error up in NVIDIA's documentation, and look for Xid messages in the kernel's "
        "log.",
        *_CUDA_ERROR,
    ),
)
# In a run on the CPU such an error is the encoder's own.
OF_GPUS = frozenset(rule.name for rule in _OF_GPUS)

TOO_LARGE = setup(
    "file-too-large",
    "A file would be larger than its file system or `ulimit -f` allows.",
    "Run `ulimit -f unlimited`, or choose a folder on a file system for large files (FAT32 ends at "
    "4 GiB).",
    Sign(OS_ERROR, (errno.EFBIG,)),
    exit_code=DISK,
)
# While texts are encoded, a file may be one that a text names.
_NOT_ON_BATCHES = (*BEFORE_WORK, Phase.WRITE, Phase.DONE)
# Errors of the file system, by errno. The parent finds the words for its own errors here as well.
_OF_FILES = (
    disk_full(
        "disk-quota",
        "The disk quota of this user is used up.",
        "Remove files of yours from that disk (`quota -s` shows how much you may have), or have "
        "the quota raised.",
        Sign(OS_ERROR, (errno.EDQUOT,), r"Disk quota exceeded"),
        log=rf"{_SAID}Disk quota exceeded",
    ),
    disk_full(
        "disk-full",
        "The disk is full, or can hold no more files.",
        "Free some space on the disk of the workdir, and on that of TMPDIR.",
        # numpy's tofile and np.save(path) raise OSError without an errno.
        Sign(
            OS_ERROR,
            (errno.ENOSPC,),
            rf"{_NO_SPACE}|Not enough free space to write|\d{{1,20}} requested and \d{{1,20}} "
            rf"written",
        ),
        error(r"database or disk is full", "sqlite3.OperationalError"),
        # torch.save: the position in the zip file is not what was written. hf_xet raises
        # RuntimeError.
        runtime_error(rf"enforce fail at inline_container\.cc.{{0,80}}unexpected pos|{_NO_SPACE}"),
        error(_NO_SPACE, *_SAFETENSORS),
        log=rf"{_SAID}No space left on device",
        returncodes=(120,),  # Python's own: the work was done, but flushing stdout failed
    ),
    disk_full(
        "disk-failing",
        "The disk reports an error of reading or writing.",
        "Look for its errors in the kernel's log (`dmesg -T`); if it is failing, choose a folder "
        "on another disk.",
        Sign(OS_ERROR, (errno.EIO,)),
    ),
    disk_full(
        "disk-read-only",
        "The disk is mounted read-only, as the kernel does after errors.",
        "Mount it for writing, or choose another folder.",
        Sign(OS_ERROR, (errno.EROFS,)),
    ),
    disk_full(
        "disk-stale",
        "An open file is gone from the file server (NFS).",
        "Mount the disk again.",
        Sign(OS_ERROR, (errno.ESTALE,)),
    ),
    TOO_LARGE,
    setup(
        "no-file-locks",
        "No file can be locked on this disk.",
        "Mount it with locks (on Lustre the option flock, on NFS not nolock), or choose a folder "
        "on another disk.",
        Sign(OS_ERROR, (errno.ENOLCK,)),
    ),
    misconfigured(
        PERMISSION_DENIED,
        "This user may not use the file or folder (permission denied).",
        "Have the owner give you the right to (chmod, chown), run as the owner, or choose another "
        "place.",
        Sign(OS_ERROR, (errno.EACCES, errno.EPERM)),
        phases=_NOT_ON_BATCHES,
    ),
    misconfigured(
        "name-too-long",
        "The name or the path of a file is too long.",
        "Choose a shorter name or path.",
        Sign(OS_ERROR, (errno.ENAMETOOLONG,)),
        phases=_NOT_ON_BATCHES,
    ),
)

# All rules, in the order in which they are tried; the first that fits wins.
RULES: tuple[Rule, ...] = (
    crashed(
        "interrupted",
        "A signal asked the worker to stop, or the program sent itself one.",
        "Run the same command again to continue.",
        of_class("builtins.KeyboardInterrupt"),
        outcome=Outcome.INTERRUPTED,
        returncodes=(-SIGINT, -SIGTERM, -SIGHUP),
        row_can_cause=True,  # if it comes back with the same texts, and with no others
    ),
    *_OF_GPUS,
    *_OF_FILES,
    host_oom(
        # Before memory: the Rust panic of a failed thread pool quotes EAGAIN's text as well.
        "process-limits",
        "The machine or the container allows no more threads, processes or open files.",
        "Raise the limit: `ulimit -n 65536` for files; `docker run --pids-limit` or `ulimit -u` "
        "for threads.",
        runtime_error(r"can't start new thread"),
        error(_THREADS, "pyo3_runtime.PanicException"),
        Sign(OS_ERROR, (errno.EMFILE, errno.ENFILE)),
        error(r"Too many open files|os error 24\b"),
        log=rf"{_SAID}(?:{_THREADS}|Too many open files)",
    ),
    host_oom(
        "host-out-of-memory",
        "The machine or the container had no memory left for the process; this is not the GPU's "
        "memory.",
        "Give it more memory, end other programs, or lower workers.standby and workers.per_device.",
        of_class("builtins.MemoryError"),
        # RuntimeErrors of torch: its CPU allocator, and cuDNN's buffers on the host.
        runtime_error(
            r"DefaultCPUAllocator: (?:can't allocate|not enough) memory"
            r"|CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED|CUDNN_STATUS_ALLOC_FAILED"
            r"|^std::bad_alloc"
        ),
        Sign(OS_ERROR, (errno.ENOMEM,)),
        error(r"Cannot allocate memory \(os error 12\)|failed to map segment"),
        log=r"std::bad_alloc|DefaultCPUAllocator: |^MemoryError|OpenBLAS error: Memory allocation"
        r"|memory allocation of \d{1,20} bytes failed",
        exit_code=None,
        smaller_batch_helps=True,
        row_can_cause=True,
    ),
    # transformers turns all faults of the hub into one OSError, "We couldn't connect to": the truth
    # is down the chain.
    hub(
        "service-busy",
        "A server that the encoder asks is overloaded, or asked to wait.",
        "See whether its limit of requests is enough for the run's workers.",
        of_class("chunkvisor_worker.Busy"),
        Sign(numbers=(429,)),
        phases=(Phase.FORWARD,),
    ),
    bad_input(
        # A reply that speaks of tokens is about the length of a text.
        "batch-too-large",
        "A server that the encoder asks takes no batch of this size.",
        "Set encode.batch_size to what the server takes.",
        error(
            rf"{ANSWERED} (?:413|(?:400|422|5\d\d)(?=.*\b(?i:batch|maximum|too (?:many|large))\b))"
            r":(?!.*\b(?i:tokens?|context length)\b)"
        ),
        phases=(Phase.FORWARD,),
        smaller_batch_helps=True,
    ),
    hub(
        "service-failed",
        "A server that the encoder asks failed, did not answer, or cannot be reached.",
        "Nothing, as long as the run continues.",
        _TOO_BUSY,
        _NO_CONNECTION,
        phases=(Phase.FORWARD,),
        row_can_cause=True,
        if_ended="See whether the server is up, and what it and its log say of such requests.",
    ),
    misconfigured(
        "model-not-cached",
        "The model is not, or not completely, in the local cache, and the hub may not be asked "
        "(offline mode).",
        "Run `HF_HUB_OFFLINE=0 hf download OWNER/NAME` where that is allowed, or give model.name a "
        "local folder.",
        of_class(f"{_HUBS}.OfflineModeIsEnabled", f"{_HUBS}.IncompleteSnapshotError"),
        error(r"outgoing traffic has been disabled", f"{_HUBS}.LocalEntryNotFoundError"),
    ),
    hub(
        "hub-busy",
        "The server of the model hub is overloaded or down, or limits our rate.",
        "Set HF_TOKEN for a higher limit, or give model.name a local folder.",
        of_class("chunkvisor_worker.Busy"),  # of a plug-in that loads
        _TOO_BUSY,
        error(r"\b429 Too Many Requests|Server error '5\d\d", f"{_HUBS}.HfHubHTTPError"),
    ),
    misconfigured(
        "hub-access-denied",
        "The hub refused access: the model is gated, disabled or private, or the token is wrong.",
        "Accept the license on the model's page, and set HF_TOKEN to a valid token of that "
        "account.",
        of_class(
            f"{_HUBS}.GatedRepoError",
            f"{_HUBS}.LocalTokenNotFoundError",
            f"{_HUBS}.DisabledRepoError",
        ),
        Sign((f"{_HUBS}.HfHubHTTPError",), (401, 403)),
    ),
    misconfigured(
        "model-not-found",
        "There is no such folder here, and the hub has no such model or revision, or hides it "
        "since it is private.",
        "Check the name (owner/name, or the path of a folder) and model.revision; set HF_TOKEN for "
        "a private model.",
        of_class(
            f"{_HUBS}.RepositoryNotFoundError",
            f"{_HUBS}.RevisionNotFoundError",
            f"{_HUBS}.RemoteEntryNotFoundError",
            f"{_HUBS}.HFValidationError",
        ),
        error(r"^Repo id must ", "builtins.OSError"),
    ),
    hub(
        # Not in the later phases: there a broken pipe is a ConnectionError too.
        "hub-unreachable",
        "The model hub cannot be reached.",
        "Check the network, the proxy and HF_ENDPOINT, or give model.name a local folder.",
        _NO_CONNECTION,
        error(r"An error happened while trying to locate", f"{_HUBS}.LocalEntryNotFoundError"),
        of_class("builtins.ConnectionError"),
        error(r"We couldn't connect to '", "builtins.OSError"),
        phases=BEFORE_WORK,  # `plan` tokenizes, and may fetch a tokenizer for it
    ),
    misconfigured(
        "wrong-model",
        "The model that is loaded is not the one that its files describe; the vectors would look "
        "right and be wrong.",
        "Set, install or download what the message says.",
        of_class("chunkvisor_worker.tokenizer.WrongModelError"),
    ),
    misconfigured(
        # The worker's own checks, and those of sentence-transformers.
        "setting-impossible",
        "The model or the plug-in cannot do what the config asks for.",
        "Correct the key of the config that the message names. For attention, set "
        "model.kwargs.attn_implementation to sdpa or eager, or install the package that the "
        "message names.",
        of_class("chunkvisor_worker.plugin.PluginError"),
        error(
            r"^(?:model|encode)\.\w+ is |^Prompt name .{1,300} not found in the",
            "builtins.ValueError",
        ),
        error(r"^FlashAttention\d? has been toggled on", "builtins.ImportError"),
        error(
            r"attn_implementation|FlashAttention only supports",
            "builtins.ValueError",
            "builtins.RuntimeError",
        ),
    ),
    misconfigured(
        "model-files-damaged",
        "Files of the model are missing, cut short, of another revision, or pointers of a Git LFS "
        "checkout.",
        "Download the model again; in a Git checkout run `git lfs pull`.",
        error(r"^Error no file named |is not a valid JSON file", "builtins.OSError"),
        error(r"Error while deserializing", *_SAFETENSORS),
        runtime_error(
            r"PytorchStreamReader failed|You set `ignore_mismatched_sizes` to `False`"
            r"|^Error\(s\) in loading state_dict"
        ),
    ),
    misconfigured(
        # Not raised at import but at the first use of the allocator.
        "allocator-config",
        "PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF has an option that torch does not take.",
        "Correct it under `env:` or in the shell; commas part the options, and Booleans are True "
        "and False.",
        error(
            r"in .{0,40}allocator config|CachingAllocator option |Unknown allocator backend"
            r"|core/AllocatorConfig\.h",
            "builtins.ValueError",
            "builtins.RuntimeError",
        ),
    ),
    # What the tokenizer and a CPU say of a text; the GPU's word for the same is
    # `device-side-assert`.
    crashed(
        "texts-damaged",
        "The texts of the attempt are not those that were written for it.",
        "Check the disk, and that nothing else writes in the workdir.",
        of_class("chunkvisor_worker.job.TextsDamagedError"),
    ),
    crashed(
        "bad-output",
        "The encoder gave vectors that cannot be right: too few, misshapen or of the wrong type.",
        "Correct the encoder: a plug-in has to return float32 of (texts, dimension).",
        of_class("chunkvisor_worker.plugin.BadOutputError"),
        outcome=Outcome.BAD_OUTPUT,
        row_can_cause=True,
    ),
    bad_input(
        # The tokenizer's message is misleading: the argument is a str, but UTF-8 cannot hold it.
        "text-not-unicode",
        "A text is not valid Unicode (it holds half of a surrogate pair), or is not a text at all.",
        "Correct the row in the source, usually text cut in the middle of an emoji.",
        error(
            r"^(?:TextEncodeInput|TextInputSequence|PreTokenizedInputSequence) must be",
            "builtins.TypeError",
        ),
        error(r"^Unsupported input type: ", "builtins.ValueError"),
        of_class("builtins.UnicodeEncodeError"),
    ),
    bad_input(
        "token-out-of-range",
        "A text has a token id or a position that is more than the model has.",
        "Correct the row. If it is many, set model.max_length to what the model was built for.",
        error(
            r"^index out of range in self",
            "builtins.IndexError",
        ),
        runtime_error(
            r"^The size of tensor a \(\d+\) must match the size of tensor b \(\d+\)"
            r"|^The expanded size of the tensor \(\d+\) must match the existing size"
        ),
    ),
    # SIGKILL looks the same from the kernel's OOM killer, from us and from a person: before it
    # comes to the rules, the parent asks the counters of the cgroup and itself.
    crashed(
        "killed-from-outside",
        "The kernel (for want of memory), a batch system, a person or the program itself killed "
        "the worker.",
        "Nothing, as long as the run continues.",
        returncodes=(-SIGKILL,),
        exit_code=MACHINE,  # no text and no package kills from outside
        smaller_batch_helps=True,
        row_can_cause=True,
        if_ended="To see whether it was the kernel: dmesg -T | grep -i 'out of memory' (it may "
        "need root). Look at the limits of the container or the batch system as well. If the same "
        "texts end it each time, it is the encoder.",
    ),
    misconfigured(
        "worker-not-started",
        "The worker's interpreter or package is missing or broken, so that it never came to its "
        "first line.",
        "Install chunkvisor with its extra `worker` where the workers run, and unset PYTHONHOME. "
        "The log says more.",
        # The last line of the log only: a traceback further up was survived.
        log=r"No module named '?chunkvisor_worker|^(?:ModuleNotFoundError|ImportError"
        r"|SyntaxError): [^\n]*\s*\Z|Fatal Python error: (?:init_|config_|Failed to import)",
        phases=LOAD,
        returncodes=(126, 127),
    ),
    crashed(
        "segmentation-fault",
        # SIGBUS: a page of a mapped file has no disk behind it, as with np.memmap on a full disk or
        # truncated weights.
        "Native code crashed: a bug, a clash of packages, or a build for another CPU; the log has "
        "the Python stack.",
        "Update torch and the packages on the stack, or install builds for this CPU. After a bus "
        "error, look for a full disk or /dev/shm and for weights that were cut short.",
        log=r"Fatal Python error: (?:Segmentation fault|Bus error|Floating.point exception"
        r"|Illegal instruction)",
        returncodes=(-SIGSEGV, -SIGBUS, -SIGFPE, -SIGILL),
        smaller_batch_helps=True,
        row_can_cause=True,
    ),
    crashed(
        "aborted",
        "Native code gave up; the log says why, above the Python stack.",
        "Read the lines above the stack, and update the package that wrote them.",
        log=r"Fatal Python error: Aborted|terminate called (?:after throwing"
        r"|without an active exception)",
        returncodes=(-SIGABRT,),
        row_can_cause=True,
    ),
    # Last, since they take everything.
    misconfigured(
        "import-failed",
        "What the model or the plug-in needs is missing, broken, of another version, or has an "
        "error in its own code.",
        "Install the package that the message names into the workers' environment, or correct your "
        "own code. Take other copies of a library (cuDNN) out of LD_LIBRARY_PATH.",
        of_class("builtins.ImportError", "builtins.SyntaxError"),
        error(
            r"cannot open shared object file|undefined symbol|version `.{1,80}' not found",
            "builtins.OSError",
        ),
        runtime_error(
            r"CUDNN_STATUS_SUBLIBRARY_(?:LOADING_FAILED|VERSION_MISMATCH)"
            r"|CUDNN_STATUS_VERSION_MISMATCH|Unable to load any of \{libcudnn"
            r"|Could not load symbol cudnn|Cannot load symbol cudnn"
        ),
    ),
    misconfigured(
        "unknown-at-load",
        "The model or the encoder could not be loaded.",
        "Repair what the end of the log names: a file of the model, an option of model.kwargs, or "
        "the encoder.",
        Sign(),
        phases=LOAD,
    ),
    crashed(
        ENCODER_BROKEN,
        "The encoder's code has an error, or (rarely) trips over a text.",
        "Correct the line that the message names.",
        of_class(
            "builtins.NameError",
            "builtins.TypeError",
            "builtins.AttributeError",
            "builtins.NotImplementedError",
        ),
        phases=(Phase.FORWARD,),
        exit_code=CONFIG,
        row_can_cause=True,
    ),
    crashed(
        "unknown-on-texts",
        "The encoder failed while it handled texts, with an unrecognized error.",
        "Read the traceback at the end of the log. If few texts fail, look at them; if many do, "
        "look at the encoder.",
        Sign(),
        phases=ON_TEXTS,
        row_can_cause=True,
    ),
    crashed(
        "unknown",
        "The worker failed with an unrecognized error.",
        "Read the traceback in the attempt's fault.json.",
        Sign(),
    ),
)
