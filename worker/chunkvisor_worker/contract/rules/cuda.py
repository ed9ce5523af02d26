"""Faults of the GPU itself, and those that break the CUDA context, so that only a new process helps.

Out of memory is not among them: after it the context is sound. The numbers are cudaError_t; those of a broken context
are the codes for which CUDA's driver_types.h (13.0) says "the process must be terminated and relaunched".
"""

from chunkvisor_worker.contract.rule import (
    BEFORE_WORK,
    MACHINE,
    NEW_PROCESS,
    PASSING,
    ROW,
    SMALLER_BATCH,
    Evidence,
    Rule,
    device_fault,
    error,
    hardware_fault,
    runtime_error,
)

_CONTAINED = r"Invalid access of peer GPU memory over nvlink or a hardware error"
_KERNEL = (
    r"an illegal instruction was encountered|misaligned address|invalid program counter"
    r"|operation not supported on global/shared address space|hardware stack error"
)
_LOST = r"tensor memory not completely freed|an async error has occured in external entity outside of CUDA"

HARDWARE_RULES: tuple[Rule, ...] = (
    hardware_fault(
        "gpu-lost",
        "The GPU has fallen off the PCIe bus (Xid 79): the driver cannot talk to it any more.",
        "Reboot the machine; if it comes back, check power cables, seating and cooling of the GPU.",
        error(r"GPU is lost|GPU has fallen off the bus"),
        log=r"GPU is lost|GPU has fallen off the bus",
        evidence=Evidence.REPORTED,
    ),
    hardware_fault(
        "gpu-needs-reset",
        "The GPU is in a state that only a reset ends.",
        "End every process on the GPU and reset it as root (`nvidia-smi -r -i <GPU>`), or reboot.",
        error(r"GPU requires re(?:start|set)"),
        evidence=Evidence.REPORTED,
    ),
    hardware_fault(
        # 214 is cudaErrorECCUncorrectable.
        "gpu-ecc-error",
        "The GPU's memory has an error that ECC cannot correct (Xid 48, 94 or 95).",
        "See `nvidia-smi -q -d ECC,ROW_REMAPPER`; reset the GPU or reboot so that the row is remapped, and "
        "replace the card if errors return.",
        runtime_error(r"uncorrectable ECC error encountered", 214),
        log=r"uncorrectable ECC error encountered",
    ),
    hardware_fault(
        # 220 is cudaErrorNvlinkUncorrectable.
        "gpu-nvlink-error",
        "The link between the GPUs failed (Xid 74).",
        "See `nvidia-smi nvlink -e`; run on one GPU, reset the GPUs or reboot.",
        runtime_error(r"uncorrectable NVLink error", 220),
        log=r"uncorrectable NVLink error",
        hints=NEW_PROCESS,
    ),
)

CUDA_RULES: tuple[Rule, ...] = (
    device_fault(
        # Codes that mean a kernel's or a text's fault once there has been a kernel and a text.
        "gpu-fault-before-work",
        "The GPU failed before the first batch, while the CUDA context was made or the weights were copied: no "
        "text has to do with it.",
        "A new worker tries again; if it returns, see the kernel's log for Xid messages and reset the GPU or reboot.",
        runtime_error(
            r"device-side assert triggered|an illegal memory access was encountered|unspecified launch failure"
            rf"|the launch timed out and was terminated|{_KERNEL}|{_LOST}",
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
        runtime_error(r"device-side assert triggered", 710),
        # The kernel prints its assertion to stderr, e.g. Indexing.cu: "Assertion `srcIndex < srcSelectDimSize` failed".
        log=r"device-side assert triggered|block: \[[\d,]{1,40}\], thread: \[[\d,]{1,40}\] Assertion ",
        hints=NEW_PROCESS | ROW,
        evidence=Evidence.CARD,
    ),
    device_fault(
        "illegal-memory-access",
        "A kernel touched memory that is not its own: a bug, an overflow at a huge batch, rarely the hardware.",
        "The chunk is tried again, then with a smaller batch, then row by row; if it returns, look for Xid 48, "
        "94 or 95 in the kernel's log and try another attn_implementation.",
        runtime_error(r"an illegal memory access was encountered|unspecified launch failure", 53, 700, 719),
        # bitsandbytes prints this and calls exit(1).
        log=r"an illegal memory access was encountered|unspecified launch failure",
        hints=SMALLER_BATCH | NEW_PROCESS | ROW,
        evidence=Evidence.CARD,
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
        runtime_error(r"the launch timed out and was terminated", 702),
        log=r"the launch timed out and was terminated",
        hints=SMALLER_BATCH | NEW_PROCESS,
    ),
    device_fault(
        # cudaErrorContained.
        "contained-error",
        "A hardware error, or an access to another GPU's memory, hit this process only (Xid 94); the GPU goes on.",
        "The chunk is tried again; if it returns, see `nvidia-smi -q -d ECC,ROW_REMAPPER` and reset the GPU.",
        runtime_error(_CONTAINED, 226),
        log=_CONTAINED,
        exit_code=MACHINE,
    ),
    device_fault(
        "mps-terminated",
        "The MPS server ended this process, mostly because a neighbour on the same GPU crashed.",
        "The chunk is tried again; run without MPS if neighbours crash often.",
        runtime_error(r"the MPS client has been terminated by the server", 810),
        log=r"the MPS client has been terminated by the server",
        exit_code=PASSING,
    ),
    device_fault(
        "context-lost",
        "The CUDA context is broken by an error that CUDA calls fatal for the process.",
        "The chunk is tried again in a new process; if it returns, report the error to the model's authors.",
        runtime_error(_LOST, 721, 911),
        log=_LOST,
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
        hints=SMALLER_BATCH | NEW_PROCESS | ROW,
    ),
)
