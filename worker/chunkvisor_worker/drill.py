"""Faults on purpose: the beat of a worker that a drill or an integration test (`chunkvisor.testing`) wants to fail.

A fault strikes its process and attempt folder only; `oom` fills the GPU until the worker ends.
"""

import contextlib
import ctypes
import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, TypeAlias

import numpy as np

from chunkvisor_worker.batching import Indices
from chunkvisor_worker.contract.exits import TESTING_FAULTS
from chunkvisor_worker.contract.files import AttemptFiles, ProvokedFiles
from chunkvisor_worker.contract.messages import Phase, ProvokedFault, Spec
from chunkvisor_worker.contract.wire import read_message
from chunkvisor_worker.progress import BeatWriter

_BLOCK_BYTES = 256 << 20
_SIMULATED = "chunkvisor drill: simulated\n"
"""In the log of a fault that could have been a real one, and was not."""


class Moment(Enum):
    """When a fault strikes."""

    LOAD = "load"
    """Instead of loading the model."""
    BATCH = "batch"
    """In the first batch, where the forward pass would be."""
    WRITE = "write"
    """When the vectors of the chunk are about to be written."""
    AFTER = "after"
    """When all is done, on the way out."""


Strike: TypeAlias = Callable[[AttemptFiles], BaseException | None]
"""Brings the fault about, or returns the exception that it is."""


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


