"""The faults of a fire drill, each as a function that brings it about in this very process.

It never decides when to strike: `drill` does. A fault that this machine cannot have (a CUDA fault without a GPU) is
raised as torch 2.13 would raise it: same class, same error code, same text.
"""

import ctypes
import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.encoder import Vectors

_BLOCK_BYTES = 256 << 20


class Moment(Enum):
    """When a fault strikes."""

    LOAD = "load"
    """Instead of loading the model."""
    BATCH = "batch"
    """In the first batch, where the forward pass would be."""
    VECTORS = "vectors"
    """When the vectors of the first batch are there: they are spoiled."""
    WRITE = "write"
    """When the vectors of the chunk are about to be written."""
    AFTER = "after"
    """When all is done, on the way out."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a fault needs to know."""

    files: AttemptFiles
    number: int = 0
    """The bytes to fill at most."""
    cuda: bool = False
    """Whether the worker computes on a GPU."""


@dataclass(frozen=True, slots=True)
class Sabotage:
    """A fault and its moment."""

    moment: Moment
    strike: Callable[[Scene], None]
    """Brings the fault about; most never return."""


def simulated(
    name: str, message: str, base: type[Exception] = RuntimeError, *, code: int | None = None, status: int | None = None
) -> Exception:
    """An exception whose class has the qualified name `name`, with torch's error code or an HTTP status.

    It is the very class where torch is loaded.
    """
    module, _, attribute = name.rpartition(".")
    known = sys.modules.get(module) if module in ("builtins", "torch") else None
    kind: type[Exception] | None = getattr(known, attribute, None)
    error: Any = (kind or type(attribute, (base,), {"__module__": module}))(message)
    if code is not None:
        error.error_code = code
    if status is not None:
        error.response = SimpleNamespace(status_code=status)
    assert isinstance(error, Exception)
    return error


def spoiled(vectors: Vectors) -> Vectors:
    """The vectors with NaN throughout the first row."""
    copy = vectors.copy()
    copy[0] = np.nan
    return copy


def _oom(scene: Scene) -> NoReturn:
    if scene.cuda and (torch := _torch()):
        hoard = []
        while True:
            hoard.append(torch.empty(_BLOCK_BYTES, dtype=torch.uint8, device="cuda"))
    _tell_simulated()
    raise simulated(
        "torch.OutOfMemoryError",
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.31 GiB is "
        "free. Including non-PyTorch memory, this process has 77.93 GiB memory in use. Of the allocated memory "
        "76.58 GiB is allocated by PyTorch, and 871.48 MiB is reserved by PyTorch but unallocated.",
    )


def _device_assert(scene: Scene) -> NoReturn:
    if scene.cuda and (torch := _torch()):
        table = torch.zeros(4, 4, device="cuda")
        torch.nn.functional.embedding(torch.tensor([1 << 20], device="cuda"), table)
        torch.cuda.synchronize()
        raise AssertionError("an index far out of range went unnoticed")
    _tell_simulated()
    raise simulated("torch.AcceleratorError", _cuda_error("device-side assert triggered"), code=710)


def _illegal_access(_scene: Scene) -> NoReturn:
    raise simulated("torch.AcceleratorError", _cuda_error("an illegal memory access was encountered"), code=700)


def _ecc(_scene: Scene) -> NoReturn:
    raise simulated("torch.AcceleratorError", _cuda_error("uncorrectable ECC error encountered"), code=214)


def _nvml_assert(_scene: Scene) -> NoReturn:
    raise RuntimeError(
        'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":1165, please report '
        "a bug to PyTorch. "
    )


def _cublas(_scene: Scene) -> NoReturn:
    raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


def _host_oom(_scene: Scene) -> NoReturn:
    raise MemoryError


def _hub_busy(_scene: Scene) -> NoReturn:
    message = "Client error '429 Too Many Requests' for url 'https://huggingface.co/api/models/drill'"
    raise simulated("huggingface_hub.errors.HfHubHTTPError", message, OSError, status=429)


