"""Brings about a fault in a worker, for `chunkvisor drill` and `chunkvisor.testing`."""

import ctypes
import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, TypeAlias

import numpy as np

from chunkvisor_worker.batching import Indices
from chunkvisor_worker.contract.exits import TESTING_FAULTS
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Phase, ProvokedFault, Spec
from chunkvisor_worker.contract.wire import read_message
from chunkvisor_worker.liveness import BeatWriter

POISON_ROW = "poison-row"
_BLOCK_BYTES = 256 << 20
Strike: TypeAlias = Callable[[AttemptFiles], BaseException | None]


def simulated(
    name: str, message: str, base: type[Exception] = RuntimeError, **attributes: Any
) -> Any:
    """Make an exception of a class that has this qualified name, though its library is not here."""
    module, _, attribute = name.rpartition(".")
    return type(attribute, (base,), {"__module__": module, **attributes})(message)


def _accelerator_error(code: int, text: str) -> Any:
    return simulated("torch.AcceleratorError", f"CUDA error: {text}", error_code=code)


def _oom(_files: AttemptFiles) -> Any:
    torch = _torch_on_gpu()
    if torch:
        hoard = []
        while True:
            hoard.append(torch.empty(_BLOCK_BYTES, dtype=torch.uint8, device="cuda"))
    return simulated(
        "torch.OutOfMemoryError",
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB "
        "of which 1.31 GiB is free. Including non-PyTorch memory, this process has 77.93 GiB "
        "memory in use.",
    )


def _device_assert(_files: AttemptFiles) -> Any:
    torch = _torch_on_gpu()
    if torch:
        table = torch.zeros(4, 4, device="cuda")
        torch.nn.functional.embedding(torch.tensor([1 << 20], device="cuda"), table)
        torch.cuda.synchronize()  # raises
    return _accelerator_error(710, "device-side assert triggered")


def _segfault(_files: AttemptFiles) -> None:
    ctypes.string_at(0)


def _hang(_files: AttemptFiles) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(3600)


def _nan_row(files: AttemptFiles) -> None:
    with open(files.partial, "r+b") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        file.write(np.float32(np.nan).tobytes())


def _torch_on_gpu() -> Any:
    torch = sys.modules.get("torch")
    return torch if torch and torch.cuda.is_initialized() else None


