"""Faults that break the CUDA context: only a new process helps.

It never holds out-of-memory faults, after which the context is sound. The numbers are the codes for which CUDA's
driver_types.h (13.0) says "the process must be terminated and relaunched".
"""

import re

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rule import MACHINE, PASSING, Evidence, Rule, Sign, runtime_error

CUDA_RULES: tuple[Rule, ...] = (
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
    ),
    Rule(
        name="illegal-memory-access",
        outcome=Outcome.DEVICE_FAULT,
        cause="A kernel touched memory that is not its own: a bug, an overflow at a huge batch, rarely the hardware.",
        remedy="The chunk is tried again, then with a smaller batch, then row by row; if it returns, look for Xid 48, "
        "94 or 95 in the kernel's log and try another attn_implementation.",
        signs=(runtime_error(r"an illegal memory access was encountered|unspecified launch failure", 700, 719),),
        # bitsandbytes prints this and calls exit(1).
        log=re.compile(r"an illegal memory access was encountered|unspecified launch failure"),
        smaller_batch_helps=True,
        fresh_process_helps=True,
        row_can_cause=True,
    ),
    Rule(
        name="broken-kernel",
        outcome=Outcome.DEVICE_FAULT,
        cause="The GPU refused a kernel's instructions: a wrong build or a bug of a kernel.",
        remedy="Install builds of torch and of the extensions (flash-attn, bitsandbytes) that fit this GPU and each "
        "other, or set model.kwargs.attn_implementation to sdpa.",
        signs=(
            runtime_error(
                r"an illegal instruction was encountered|misaligned address|invalid program counter"
                r"|operation not supported on global/shared address space|hardware stack error",
                *(714, 715, 716, 717, 718),
            ),
        ),
        log=re.compile(r"an illegal instruction was encountered|CUDA error: (?:misaligned address|hardware stack)"),
        exit_code=MACHINE,
        fresh_process_helps=True,
    ),
    Rule(
        name="launch-timeout",
        outcome=Outcome.DEVICE_FAULT,
        cause="The watchdog of a GPU that drives a display ended a kernel that ran too long.",
        remedy="Use a GPU without a display, or a smaller batch.",
        signs=(runtime_error(r"the launch timed out and was terminated", 702),),
        smaller_batch_helps=True,
        fresh_process_helps=True,
    ),
    Rule(
        # cudaErrorContained.
        name="contained-error",
        outcome=Outcome.DEVICE_FAULT,
        cause="A hardware error hit this process only (Xid 94); the GPU goes on.",
        remedy="The chunk is tried again; if it returns, see `nvidia-smi -q -d ECC,ROW_REMAPPER` and reset the GPU.",
        signs=(Sign(classes=("builtins.RuntimeError",), codes=(226,)),),
        exit_code=MACHINE,
        fresh_process_helps=True,
    ),
    Rule(
        name="mps-terminated",
        outcome=Outcome.DEVICE_FAULT,
        cause="The MPS server ended this process, mostly because a neighbour on the same GPU crashed.",
        remedy="The chunk is tried again; run without MPS if neighbours crash often.",
        signs=(runtime_error(r"the MPS client has been terminated by the server", 810),),
        exit_code=PASSING,
        fresh_process_helps=True,
    ),
    Rule(
        # 721 and 911 are on the header's list too; torch's texts for them are not known.
        name="context-lost",
        outcome=Outcome.DEVICE_FAULT,
        cause="The CUDA context is broken by an error that CUDA calls fatal for the process.",
        remedy="The chunk is tried again in a new process; if it returns, report the error to the model's authors.",
        signs=(Sign(classes=("builtins.RuntimeError",), codes=(721, 911)),),
        fresh_process_helps=True,
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
        evidence=Evidence.REPORTED,
    ),
)
