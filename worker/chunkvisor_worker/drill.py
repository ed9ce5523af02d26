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
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, TypeAlias

import numpy as np

from chunkvisor_worker.contract.exits import TESTING_FAULTS
from chunkvisor_worker.contract.files import AttemptFiles, ProvokedFiles
from chunkvisor_worker.contract.messages import Phase, ProvokedFault, Spec
from chunkvisor_worker.contract.wire import read_message
from chunkvisor_worker.encoder import Indices
from chunkvisor_worker.progress import BeatWriter

_BLOCK_BYTES = 256 << 20


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


@dataclass(frozen=True, slots=True)
class Scene:
    """What a fault needs to know."""

    files: AttemptFiles

    @property
    def cuda(self) -> bool:
        """Whether the worker computes on a GPU."""
        spec = read_message(Spec, self.files.spec)
        return spec is not None and spec.device == "cuda"


@dataclass(frozen=True, slots=True)
class Sabotage:
    """A fault and its moment."""

    strike: Callable[[Scene], BaseException | None]
    """Brings the fault about, or returns the exception that it is."""
    moment: Moment = Moment.BATCH


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


def _oom(scene: Scene) -> Exception:
    if scene.cuda and (torch := _torch()):
        hoard = []
        while True:
            hoard.append(torch.empty(_BLOCK_BYTES, dtype=torch.uint8, device="cuda"))
    _tell_simulated()
    return simulated(
        "torch.OutOfMemoryError",
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.31 GiB is "
        "free. Including non-PyTorch memory, this process has 77.93 GiB memory in use. Of the allocated memory "
        "76.58 GiB is allocated by PyTorch, and 871.48 MiB is reserved by PyTorch but unallocated.",
    )


def _device_assert(scene: Scene) -> Exception:
    if scene.cuda and (torch := _torch()):
        table = torch.zeros(4, 4, device="cuda")
        torch.nn.functional.embedding(torch.tensor([1 << 20], device="cuda"), table)
        torch.cuda.synchronize()
        return AssertionError("an index far out of range went unnoticed")
    _tell_simulated()
    return _accelerator_error(710, "device-side assert triggered")


def _nvml_assert(_scene: Scene) -> Exception:
    return RuntimeError(
        'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":1165, please report '
        "a bug to PyTorch. "
    )


def _hub_busy(_scene: Scene) -> Exception:
    message = "Client error '429 Too Many Requests' for url 'https://huggingface.co/api/models/drill'"
    return simulated("huggingface_hub.errors.HfHubHTTPError", message, OSError, status=429)


def _segfault(_scene: Scene) -> None:
    ctypes.string_at(0)


def _hang(_scene: Scene) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(3600)


def _kill(number: signal.Signals) -> Callable[[Scene], None]:
    return lambda _scene: os.kill(os.getpid(), number)


def _nan_row(scene: Scene) -> None:
    with open(scene.files.partial, "r+b") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        file.write(np.float32(np.nan).tobytes())


def _lost_vectors(scene: Scene) -> None:
    os.truncate(scene.files.vectors, scene.files.vectors.stat().st_size // 2)


def _disk_full(_scene: Scene) -> None:
    def no_space(_fd: int, _offset: int, _length: int) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    os.posix_fallocate = no_space


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
    "oom": Sabotage(_oom),
    "nvml-assert": Sabotage(_nvml_assert),
    "device-assert": Sabotage(_device_assert),
    "illegal-access": Sabotage(lambda _: _accelerator_error(700, "an illegal memory access was encountered")),
    "ecc": Sabotage(lambda _: _accelerator_error(214, "uncorrectable ECC error encountered")),
    "cublas": Sabotage(
        lambda _: RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
    ),
    "segfault": Sabotage(_segfault),
    "abort": Sabotage(lambda _: os.abort()),
    "sigkill": Sabotage(_kill(signal.SIGKILL)),
    "sigterm": Sabotage(_kill(signal.SIGTERM)),
    "sigstop": Sabotage(_kill(signal.SIGSTOP)),
    "hang": Sabotage(_hang),
    "exit-0-without-result": Sabotage(lambda _: os._exit(0)),
    "exit-1-after-result": Sabotage(lambda _: os._exit(1), Moment.AFTER),
    "nan-row": Sabotage(_nan_row, Moment.WRITE),
    "lost-vectors": Sabotage(_lost_vectors, Moment.AFTER),
    "host-oom": Sabotage(lambda _: MemoryError()),
    "disk-full": Sabotage(_disk_full),
    "hub-busy": Sabotage(_hub_busy, Moment.LOAD),
    "gpu-busy": Sabotage(
        lambda _: _accelerator_error(46, "CUDA-capable device(s) is/are busy or unavailable"), Moment.LOAD
    ),
    "import-failed": Sabotage(lambda _: ModuleNotFoundError("No module named 'drill'", name="drill"), Moment.LOAD),
    "bad-input": Sabotage(lambda _: UnicodeEncodeError("utf-8", "half \ud83d", 5, 6, "surrogates not allowed")),
    "poison-row": Sabotage(_segfault),
}
"""By the name of the fault."""


