"""The environment of a worker process."""

from collections.abc import Mapping

from chunkvisor.devices.gpu import CPU, Device
from chunkvisor_worker.contract.exits import PARENT_PID, RUN_ID

_FIXED = {
    # The stack of a native crash, and of a hang ended by SIGABRT, goes to the worker's log.
    "PYTHONFAULTHANDLER": "1",
    # The last lines before a kill are in the log, too.
    "PYTHONUNBUFFERED": "1",
    # The model was resolved before the first worker: none of them waits for, or is limited by, the hub.
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # CUDA's own order is fastest first; in this one, its indices are nvidia-smi's.
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    # With expandable segments, torch asks NVML for fabric handles and asserts if NVML is broken; nothing here
    # shares memory between processes, which is all that it is needed for.
    "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC": "0",
}

_DEFAULTS = {
    # An idle thread of numpy's OpenBLAS spins for 2^28 clock cycles before it sleeps (THREAD_TIMEOUT in OpenBLAS's
    # Makefile.rule): 45 ms of CPU time in every forked worker, taken from the workers next to it. 2^18 are 0.1 ms.
    "OPENBLAS_THREAD_TIMEOUT": "18",
}

_CPU_DEFAULTS = {
    # Threads that spin at every barrier starve the worker next to them: on 2 cores that others use as well, a batch
    # takes more than twice as long as with threads that sleep (docs/explanation/performance.md).
    "OMP_WAIT_POLICY": "PASSIVE",
}

_THREADS_NEXT_TO_GPU = 8

# A process that has them speaks to the service manager in the name of the parent (sd_notify(3)): not for a child.
SERVICE_MANAGERS = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})

_REMOVED = SERVICE_MANAGERS | {
    # Makes every allocation a cudaMalloc: a forgotten debugging aid that costs a night.
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    # Masks HF_HUB_OFFLINE when it is 0 (huggingface_hub reads both as one).
    "TRANSFORMERS_OFFLINE",
    # Set by terminals and schedulers for the parent; a worker has no terminal.
    "PYTHONINSPECT",
    "PYTHONSTARTUP",
}

# For the template process from which workers are forked, over the workers' environment.
OF_TEMPLATE = {
    # A pool of threads does not survive a fork, so there must be none.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # transformers 5 loads weights in threads.
    "HF_DEACTIVATE_ASYNC_LOAD": "1",
    # With this check and no visible device, torch.cuda.is_available() says no without starting CUDA or NVML
    # (torch/cuda/__init__.py, _device_count_nvml); without it, it calls cuInit, and forks are poisoned.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


def thread_count(wanted: str | None, device_kind: str, cores: int) -> int:
    """Choose the threads of a worker: what OMP_NUM_THREADS (`wanted`) says, else the usable cores, for a GPU a few.

    It is laid down, not left to the libraries, so that a forked worker adds up in the same order as a fresh one.
    """
    first = (wanted or "").partition(",")[0].strip()  # one number for each level of nesting (OpenMP 5.2, 21.2.3)
    if first.isascii() and first.isdigit() and int(first):
        return int(first)
    return max(1, cores if device_kind == "cpu" else min(cores, _THREADS_NEXT_TO_GPU))


def worker_environment(
    base: Mapping[str, str],
    device: Device,
    run_id: str,
    parent_pid: int,
    extra: Mapping[str, str],
    *,
    threads: int,
    blocking_launches: bool = False,
) -> dict[str, str]:
    """Make the environment of a worker on `device`: the parent's, what we need, and the config's `env` over both.

    The worker sees one GPU, by its UUID: indices are not consistent between reboots (nvidia-smi's manual).
    """
    on_cpu = device == CPU
    kept = {name: value for name, value in base.items() if name not in _REMOVED}
    environment = _DEFAULTS | (_CPU_DEFAULTS if on_cpu else {}) | kept | _FIXED
    environment |= {"OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": "" if on_cpu else device.uuid}
    environment |= {**extra, RUN_ID: run_id, PARENT_PID: str(parent_pid)}
    if blocking_launches:
        environment["CUDA_LAUNCH_BLOCKING"] = "1"
    return environment
