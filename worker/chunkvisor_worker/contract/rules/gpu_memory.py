"""The GPU ran out of memory, in all its spellings. Who holds the memory is the supervisor's to find out.

Before the first batch the same texts mean something else: the weights did not fit beside what others hold, and a
smaller batch cannot help; so each spelling has a phase.
"""

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rule import (
    AT_WORK,
    BEFORE_WORK,
    CONFIG,
    MACHINE,
    NEW_PROCESS,
    ROW,
    SMALLER_BATCH,
    Evidence,
    Rule,
    error,
    gpu_busy,
    gpu_oom,
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
    gpu_busy(
        "gpu-full-at-first-call",
        "The GPU had no room even for a CUDA context: other processes hold its memory.",
        "See `nvidia-smi` for the processes on the GPU and end them, or choose another with `device:`.",
        runtime_error(r"Unexpected error from cudaGetDeviceCount(?s:.{0,300})Error 2: out of memory"),
    ),
    gpu_oom(
        "absurd-allocation",
        "The model asked for more than an exabyte: a size overflowed, which no batch size cures.",
        "Report it to the model's authors; a row may be the cause, so the chunk is bisected.",
        runtime_error(r"Tried to allocate more than 1EB memory"),
        outcome=Outcome.CRASHED,
        hints=ROW,
        evidence=Evidence.READ,
    ),
    gpu_busy(
        # torch 2.13 and later reach NVML from ExpandableSegment::map; the remedy that torch prints
        # (expandable_segments_handle_type:posix_fd) is refused by torch itself as an unknown key.
        "nvml-assert-expandable-segments",
        "The allocator option expandable_segments needs NVML, and NVML is broken on this machine "
        "(driver updated under a running kernel module, container, MIG). It is not an out-of-memory.",
        "Remove expandable_segments from PYTORCH_CUDA_ALLOC_CONF; or leave TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC "
        "at 0, as chunkvisor sets it, and update torch; a reboot repairs NVML.",
        _NVML_PEER,
        outcome=Outcome.SETUP,
        exit_code=CONFIG,
        evidence=Evidence.NULL_GPU,
    ),
    gpu_busy(
        "nvml-assert-before-work",
        "The weights did not fit in the GPU's free memory, and torch failed to say so because NVML is broken.",
        "Free the GPU (see `nvidia-smi`) or take a larger one; reboot or reload the driver to repair NVML.",
        _NVML_ALLOCATOR,
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
        _NVML_ALLOCATOR,
        if_ended="Run `nvidia-smi`. If it fails, reload the NVIDIA driver or reboot. If it works, see who holds the "
        "GPU's memory; else use a GPU with more of it, or a smaller model.max_length.",
    ),
    gpu_oom(
        "gpu-memory-cap",
        "The process reached the share of GPU memory that it was given (per_process_memory_fraction).",
        "Raise the share in PYTORCH_CUDA_ALLOC_CONF under `env:`; the run goes on with a smaller batch.",
        runtime_error(r"preemptively rejected|Preemptively rejecting allocation"),
        evidence=Evidence.READ,
    ),
    gpu_busy(
        "gpu-full-before-work",
        "The GPU had no room for the weights or the libraries before the first batch: other processes hold its "
        "memory, or the model is larger than the GPU.",
        "See `nvidia-smi` for the processes on the GPU and end them; if there are none, use a smaller model or a "
        "larger GPU; `chunkvisor doctor CONFIG` says which model.dtype suits the card.",
        _ALLOCATOR,
        _TEXT,
        _OTHER_FRAMEWORKS,
        _NO_HANDLE,
        phases=BEFORE_WORK,
        exit_code_alone=MACHINE,
        evidence=Evidence.NULL_GPU,
    ),
    gpu_oom(
        "gpu-out-of-memory",
        "The batch did not fit in the GPU's memory.",
        "The run goes on with half the batch; smaller encode.batch_size and encode.batch_tokens save the failed "
        "tries. If single long texts do not fit, `chunkvisor doctor CONFIG` says which model.dtype takes less memory.",
        _ALLOCATOR,
        _TEXT,
        _OTHER_FRAMEWORKS,
        log=r"CUDA out of memory|CUDA error: out of memory",
        evidence=Evidence.CARD,
    ),
    gpu_oom(
        "cublas-not-initialized",
        "cuBLAS could not start: mostly because the GPU's memory is full, sometimes because of an earlier fault "
        "such as a token id that the model does not have.",
        "The chunk is tried again, then with a smaller batch, then row by row.",
        _NO_HANDLE,
        phases=AT_WORK,
        hints=SMALLER_BATCH | NEW_PROCESS | ROW,
        evidence=Evidence.STUB,
    ),
)