POISON_ROW = "poison-row"

IsDue: TypeAlias = Callable[[frozenset[int]], bool]
"""Whether a fault is to strike at a batch of these texts, or (none) before and after all batches."""


class Tripwire(BeatWriter):
    """The beat of a worker, with a fault in its way: it strikes at its moment, where `is_due` says so."""

    def __init__(self, name: str, scene: Scene, spec: Spec, is_due: IsDue = lambda _texts: True) -> None:
        super().__init__(scene.files.beat)
        self._sabotage = SABOTAGES[name]
        self._scene = scene
        self._is_due = is_due
        self._wanted = np.delete(np.arange(spec.start, spec.stop), list(spec.skip))
        self._texts: frozenset[int] = frozenset()
        """Of the batch under way."""

    def phase(self, phase: Phase) -> None:
        """As `BeatWriter.phase`; then the fault."""
        loads = phase is Phase.IMPORT and self._sabotage.moment is Moment.LOAD
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
        if self._sabotage.moment is not moment or not self._is_due(self._texts):
            return
        self.provoked = True
        if error := self._sabotage.strike(self._scene):
            raise error


@dataclass(frozen=True, slots=True)
class Trap:
    """A fault that a test has asked for, and that is to strike in this attempt if it has not struck often enough."""

    folder: Path
    fault: ProvokedFault
    spec: Spec

    def is_due(self, texts: frozenset[int]) -> bool:
        """Whether it is to strike now, at a batch of these texts; whoever is told so has to strike."""
        due = self._holds_the_poison(texts) if self.fault.name == POISON_ROW else self._claim()
        if due:
            with contextlib.suppress(OSError, ValueError):  # a full or closed log is no reason to spare the worker
                sys.stdout.write(f"chunkvisor.testing: the fault {self.fault.name} strikes here, as a test asked\n")
                sys.stdout.flush()
        return due

    def _claim(self) -> bool:
        return any(_made(ProvokedFiles(self.folder).claim(number)) for number in range(self.fault.times))

    def _holds_the_poison(self, texts: frozenset[int]) -> bool:
        """The poison is the first text of the chunk; its number is laid down by the first attempt that gets there."""
        place = ProvokedFiles(self.folder).claim(0)
        with contextlib.suppress(OSError):
            _made(place, str(self.spec.start))
            return int(place.read_text()) in texts
        return False


def provoked(files: AttemptFiles, spec: Spec) -> Tripwire | None:
    """The beat of an attempt that a test wants to meet a fault; None for any other.

    Of several faults the one that was asked for first strikes; the others wait for the next attempt.
    """
    for folder in map(Path, os.environ.get(TESTING_FAULTS, "").split(os.pathsep)):
        fault = read_message(ProvokedFault, ProvokedFiles(folder).fault)
        if fault is None or fault.name not in SABOTAGES:  # its test is over
            continue
        here = fault.chunk == spec.chunk and fault.output in (None, spec.output)
        if here and (fault.name == POISON_ROW or not ProvokedFiles(folder).claim(fault.times - 1).exists()):
            return Tripwire(fault.name, Scene(files), spec, Trap(folder, fault, spec).is_due)
    return None


def _made(path: Path, text: str = "") -> bool:
    """Whether it was us who made the file."""
    try:
        with open(path, "x") as file:
            file.write(text)
    except OSError:  # it exists, or the test is over
        return False
    return True
