"""Tells whether this process is a clean one to fork workers from.

It never asks CUDA or NVML themselves: to ask them is to start them.
"""

import re
import sys
from pathlib import Path
from typing import Any

FORK_SAFE_THREADS = frozenset({"jemalloc_bg_thd"})
"""Threads that their own library mends after a fork. jemalloc, which pyarrow brings (and transformers imports pyarrow
where it is installed), takes its locks before a fork and begins without the thread in the child: pthread_atfork, and
background_thread_postfork_child in its background_thread.c."""

_GPU_FILE = re.compile(r"/dev/(?:nvidia|nvhost|nvmap|dxg|kfd)")
"""The driver's files: nvidia0, nvidiactl, nvidia-uvm; those of a Jetson; of WSL; and of AMD's driver."""


def find_gpu_use() -> str:
    """By what this process has begun to use a GPU, in words; empty where it has not.

    No CUDA context survives a fork (CUDA C++ Programming Guide, "CUDA initialization and fork"). That the driver's
    library is mapped says nothing: libcublasLt opens libcuda.so.1 as it is loaded, so that every `import torch` of a
    CUDA build maps it; PyTorch's own data loaders fork in that state. What is initialised, CUDA or NVML, by whatever
    framework, holds a file of the driver open.
    """
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:  # the descriptor of this listing itself
            continue
        if _GPU_FILE.search(target):
            return f"it has {target} open"
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda"):
        return ""
    if torch.cuda.is_initialized():
        return "torch has initialised CUDA"
    # In a forked process: torch marks every fork that comes after it has asked the driver for anything.
    if torch.cuda._is_in_bad_fork():
        return "torch had asked CUDA before the fork"
    return ""


def find_threads() -> list[str]:
    """Names of the threads beside this one that a fork leaves behind, with whatever locks they hold."""
    names = []
    for task in sorted(Path("/proc/self/task").iterdir(), key=lambda path: int(path.name))[1:]:
        try:
            names.append((task / "comm").read_text().strip() or "?")
        except OSError:  # it has just ended
            continue
    return [name for name in names if name not in FORK_SAFE_THREADS]


def find_taint() -> str:
    """Why no worker may be forked from this process, in words; empty where all is well."""
    if use := find_gpu_use():
        return f"loading the model, or importing the plug-in, has begun to use the GPU ({use})"
    if threads := find_threads():
        return f"loading the model, or importing the plug-in, has started threads ({', '.join(threads[:5])})"
    return ""