def _accelerator_error(code: int, text: str) -> Exception:
    """torch.AcceleratorError with the advice that torch appends to the text of a cudaError_t."""
    message = (
        f"CUDA error: {text}\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
        "stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )
    return simulated("torch.AcceleratorError", message, code=code)


def _oom(files: AttemptFiles) -> Exception:
    if torch := _torch_on_gpu(files):
        hoard = []
        while True:
            hoard.append(torch.empty(_BLOCK_BYTES, dtype=torch.uint8, device="cuda"))
    sys.stdout.write(_SIMULATED)
    return simulated(
        "torch.OutOfMemoryError",
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.31 GiB is "
        "free. Including non-PyTorch memory, this process has 77.93 GiB memory in use. Of the allocated memory "
        "76.58 GiB is allocated by PyTorch, and 871.48 MiB is reserved by PyTorch but unallocated.",
    )


def _device_assert(files: AttemptFiles) -> Exception:
    if torch := _torch_on_gpu(files):
        table = torch.zeros(4, 4, device="cuda")
        torch.nn.functional.embedding(torch.tensor([1 << 20], device="cuda"), table)
        torch.cuda.synchronize()
        return AssertionError("an index far out of range went unnoticed")
    sys.stdout.write(_SIMULATED)
    return _accelerator_error(710, "device-side assert triggered")


def _nvml_assert(_files: AttemptFiles) -> Exception:
    return RuntimeError(
        'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":1165, please report '
        "a bug to PyTorch. "
    )


def _hub_busy(_files: AttemptFiles) -> Exception:
    message = "Client error '429 Too Many Requests' for url 'https://huggingface.co/api/models/drill'"
    return simulated("huggingface_hub.errors.HfHubHTTPError", message, OSError, status=429)


def _segfault(_files: AttemptFiles) -> None:
    ctypes.string_at(0)


def _hang(_files: AttemptFiles) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(3600)


def _kill(number: signal.Signals) -> Callable[[AttemptFiles], None]:
    return lambda _files: os.kill(os.getpid(), number)


def _nan_row(files: AttemptFiles) -> None:
    with open(files.partial, "r+b") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        file.write(np.float32(np.nan).tobytes())


def _lost_vectors(files: AttemptFiles) -> None:
    os.truncate(files.vectors, files.vectors.stat().st_size // 2)


def _disk_full(_files: AttemptFiles) -> None:
    def no_space(_fd: int, _offset: int, _length: int) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    os.posix_fallocate = no_space


def _torch_on_gpu(files: AttemptFiles) -> Any:
    """Return torch if the worker computes on a GPU, or None."""
    spec = read_message(Spec, files.spec)
    if spec is None or spec.device != "cuda":
        return None
    try:
        import torch
    except ImportError:  # a plug-in of another framework
        return None
    return torch


SABOTAGES: dict[str, Strike] = {
    "oom": _oom,
    "nvml-assert": _nvml_assert,
    "device-assert": _device_assert,
    "illegal-access": lambda _: _accelerator_error(700, "an illegal memory access was encountered"),
    "ecc": lambda _: _accelerator_error(214, "uncorrectable ECC error encountered"),
    "cublas": lambda _: RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "segfault": _segfault,
    "abort": lambda _: os.abort(),
    "sigkill": _kill(signal.SIGKILL),
    "sigterm": _kill(signal.SIGTERM),
    "sigstop": _kill(signal.SIGSTOP),
    "hang": _hang,
    "exit-0-without-result": lambda _: os._exit(0),
    "exit-1-after-result": lambda _: os._exit(1),
    "nan-row": _nan_row,
    "lost-vectors": _lost_vectors,
    "host-oom": lambda _: MemoryError(),
    "disk-full": _disk_full,
    "hub-busy": _hub_busy,
    "gpu-busy": lambda _: _accelerator_error(46, "CUDA-capable device(s) is/are busy or unavailable"),
    "import-failed": lambda _: ModuleNotFoundError("No module named 'drill'", name="drill"),
    "bad-input": lambda _: UnicodeEncodeError("utf-8", "half \ud83d", 5, 6, "surrogates not allowed"),
    "poison-row": _segfault,
}
_MOMENTS = {
    **dict.fromkeys(("hub-busy", "gpu-busy", "import-failed"), Moment.LOAD),
    "nan-row": Moment.WRITE,
    **dict.fromkeys(("exit-1-after-result", "lost-vectors"), Moment.AFTER),
}
"""Of faults that do not strike in a batch."""


POISON_ROW = "poison-row"


class Tripwire(BeatWriter):
    """The beat of a worker, with a fault in its way that a test has asked for; it strikes at its moment."""

    def __init__(self, files: AttemptFiles, spec: Spec, fault: ProvokedFault, asked: ProvokedFiles) -> None:
        super().__init__(files.beat)
        self._strike, self._moment = SABOTAGES[fault.name], _MOMENTS.get(fault.name, Moment.BATCH)
        self._files, self._spec, self._fault, self._asked = files, spec, fault, asked
        self._wanted = np.delete(np.arange(spec.start, spec.stop), list(spec.skip))
        self._texts: frozenset[int] = frozenset()
        """Of the batch under way."""

    def phase(self, phase: Phase) -> None:
        """As `BeatWriter.phase`; then the fault."""
        loads = phase is Phase.IMPORT and self._moment is Moment.LOAD
        super().phase(Phase.MODEL_LOAD if loads else phase)
        if loads or phase is Phase.WRITE:
            self._reach(Moment.LOAD if loads else Moment.WRITE)

    def batch(self, indices: Indices, tokens: int, rows: int = 0) -> None:
        """As `BeatWriter.batch`; then the fault."""
        super().batch(indices, tokens, rows)
        if not len(self.positions):
            return  # a canary of another chunk: what is provoked is about the texts of this one
        self._texts = frozenset(self._wanted[self.positions[indices]].tolist())
        self._reach(Moment.BATCH)

    def ended(self) -> None:
        """The fault."""
        self._reach(Moment.AFTER)

    def _reach(self, moment: Moment) -> None:
        if self._moment is not moment or not self._is_due():
            return
        with contextlib.suppress(OSError, ValueError):  # a full or closed log is no reason to spare the worker
            sys.stdout.write(f"chunkvisor.testing: the fault {self._fault.name} strikes here, as a test asked\n")
            sys.stdout.flush()
        self.provoked = True
        if error := self._strike(self._files):
            raise error

    def _is_due(self) -> bool:
        """Whether it is to strike now; each time it may, one worker makes the claim."""
        if self._fault.name != POISON_ROW:
            return any(_made(self._asked.claim(number)) for number in range(self._fault.times))
        # The poison is the first text of the chunk; its number is laid down by the first attempt that gets there.
        place = self._asked.claim(0)
        with contextlib.suppress(OSError):
            _made(place, str(self._spec.start))
            return int(place.read_text()) in self._texts
        return False


def provoked(files: AttemptFiles, spec: Spec) -> Tripwire | None:
    """Return the beat of an attempt that a test wants to meet a fault; None for any other.

    Of several faults the one that was asked for first strikes; the others wait for the next attempt.
    """
    for folder in filter(None, os.environ.get(TESTING_FAULTS, "").split(os.pathsep)):
        asked = ProvokedFiles(Path(folder))
        fault = read_message(ProvokedFault, asked.fault)
        if fault is None or fault.name not in SABOTAGES:  # its test is over
            continue
        here = fault.chunk == spec.chunk and fault.output in (None, spec.output)
        if here and (fault.name == POISON_ROW or not asked.claim(fault.times - 1).exists()):
            return Tripwire(files, spec, fault, asked)
    return None


def _made(path: Path, text: str = "") -> bool:
    """Whether it was us who made the file."""
    try:
        with open(path, "x") as file:
            file.write(text)
    except OSError:  # it exists, or the test is over
        return False
    return True