def _gpu_busy(_scene: Scene) -> NoReturn:
    text = _cuda_error("CUDA-capable device(s) is/are busy or unavailable")
    raise simulated("torch.AcceleratorError", text, code=46)


def _import_failed(_scene: Scene) -> NoReturn:
    raise ModuleNotFoundError("No module named 'drill'", name="drill")


def _bad_input(_scene: Scene) -> NoReturn:
    raise UnicodeEncodeError("utf-8", "half \ud83d", 5, 6, "surrogates not allowed")


def _host_limit(scene: Scene) -> NoReturn:
    hoard = []
    for _ in range(scene.number // _BLOCK_BYTES + 1):
        hoard.append(b"\1" * _BLOCK_BYTES)  # not zeros: only a page that is written to takes memory
    raise AssertionError(f"{scene.number} bytes were filled, and the kernel did not kill")


def _segfault(_scene: Scene) -> None:
    ctypes.string_at(0)


def _abort(_scene: Scene) -> None:
    os.abort()


def _hang(_scene: Scene) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(3600)


def _exit(code: int) -> Callable[[Scene], None]:
    return lambda _scene: os._exit(code)


def _kill(number: signal.Signals) -> Callable[[Scene], None]:
    return lambda _scene: os.kill(os.getpid(), number)


def _lost_vectors(scene: Scene) -> None:
    os.truncate(scene.files.vectors, scene.files.vectors.stat().st_size // 2)


def _disk_full(_scene: Scene) -> None:
    def no_space(_fd: int, _offset: int, _length: int) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    os.posix_fallocate = no_space


def _nothing(_scene: Scene) -> None:
    """The vectors are spoiled instead."""


def _cuda_error(text: str) -> str:
    return (
        f"CUDA error: {text}\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
        "stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )


def _torch() -> Any:
    try:
        import torch
    except ImportError:  # a plug-in of another framework
        return None
    return torch


def _tell_simulated() -> None:
    """For the drill's table: this fault could have been a real one, and was not."""
    sys.stdout.write("chunkvisor drill: simulated\n")


SABOTAGES: dict[str, Sabotage] = {
    "oom": Sabotage(Moment.BATCH, _oom),
    "nvml-assert": Sabotage(Moment.BATCH, _nvml_assert),
    "device-assert": Sabotage(Moment.BATCH, _device_assert),
    "illegal-access": Sabotage(Moment.BATCH, _illegal_access),
    "ecc": Sabotage(Moment.BATCH, _ecc),
    "cublas": Sabotage(Moment.BATCH, _cublas),
    "segfault": Sabotage(Moment.BATCH, _segfault),
    "abort": Sabotage(Moment.BATCH, _abort),
    "sigkill": Sabotage(Moment.BATCH, _kill(signal.SIGKILL)),
    "sigterm": Sabotage(Moment.BATCH, _kill(signal.SIGTERM)),
    "sigstop": Sabotage(Moment.BATCH, _kill(signal.SIGSTOP)),
    "hang": Sabotage(Moment.BATCH, _hang),
    "exit-0-without-result": Sabotage(Moment.BATCH, _exit(0)),
    "exit-1-after-result": Sabotage(Moment.AFTER, _exit(1)),
    "nan-row": Sabotage(Moment.VECTORS, _nothing),
    "lost-vectors": Sabotage(Moment.AFTER, _lost_vectors),
    "host-oom": Sabotage(Moment.BATCH, _host_oom),
    "host-limit": Sabotage(Moment.BATCH, _host_limit),
    "disk-full": Sabotage(Moment.WRITE, _disk_full),
    "hub-busy": Sabotage(Moment.LOAD, _hub_busy),
    "gpu-busy": Sabotage(Moment.LOAD, _gpu_busy),
    "import-failed": Sabotage(Moment.LOAD, _import_failed),
    "bad-input": Sabotage(Moment.BATCH, _bad_input),
    "poison-row": Sabotage(Moment.BATCH, _segfault),
}
"""By the name of the fault."""
