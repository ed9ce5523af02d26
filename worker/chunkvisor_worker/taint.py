"""Finds out whether this process is a clean one to fork workers from.

CUDA and NVML themselves are not asked: to ask them is to start them.
"""

import importlib.abc
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

# Threads that their own library mends after a fork. jemalloc, which pyarrow brings (and transformers imports pyarrow if
# it is installed), takes its locks before a fork and begins without the thread in the child: pthread_atfork, and
# background_thread_postfork_child in its background_thread.c.
FORK_SAFE_THREADS = frozenset({"jemalloc_bg_thd"})

# The driver's files: nvidia0, nvidiactl, nvidia-uvm; those of a Jetson; of WSL; and of AMD's driver.
_GPU_FILE = re.compile(r"/dev/(?:nvidia|nvhost|nvmap|dxg|kfd)")

# Functions of torch.cuda. All others that tell of a GPU start CUDA, and fail without one.
_QUESTIONS = ("is_available", "device_count")

# They ask in their own interest, in a forked worker once more (see `forked`).
_LIBRARIES = frozenset(
    {"torch", "transformers", "sentence_transformers", "accelerate", "huggingface_hub", "functools", "contextlib"}
)


def find_gpu_use() -> str:
    """Say in words by what this process has begun to use a GPU; empty if it has not.

    No CUDA context survives a fork (CUDA C++ Programming Guide, "CUDA initialization and fork"). That the driver's
    library is mapped says nothing: libcublasLt opens libcuda.so.1 as it is loaded, so that every `import torch` of a
    CUDA build maps it; PyTorch's own data loaders fork in that state. What is initialized, CUDA or NVML, by whatever
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
        return "torch has initialized CUDA"
    # In a forked process: torch marks every fork that comes after it has asked the driver for anything.
    return "torch had asked CUDA before the fork" if torch.cuda._is_in_bad_fork() else ""


def find_taint() -> str:
    """Say in words why no worker may be forked from this process; empty if all is well."""
    if use := find_gpu_use():
        return f"loading the model, or importing the plug-in, has begun to use the GPU ({use})"
    # A fork leaves other threads behind, with whatever locks they hold.
    threads, own = list[str](), Path("/proc/thread-self").readlink().name
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text().strip() or "?"
        except OSError:  # it has just ended
            continue
        if task.name != own and name not in FORK_SAFE_THREADS:
            threads.append(name)
    if threads:
        return f"loading the model, or importing the plug-in, has started threads ({', '.join(threads[:5])})"
    return ""


class GpuQuestions(importlib.abc.MetaPathFinder):
    """A context that notes when code of a model or a plug-in asks for a GPU; the answer is not changed.

    A template shows it none. Code that builds on that answer would build something else in a forked worker than in a
    fresh one: `DEVICE = "cuda" if torch.cuda.is_available() else "cpu"` in a plug-in's module computes on the CPU, say.
    """

    def __init__(self) -> None:
        self.asked = ""  # who asked first, and what; empty = nothing did
        self._replaced: dict[str, Callable[..., Any]] = {}

    def __enter__(self) -> "GpuQuestions":
        sys.meta_path.insert(0, self)
        self.find_spec("")
        return self

    def __exit__(self, *error: object) -> None:
        sys.meta_path.remove(self)
        for name, original in self._replaced.items():
            setattr(sys.modules["torch.cuda"], name, original)
        self.asked = self.asked or next(filter(None, map(_cached_question, list(sys.modules.items()))), "")

    def find_spec(self, _fullname: str, _path: Any = None, _target: Any = None) -> None:
        """Find nothing; but listen to torch.cuda once it is there: torch imports much after it, which comes by here."""
        cuda: Any = sys.modules.get("torch.cuda")
        if not self._replaced and all(hasattr(cuda, name) for name in _QUESTIONS):
            for name in _QUESTIONS:
                self._replaced[name] = getattr(cuda, name)
                setattr(cuda, name, self._listening(name))

    def _listening(self, name: str) -> Callable[..., Any]:
        original = self._replaced[name]

        def ask(*args: Any, **kwargs: Any) -> Any:
            if not self.asked and (asker := _asker(sys._getframe(1))):
                self.asked = f"{asker} asks torch.cuda.{name}()"
            return original(*args, **kwargs)

        return ask


def _asker(frame: FrameType | None) -> str:
    """Name module and line of the code that asks; empty if a library does, or is being imported itself."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        top = module.partition(".")[0]
        if top in ("importlib", "_frozen_importlib") or frame.f_code.co_filename.startswith("<frozen importlib"):
            return ""
        if top not in _LIBRARIES and top != __name__.partition(".")[0]:
            return f"{module}, line {frame.f_lineno},"
        frame = frame.f_back
    return ""


def _cached_question(item: tuple[str, Any]) -> str:
    """Find a function of transformers that keeps its answer, so that a later question never gets to torch."""
    name, module = item
    for value in list(vars(module).values()) if name.startswith("transformers_modules.") else ():
        function = getattr(value, "__name__", "")
        of_transformers = getattr(value, "__module__", "") == "transformers.utils.import_utils"
        if of_transformers and ("flash_attn" in function or "cuda" in function):
            return f"{name} can ask transformers' {function}()"
    return ""
