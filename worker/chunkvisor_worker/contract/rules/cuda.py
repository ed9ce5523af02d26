"""Faults that break the CUDA context: only a new process helps.

It never holds out-of-memory faults, after which the context is sound. The numbers are the codes for which CUDA's
driver_types.h (13.0) says "the process must be terminated and relaunched".
"""

import re

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rule import BEFORE_WORK, MACHINE, NULL_GPU_TORCH, PASSING, Evidence, Rule, runtime_error

_CONTAINED = r"Invalid access of peer GPU memory over nvlink or a hardware error"
_KERNEL = (
    r"an illegal instruction was encountered|misaligned address|invalid program counter"
    r"|operation not supported on global/shared address space|hardware stack error"
)
_LOST = r"tensor memory not completely freed|an async error has occured in external entity outside of CUDA"

CUDA_RULES: tuple[Rule, ...] = (
    Rule(
        # Codes that mean a kernel's or a text's fault once there has been a kernel and a text.
        name="gpu-fault-before-work",
        outcome=Outcome.DEVICE_FAULT,
        cause="The GPU failed before the first batch, while the CUDA context was made or the weights were copied: no "
        "text has to do with it.",
        remedy="A new worker tries again; if it returns, see the kernel's log for Xid messages and reset the GPU or "
        "reboot.",
        signs=(
            runtime_error(
                r"device-side assert triggered|an illegal memory access was encountered|unspecified launch failure"
                rf"|the launch timed out and was terminated|{_KERNEL}|{_LOST}",
                *(53, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 911),
            ),
        ),
        phases=BEFORE_WORK,
        exit_code=MACHINE,
        fresh_process_helps=True,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="device-side-assert",
        outcome=Outcome.DEVICE_FAULT,
        cause="A kernel found an index out of bounds; mostly a token id or a position that the model does not have.",
        remedy="The next worker runs with CUDA_LAUNCH_BLOCKING=1 to name the place; if many rows do it, tokenizer and "
        "model do not belong together, or model.max_length is more than the model has positions.",
        signs=(runtime_error(r"device-side assert triggered", 710),),
        # The kernel prints its assertion to stderr, e.g. Indexing.cu: "Assertion `srcIndex < srcSelectDimSize` failed".
        log=re.compile(r"device-side assert triggered|block: \[[\d,]{1,40}\], thread: \[[\d,]{1,40}\] Assertion "),
        fresh_process_helps=True,
        row_can_cause=True,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="illegal-memory-access",
        outcome=Outcome.DEVICE_FAULT,
        cause="A kernel touched memory that is not its own: a bug, an overflow at a huge batch, rarely the hardware.",
        remedy="The chunk is tried again, then with a smaller batch, then row by row; if it returns, look for Xid 48, "
        "94 or 95 in the kernel's log and try another attn_implementation.",
        signs=(runtime_error(r"an illegal memory access was encountered|unspecified launch failure", 53, 700, 719),),
        # bitsandbytes prints this and calls exit(1).
        log=re.compile(r"an illegal memory access was encountered|unspecified launch failure"),
        smaller_batch_helps=True,
        fresh_process_helps=True,
        row_can_cause=True,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="broken-kernel",
        outcome=Outcome.DEVICE_FAULT,
        cause="The GPU refused a kernel's instructions: a wrong build or a bug of a kernel.",
        remedy="Install builds of torch and of the extensions (flash-attn, bitsandbytes) that fit this GPU and each "
        "other, or set model.kwargs.attn_implementation to sdpa.",
        signs=(runtime_error(_KERNEL, 714, 715, 716, 717, 718),),
        log=re.compile(r"an illegal instruction was encountered|CUDA error: (?:misaligned address|hardware stack)"),
        exit_code=MACHINE,
        fresh_process_helps=True,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="launch-timeout",
        outcome=Outcome.DEVICE_FAULT,
        cause="The watchdog of a GPU that drives a display ended a kernel that ran too long.",
        remedy="Use a GPU without a display, or a smaller batch.",
        signs=(runtime_error(r"the launch timed out and was terminated", 702),),
        log=re.compile(r"the launch timed out and was terminated"),
        smaller_batch_helps=True,
        fresh_process_helps=True,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        # cudaErrorContained.
        name="contained-error",
        outcome=Outcome.DEVICE_FAULT,
        cause="A hardware error, or an access to another GPU's memory, hit this process only (Xid 94); the GPU goes "
        "on.",
        remedy="The chunk is tried again; if it returns, see `nvidia-smi -q -d ECC,ROW_REMAPPER` and reset the GPU.",
        signs=(runtime_error(_CONTAINED, 226),),
        log=re.compile(_CONTAINED),
        exit_code=MACHINE,
        fresh_process_helps=True,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="mps-terminated",
        outcome=Outcome.DEVICE_FAULT,
        cause="The MPS server ended this process, mostly because a neighbour on the same GPU crashed.",
        remedy="The chunk is tried again; run without MPS if neighbours crash often.",
        signs=(runtime_error(r"the MPS client has been terminated by the server", 810),),
        log=re.compile(r"the MPS client has been terminated by the server"),
        exit_code=PASSING,
        fresh_process_helps=True,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="context-lost",
        outcome=Outcome.DEVICE_FAULT,
        cause="The CUDA context is broken by an error that CUDA calls fatal for the process.",
        remedy="The chunk is tried again in a new process; if it returns, report the error to the model's authors.",
        signs=(runtime_error(_LOST, 721, 911),),
        log=re.compile(_LOST),
        fresh_process_helps=True,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        # Without the statuses that mean out of memory or setup: they have rules of their own.
        name="cuda-library-failed",
        outcome=Outcome.DEVICE_FAULT,
        cause="cuBLAS or cuDNN failed inside a computation: out of memory in disguise, an earlier fault, or a bug.",
        remedy="The chunk is tried again, then with a smaller batch, then row by row.",
        signs=(
            runtime_error(
                r"CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR|INVALID_VALUE|NOT_SUPPORTED)"
                r"|CUDNN_STATUS_(?:EXECUTION_FAILED|MAPPING_ERROR|INTERNAL_ERROR(?!_)|NOT_SUPPORTED|NOT_INITIALIZED)"
            ),
        ),
        smaller_batch_helps=True,
        fresh_process_helps=True,
        row_can_cause=True,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
)