# Each fault is an exception that is raised, or a function that brings the fault about or returns
# the exception.
SABOTAGES: dict[str, Strike | BaseException] = {
    "oom": _oom,
    "nvml-assert": RuntimeError(
        "NVML_SUCCESS == r INTERNAL ASSERT FAILED at "
        '"/pytorch/c10/cuda/CUDACachingAllocator.cpp":1165, please report '
        "a bug to PyTorch. "
    ),
    "device-assert": _device_assert,
    "illegal-access": _accelerator_error(700, "an illegal memory access was encountered"),
    "ecc": _accelerator_error(214, "uncorrectable ECC error encountered"),
    "cublas": RuntimeError(
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    ),
    "segfault": _segfault,
    "abort": lambda _: os.abort(),
    "sigkill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "sigterm": lambda _: os.kill(os.getpid(), signal.SIGTERM),
    "sigstop": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    "hang": _hang,
    "exit-0-without-result": lambda _: os._exit(0),
    "exit-1-after-result": lambda _: os._exit(1),
    "nan-row": _nan_row,
    "lost-vectors": lambda files: os.truncate(files.vectors, files.vectors.stat().st_size // 2),
    "host-oom": MemoryError(),
    "disk-full": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "hub-busy": simulated(
        "huggingface_hub.errors.HfHubHTTPError",
        "Client error '429 Too Many Requests' for url 'https://huggingface.co/api/models/drill'",
        OSError,
        response=SimpleNamespace(status_code=429),
    ),
    "gpu-busy": _accelerator_error(46, "CUDA-capable device(s) is/are busy or unavailable"),
    "import-failed": ModuleNotFoundError("No module named 'drill'", name="drill"),
    "bad-input": UnicodeEncodeError("utf-8", "half \ud83d", 5, 6, "surrogates not allowed"),
    POISON_ROW: _segfault,
}
# The phase in which a fault strikes; all others strike when a batch begins.
_MOMENTS = {
    "hub-busy": Phase.MODEL_LOAD,
    "gpu-busy": Phase.MODEL_LOAD,
    "import-failed": Phase.MODEL_LOAD,
    "nan-row": Phase.WRITE,
    "exit-1-after-result": Phase.DONE,
    "lost-vectors": Phase.DONE,
}


class Tripwire(BeatWriter):
    """Writes the beat of a worker, until the provoked fault strikes."""

    def __init__(self, files: AttemptFiles, spec: Spec, fault: ProvokedFault, folder: Path) -> None:
        super().__init__(files.beat)
        self._moment = _MOMENTS.get(fault.name, Phase.FORWARD)
        self._files = files
        self._spec = spec
        self._fault = fault
        self._folder = folder
        self._wanted = np.delete(np.arange(spec.start, spec.stop), list(spec.skip))

    def phase(self, phase: Phase) -> None:
        """Begin the phase; the fault may strike then."""
        loads = phase is Phase.IMPORT and self._moment is Phase.MODEL_LOAD
        super().phase(Phase.MODEL_LOAD if loads else phase)
        if loads or phase is Phase.WRITE:
            self._reach(self.beat.phase)

    def batch(self, indices: Indices, tokens: int, rows: int = 0) -> None:
        """Begin the batch; the fault may strike then."""
        super().batch(indices, tokens, rows)
        # Not with a canary of another chunk.
        if isinstance(self.positions, np.ndarray):
            self._reach(Phase.FORWARD, self._wanted[self.positions[indices]].tolist())

    def ended(self) -> None:
        """End the attempt; the fault may strike then."""
        self._reach(Phase.DONE)

    def _reach(self, moment: Phase, texts: list[int] | None = None) -> None:
        if self._moment is not moment or not self._is_due(texts or []):
            return
        with suppress(OSError, ValueError):  # the log may be full or closed
            sys.stdout.write(
                f"chunkvisor.testing: the fault {self._fault.name} strikes here, as a test asked\n"
            )
            sys.stdout.flush()
        sabotage = SABOTAGES[self._fault.name]
        error = sabotage if isinstance(sabotage, BaseException) else sabotage(self._files)
        if error:
            sys.stdout.write("chunkvisor drill: simulated\n")
            raise error

    def _is_due(self, texts: list[int]) -> bool:
        """Say whether it strikes now.

        For each time that it may strike there is a file, and the worker that makes it is struck.
        """
        claims = [self._folder / f"struck-{number}" for number in range(self._fault.times)]
        if self._fault.name != POISON_ROW:
            return any(_made(claim) for claim in claims)
        # The poison is the first text of the first attempt that gets here, which notes its number.
        with suppress(OSError):
            _made(claims[0], str(self._spec.start))
            return int(claims[0].read_text()) in texts
        return False


def tripwire_for(files: AttemptFiles, spec: Spec) -> Tripwire | None:
    """Return the beat of an attempt with a fault to provoke, the first of several; else None."""
    for folder in map(Path, filter(None, os.environ.get(TESTING_FAULTS, "").split(os.pathsep))):
        fault = read_message(ProvokedFault, AttemptFiles(folder).fault)
        if not fault or fault.name not in SABOTAGES:  # the test that asked for it has ended
            continue
        here = fault.chunk == spec.chunk and fault.output in (None, spec.output)
        if here and (
            fault.name == POISON_ROW or not (folder / f"struck-{fault.times - 1}").exists()
        ):
            return Tripwire(files, spec, fault, folder)
    return None


def _made(path: Path, text: str = "") -> bool:
    """Make the file, and say whether this process did it."""
    try:
        with open(path, "x") as file:
            file.write(text)
    except OSError:  # it exists, or the test has ended
        return False
    return True
