"""The GPU ran out of memory, in all its spellings.

It never looks at who holds the memory: the supervisor's sensor does.

Before the first batch the same texts mean something else: the weights did not fit beside what others hold, and a
smaller batch cannot help; so each spelling has a phase.
"""

import re

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Phase
from chunkvisor_worker.contract.rule import (
    BEFORE_WORK,
    CONFIG,
    MACHINE,
    NULL_GPU_TORCH,
    PASSING,
    Evidence,
    Rule,
    error,
    of_class,
    runtime_error,
)

_ALLOCATOR = of_class("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError", "cupy.cuda.memory.OutOfMemoryError")
# Plain RuntimeErrors: old torch, the cudaMallocAsync backend, driver calls, and the libraries' handles.
_TEXT = runtime_error(
    r"CUDA out of memory|CUDA (?:driver )?error: out of memory|would exceed allowed memory\. \(out of memory\)"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    2,
)
# JAX and ONNX Runtime, for plug-in encoders.
_OTHER_FRAMEWORKS = error(r"RESOURCE_EXHAUSTED: |Failed to allocate memory for requested buffer of size")
_NVML_ALLOCATOR = runtime_error(
    r'NVML_SUCCESS == (?s:.{0,300})INTERNAL ASSERT FAILED at "[^"]{0,300}\bCUDACachingAllocator\.cpp"'
)
_NVML_PEER = runtime_error(
    r'NVML_SUCCESS == (?s:.{0,300})INTERNAL ASSERT FAILED at "[^"]{0,300}\bPeerToPeerAccess\.cpp"'
)
_NO_HANDLE = runtime_error(r"CUBLAS_STATUS_NOT_INITIALIZED")

GPU_MEMORY_RULES: tuple[Rule, ...] = (
    Rule(
        name="gpu-full-at-first-call",
        outcome=Outcome.GPU_BUSY,
        cause="The GPU had no room even for a CUDA context: other processes hold its memory.",
        remedy="See `nvidia-smi` for the processes on the GPU and end them, or choose another with `device:`.",
        signs=(runtime_error(r"Unexpected error from cudaGetDeviceCount(?s:.{0,300})Error 2: out of memory"),),
        exit_code=PASSING,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="absurd-allocation",
        outcome=Outcome.CRASHED,
        cause="The model asked for more than an exabyte: a size overflowed, which no batch size mends.",
        remedy="Report it to the model's authors; a row may be the cause, so the chunk is bisected.",
        signs=(runtime_error(r"Tried to allocate more than 1EB memory"),),
        row_can_cause=True,
    ),
    Rule(
        # torch 2.13 and later reach NVML from ExpandableSegment::map; the remedy that torch prints
        # (expandable_segments_handle_type:posix_fd) is refused by torch itself as an unknown key.
        name="nvml-assert-expandable-segments",
        outcome=Outcome.SETUP,
        cause="The allocator option expandable_segments needs NVML, and NVML is broken on this machine "
        "(driver updated under a running kernel module, container, MIG). It is not an out-of-memory.",
        remedy="Remove expandable_segments from PYTORCH_CUDA_ALLOC_CONF; or leave TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC "
        "at 0, as chunkvisor sets it, and update torch; a reboot mends NVML.",
        signs=(_NVML_PEER,),
        exit_code=CONFIG,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="nvml-assert-before-work",
        outcome=Outcome.GPU_BUSY,
        cause="The weights did not fit in the GPU's free memory, and torch failed to say so because NVML is broken.",
        remedy="Free the GPU (see `nvidia-smi`) or take a larger one; reboot or reload the driver to mend NVML.",
        signs=(_NVML_ALLOCATOR,),
        phases=BEFORE_WORK,
        exit_code=PASSING,
        exit_code_alone=MACHINE,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        # torch 2.1 to 2.13 ask NVML for the process list while composing the message (pytorch#99699);
        # 2.14 warns instead (pytorch#185946).
        name="nvml-assert-allocator",
        outcome=Outcome.GPU_OOM,
        cause="The GPU ran out of memory, and torch failed to say so because NVML is broken: the assertion is in the "
        "code that composes the out-of-memory message.",
        remedy="The run goes on with a smaller batch; reboot or reload the driver when you can, since `nvidia-smi` is "
        "probably broken too.",
        signs=(_NVML_ALLOCATOR,),
        smaller_batch_helps=True,
        row_can_cause=True,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="gpu-memory-cap",
        outcome=Outcome.GPU_OOM,
        cause="The process reached the share of GPU memory that it was given (per_process_memory_fraction).",
        remedy="Raise the share in PYTORCH_CUDA_ALLOC_CONF under `env:`; the run goes on with a smaller batch.",
        signs=(runtime_error(r"preemptively rejected|Preemptively rejecting allocation"),),
        smaller_batch_helps=True,
        row_can_cause=True,
    ),
    Rule(
        name="gpu-full-before-work",
        outcome=Outcome.GPU_BUSY,
        cause="The GPU had no room for the weights or the libraries before the first batch: other processes hold its "
        "memory, or the model is larger than the GPU.",
        remedy="See `nvidia-smi` for the processes on the GPU and end them; if there are none, use model.dtype "
        "float16 or bfloat16, a smaller model or a larger GPU.",
        signs=(_ALLOCATOR, _TEXT, _OTHER_FRAMEWORKS, _NO_HANDLE),
        phases=BEFORE_WORK,
        exit_code=PASSING,
        exit_code_alone=MACHINE,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="gpu-out-of-memory",
        outcome=Outcome.GPU_OOM,
        cause="The batch did not fit in the GPU's memory.",
        remedy="The run goes on with half the batch; smaller encode.batch_size and encode.batch_tokens save the failed "
        "tries. Where single long texts do not fit, model.dtype bfloat16 (or float16) takes half the memory or less.",
        signs=(_ALLOCATOR, _TEXT, _OTHER_FRAMEWORKS),
        log=re.compile(r"CUDA out of memory|CUDA error: out of memory"),
        smaller_batch_helps=True,
        row_can_cause=True,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="cublas-not-initialized",
        outcome=Outcome.GPU_OOM,
        cause="cuBLAS could not start: mostly because the GPU's memory is full, sometimes because of an earlier fault "
        "such as a token id that the model does not have.",
        remedy="The chunk is tried again, then with a smaller batch, then row by row.",
        signs=(_NO_HANDLE,),
        phases=(Phase.FORWARD, Phase.WRITE, Phase.DONE),
        smaller_batch_helps=True,
        fresh_process_helps=True,
        row_can_cause=True,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
)
