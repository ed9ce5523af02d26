"""The taxonomy of faults as data: which exception, in which phase, falls under which rule."""

import errno
import itertools
import json
import re
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkvisor_worker.contract.exits import EXIT_OF_OUTCOME, Outcome
from chunkvisor_worker.contract.messages import Cause, Fault, Phase
from chunkvisor_worker.contract.rules import RULES
from chunkvisor_worker.contract.taxonomy import LINE_CHARS, Diagnosis, diagnose, diagnose_log
from chunkvisor_worker.faults import fault_of
from harness import ROOT
from late import Late

LOAD, TOKENIZE, INIT, FORWARD, WRITE = (
    Phase.MODEL_LOAD,
    Phase.TOKENIZE,
    Phase.CUDA_INIT,
    Phase.FORWARD,
    Phase.WRITE,
)


def stand_in(qualified: str, *bases: type[BaseException]) -> type[BaseException]:
    """A class of the same name and bases as one that torch, the hub or Rust defines."""
    module, _, name = qualified.rpartition(".")
    return type(name, bases or (Exception,), {"__module__": module})


TorchOOM = stand_in("torch.OutOfMemoryError", RuntimeError)
Accelerator = stand_in("torch.AcceleratorError", RuntimeError)
Panic = stand_in("pyo3_runtime.PanicException", BaseException)
Safetensor = stand_in("safetensors._safetensors_rust.SafetensorError")
HubHTTP = stand_in("huggingface_hub.errors.HfHubHTTPError", OSError)
Connect = stand_in("httpx2.ConnectError", stand_in("httpx2.TransportError"))
NotCached = stand_in("huggingface_hub.errors.LocalEntryNotFoundError", FileNotFoundError)
CupyOOM = stand_in("cupy.cuda.memory.OutOfMemoryError", MemoryError)


def cuda(code: int, text: str) -> BaseException:
    """torch.AcceleratorError as torch 2.14 words it, advice included."""
    error = Accelerator(
        f"CUDA error: {text}\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda for more "
        "information.\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace "
        "below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with "
        "`TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )
    error.error_code = code  # type: ignore[attr-defined]  # torch sets it like this
    return error


def count_error(number: int, text: str) -> BaseException:
    """What torch raises where cuInit fails."""
    return RuntimeError(
        "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() "
        f"that might have already set an error? Error {number}: {text}"
    )


def nvml(file: str, expression: str = "DriverAPI::get()->nvmlInit_v2_()") -> BaseException:
    """NVML's assertion."""
    return RuntimeError(
        f'NVML_SUCCESS == {expression} INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/{file}":1377, please report a bug '
        "to PyTorch. "
    )


def hub(status: int, text: str) -> BaseException:
    """The hub's answer, at the end of transformers' chain."""
    answer = HubHTTP(text)
    answer.response = type("Response", (), {"status_code": status})()  # type: ignore[attr-defined]  # as the hub does
    return chained(
        OSError(
            "We couldn't connect to 'https://hf.co' to load the files, and couldn't find them in the cached files."
        ),
        NotCached("An error happened while trying to locate the file on the Hub and we cannot find it in the cache"),
        answer,
    )


def chained(*links: BaseException) -> BaseException:
    """The first, raised from the second, and so on."""
    for link, cause in itertools.pairwise(links):
        link.__cause__ = cause
    return links[0]


OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.20 GiB is "
    "free. Including non-PyTorch memory, this process has 77.0 GiB memory in use. Of the allocated memory 70.0 GiB is "
    "allocated by PyTorch, and 6.0 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
    "large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
CUBLAS = "CUDA error: CUBLAS_STATUS_{} when calling `cublasCreate(handle)`"
CUDNN = "cuDNN error: CUDNN_STATUS_{}"
CPU_ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4503599627370496 bytes. Error code 12 (Cannot allocate memory)"
)

Row = tuple[str, Phase, str, Outcome, int | None, BaseException]
# A row is a line or two.
# fmt: off
TABLE: list[Row] = [
    # GPU memory, in all spellings
    ("allocator", FORWARD, "gpu-out-of-memory", Outcome.GPU_OOM, None, TorchOOM(OOM)),
    ("allocator, old torch", FORWARD, "gpu-out-of-memory", Outcome.GPU_OOM, None, RuntimeError(OOM)),
    ("allocator, moving the weights", INIT, "gpu-full-before-work", Outcome.GPU_BUSY, 75, TorchOOM(OOM)),
    ("allocator, loading", LOAD, "gpu-full-before-work", Outcome.GPU_BUSY, 75, TorchOOM(OOM)),
    ("allocator, wrapped by a plug-in", FORWARD, "gpu-out-of-memory", Outcome.GPU_OOM, None,
     chained(ValueError("batch failed"), TorchOOM(OOM))),
    ("fraction", FORWARD, "gpu-memory-cap", Outcome.GPU_OOM, None,
     TorchOOM("CUDA out of memory. Allocation was preemptively rejected because it would exceed ... fraction limit.")),
    ("1 EB", FORWARD, "gpu-out-of-memory", Outcome.GPU_OOM, None, TorchOOM("Tried to allocate more than 1EB memory.")),
    ("cudaMallocAsync", FORWARD, "gpu-out-of-memory", Outcome.GPU_OOM, None,
     RuntimeError("Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 1")),
    ("raw call", FORWARD, "gpu-out-of-memory", Outcome.GPU_OOM, None, cuda(2, "out of memory")),
    ("raw call, context", INIT, "gpu-full-before-work", Outcome.GPU_BUSY, 75, cuda(2, "out of memory")),
    ("raw call, old torch", FORWARD, "gpu-out-of-memory", Outcome.GPU_OOM, None,
     RuntimeError("CUDA error: out of memory")),
    ("cuInit", INIT, "gpu-full-at-first-call", Outcome.GPU_BUSY, 75, count_error(2, "out of memory")),
    ("driver call", FORWARD, "gpu-out-of-memory", Outcome.GPU_OOM, None,
     RuntimeError("CUDA driver error: out of memory")),
    ("cuBLAS", FORWARD, "gpu-out-of-memory", Outcome.GPU_OOM, None, RuntimeError(CUBLAS.format("ALLOC_FAILED"))),
    ("cuBLAS handle", FORWARD, "cublas-not-initialized", Outcome.GPU_OOM, None,
     RuntimeError(CUBLAS.format("NOT_INITIALIZED"))),
    ("cuBLAS handle at start", INIT, "gpu-full-before-work", Outcome.GPU_BUSY, 75,
     RuntimeError(CUBLAS.format("NOT_INITIALIZED"))),
    ("cuDNN on the device", FORWARD, "gpu-out-of-memory", Outcome.GPU_OOM, None,
     RuntimeError(CUDNN.format("INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"))),
    ("CuPy", FORWARD, "gpu-out-of-memory", Outcome.GPU_OOM, None, CupyOOM("Out of memory allocating 1,024 bytes")),
    ("JAX", FORWARD, "gpu-out-of-memory", Outcome.GPU_OOM, None,
     RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1024 bytes.")),
    # NVML's assertion
    ("NVML, init", FORWARD, "nvml-assert-allocator", Outcome.GPU_OOM, None, nvml("CUDACachingAllocator.cpp")),
    ("NVML, r", FORWARD, "nvml-assert-allocator", Outcome.GPU_OOM, None, nvml("CUDACachingAllocator.cpp", "r")),
    ("NVML, handle", FORWARD, "nvml-assert-allocator", Outcome.GPU_OOM, None,
     nvml("CUDACachingAllocator.cpp", "DriverAPI::get()->nvmlDeviceGetHandleByPciBusId_v2_( pci_id, &nvml_device)")),
    ("NVML, start", INIT, "nvml-assert-before-work", Outcome.GPU_BUSY, 75, nvml("CUDACachingAllocator.cpp")),
    ("NVML, peer", INIT, "nvml-assert-expandable-segments", Outcome.SETUP, 78, nvml("PeerToPeerAccess.cpp")),
    # Sticky faults
    ("710", FORWARD, "device-side-assert", Outcome.DEVICE_FAULT, None, cuda(710, "device-side assert triggered")),
    ("710, old torch", FORWARD, "device-side-assert", Outcome.DEVICE_FAULT, None,
     RuntimeError("CUDA error: device-side assert triggered")),
    ("OOM after 710", FORWARD, "device-side-assert", Outcome.DEVICE_FAULT, None,
     chained(TorchOOM(OOM), cuda(710, "device-side assert triggered"))),
    ("700", FORWARD, "illegal-memory-access", Outcome.DEVICE_FAULT, None, cuda(700, "an illegal memory access")),
    ("719", FORWARD, "illegal-memory-access", Outcome.DEVICE_FAULT, None, cuda(719, "unspecified launch failure")),
    *((str(code), FORWARD, "broken-kernel", Outcome.DEVICE_FAULT, 69, cuda(code, "?")) for code in range(714, 719)),
    ("702", FORWARD, "launch-timeout", Outcome.DEVICE_FAULT, None, cuda(702, "the launch timed out")),
    ("226", FORWARD, "contained-error", Outcome.DEVICE_FAULT, 69, cuda(226, "?")),
    ("810", FORWARD, "mps-terminated", Outcome.DEVICE_FAULT, 75, cuda(810, "?")),
    ("721", FORWARD, "context-lost", Outcome.DEVICE_FAULT, None, cuda(721, "?")),
    ("911", FORWARD, "context-lost", Outcome.DEVICE_FAULT, None, cuda(911, "?")),
    *((f"{code}, before work", phase, "gpu-fault-before-work", Outcome.DEVICE_FAULT, 69, cuda(code, "?"))
      for code in (700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 911)
      for phase in (INIT, Phase.WEIGHTS_COPY)),
    ("1, before work", INIT, "cuda-error-before-work", Outcome.DEVICE_FAULT, 69, cuda(1, "invalid argument")),
    ("999 in mid-run", FORWARD, "cuda-unknown-error", Outcome.DEVICE_FAULT, 69, cuda(999, "unknown error")),
    ("999 at start", INIT, "cuda-does-not-start", Outcome.SETUP, 69, cuda(999, "unknown error")),
    ("1, no rule", FORWARD, "cuda-error", Outcome.DEVICE_FAULT, None, cuda(1, "invalid argument")),
    ("the number beats the text", FORWARD, "illegal-memory-access", Outcome.DEVICE_FAULT, None,
     cuda(700, "device-side assert triggered")),
    ("the driver's log does not count", FORWARD, "cuda-error", Outcome.DEVICE_FAULT, None,
     cuda(1, "invalid argument\nThe CUDA driver logged these messages:\nCUDA error: out of memory")),
    ("cuBLAS execution", FORWARD, "cuda-library-failed", Outcome.DEVICE_FAULT, None,
     RuntimeError(CUBLAS.format("EXECUTION_FAILED"))),
    # Hardware
    ("ECC", FORWARD, "gpu-ecc-error", Outcome.HARDWARE_FAULT, 69, cuda(214, "uncorrectable ECC error")),
    ("NVLink", FORWARD, "gpu-nvlink-error", Outcome.HARDWARE_FAULT, 69, cuda(220, "uncorrectable NVLink error")),
    ("GPU lost", FORWARD, "gpu-lost", Outcome.HARDWARE_FAULT, 69, RuntimeError("NVML: GPU is lost")),
    ("reset", INIT, "gpu-needs-reset", Outcome.HARDWARE_FAULT, 69, RuntimeError("GPU requires restart")),
    # Driver and setup
    ("no driver", INIT, "no-nvidia-driver", Outcome.SETUP, 69,
     RuntimeError("Found no NVIDIA driver on your system. Please check")),
    ("old driver", INIT, "driver-too-old", Outcome.SETUP, 69,
     RuntimeError("The NVIDIA driver on your system is too old (found version 11040). Please update")),
    ("no GPU", INIT, "no-gpu-visible", Outcome.SETUP, 69, RuntimeError("No CUDA GPUs are available")),
    ("exclusive", INIT, "gpu-exclusive", Outcome.GPU_BUSY, 75,
     count_error(46, "CUDA-capable device(s) is/are busy or unavailable")),
    ("exclusive, code", INIT, "gpu-exclusive", Outcome.GPU_BUSY, 75, cuda(46, "?")),
    ("fabric", INIT, "gpu-services-not-ready", Outcome.GPU_BUSY, 69, count_error(802, "system not yet initialized")),
    ("803", INIT, "driver-library-mismatch", Outcome.SETUP, 69,
     count_error(803, "system has unsupported display driver / cuda driver combination")),
    ("804", INIT, "forward-compatibility", Outcome.SETUP, 69,
     count_error(804, "forward compatibility was attempted on non supported HW")),
    ("stub", INIT, "stub-driver", Outcome.SETUP, 69, count_error(34, "CUDA driver is a stub library")),
    ("MPS", INIT, "mps-unavailable", Outcome.GPU_BUSY, 75, count_error(805, "MPS client failed to connect")),
    ("init", INIT, "cuda-does-not-start", Outcome.SETUP, 69,
     RuntimeError("CUDA driver initialization failed, you might not have a CUDA gpu.")),
    ("999", INIT, "cuda-does-not-start", Outcome.SETUP, 69,
     RuntimeError("CUDA unknown error - this may be due to an incorrectly set up environment")),
    ("unlisted", INIT, "cuda-does-not-start", Outcome.SETUP, 69, count_error(4711, "?")),
    ("fork", INIT, "cuda-before-fork", Outcome.CRASHED, None,
     RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing")),
    ("209", FORWARD, "gpu-not-supported-by-torch", Outcome.SETUP, 69, cuda(209, "no kernel image")),
    *((str(code), FORWARD, "gpu-not-supported-by-torch", Outcome.SETUP, 69, cuda(code, "?"))
      for code in (98, 200, 300)),
    ("cuBLAS arch", FORWARD, "gpu-not-supported-by-torch", Outcome.SETUP, 69,
     RuntimeError(CUBLAS.format("ARCH_MISMATCH"))),
    *((str(code), FORWARD, "ptx-not-compiled", Outcome.SETUP, 69, cuda(code, "?")) for code in (218, 221, 223)),
    *((str(code), INIT, "cuda-call-refused", Outcome.SETUP, 69, cuda(code, "?")) for code in (304, 800, 801)),
    ("36", INIT, "driver-too-old", Outcome.SETUP, 69, cuda(36, "?")),
    ("222", FORWARD, "gpu-not-supported-by-torch", Outcome.SETUP, 69, cuda(222, "the provided PTX")),
    ("101", INIT, "no-such-gpu", Outcome.SETUP, 78, cuda(101, "invalid device ordinal")),
    ("cuDNN mixed", FORWARD, "cudnn-mixed", Outcome.SETUP, 69, RuntimeError(CUDNN.format("SUBLIBRARY_LOADING_FAILED"))),
    ("NVML in a container", INIT, "container-lost-gpu", Outcome.SETUP, 69,
     RuntimeError("Failed to initialize NVML: Unknown Error")),
    # Host
    ("MemoryError", LOAD, "host-out-of-memory", Outcome.HOST_OOM, None, MemoryError()),
    ("CPU allocator", FORWARD, "host-out-of-memory", Outcome.HOST_OOM, None, RuntimeError(CPU_ALLOCATOR)),
    ("ENOMEM", FORWARD, "host-out-of-memory", Outcome.HOST_OOM, None, OSError(errno.ENOMEM, "Cannot allocate memory")),
    ("cuDNN on the host", FORWARD, "host-out-of-memory", Outcome.HOST_OOM, None,
     RuntimeError(CUDNN.format("INTERNAL_ERROR_HOST_ALLOCATION_FAILED"))),
    ("threads", FORWARD, "thread-limit", Outcome.HOST_OOM, 69, RuntimeError("can't start new thread")),
    ("threads of the tokenizer", TOKENIZE, "thread-limit", Outcome.HOST_OOM, 69,
     Panic("The global thread pool has not been initialized.: ThreadPoolBuildError { kind: IOError(Os { code: 11 })")),
    ("files", LOAD, "file-limit", Outcome.HOST_OOM, 69, OSError(errno.EMFILE, "Too many open files")),
    # Disk
    ("ENOSPC", WRITE, "disk-full", Outcome.DISK_FULL, 74, OSError(errno.ENOSPC, "No space left on device")),
    ("EDQUOT", WRITE, "disk-full", Outcome.DISK_FULL, 74, OSError(errno.EDQUOT, "Disk quota exceeded")),
    ("np.save", WRITE, "disk-full", Outcome.DISK_FULL, 74,
     OSError("Not enough free space to write 32000000 bytes after offset 128")),
    ("tofile", WRITE, "disk-full", Outcome.DISK_FULL, 74, OSError("1000000 requested and 0 written")),
    ("sqlite3", WRITE, "disk-full", Outcome.DISK_FULL, 74, sqlite3.OperationalError("database or disk is full")),
    ("torch.save", WRITE, "disk-full", Outcome.DISK_FULL, 74,
     RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534")),
    ("safetensors", WRITE, "disk-full", Outcome.DISK_FULL, 74,
     Safetensor("Error while serializing: I/O error: No space left on device (os error 28)")),
    ("EIO", WRITE, "disk-failing", Outcome.DISK_FULL, 74, OSError(errno.EIO, "Input/output error")),
    ("EROFS", WRITE, "disk-failing", Outcome.DISK_FULL, 74, OSError(errno.EROFS, "Read-only file system")),
    ("ESTALE", LOAD, "disk-failing", Outcome.DISK_FULL, 74, OSError(errno.ESTALE, "Stale file handle")),
    # Hub
    ("429", LOAD, "hub-busy", Outcome.HUB, 75, hub(429, "429 Too Many Requests for url")),
    ("503", LOAD, "hub-busy", Outcome.HUB, 75, hub(503, "Server error '503 Service Unavailable'")),
    ("401", LOAD, "hub-access-denied", Outcome.SETUP, 78, hub(401, "Client error '401 Unauthorized'")),
    ("403", LOAD, "hub-access-denied", Outcome.SETUP, 78, hub(403, "403 Forbidden: None.")),
    ("no connection", LOAD, "hub-unreachable", Outcome.HUB, 75,
     chained(OSError("We couldn't connect to 'https://hf.co'"), NotCached("An error happened"), Connect("refused"))),
    ("no connection, cause unknown", LOAD, "network-failed", Outcome.HUB, 75,
     OSError("We couldn't connect to 'https://hf.co' to load the files")),
    ("offline", LOAD, "model-not-cached", Outcome.SETUP, 78,
     chained(OSError("We couldn't connect to 'https://hf.co'"),
             NotCached("Cannot find the requested files in the disk cache and outgoing traffic has been disabled."))),
    ("plain socket", LOAD, "network-failed", Outcome.HUB, 75, ConnectionRefusedError(errno.ECONNREFUSED, "refused")),
    # Model and configuration
    ("folder", LOAD, "model-folder-missing", Outcome.SETUP, 78, FileNotFoundError("Path /nope/model not found")),
    ("allocator option", INIT, "allocator-config", Outcome.SETUP, 78,
     ValueError("Unrecognized key 'x' in Accelerator allocator config.")),
    ("option", LOAD, "model-option-unknown", Outcome.SETUP, 78,
     TypeError("BertModel.__init__() got an unexpected keyword argument 'zzz'")),
    ("shapes", LOAD, "weights-mismatch", Outcome.SETUP, 78,
     RuntimeError("You set `ignore_mismatched_sizes` to `False`, thus raising an error.")),
    ("library", LOAD, "library-missing", Outcome.SETUP, 78,
     ImportError("libcudart.so.13: cannot open shared object file: No such file")),
    ("right", LOAD, "permission-denied", Outcome.SETUP, 78,
     PermissionError(errno.EACCES, "Permission denied", "/models/x")),
    ("attention", LOAD, "attention-unsupported", Outcome.SETUP, 78,
     ImportError("FlashAttention2 has been toggled on, but it cannot be used due to the following error: ...")),
    ("prompt", FORWARD, "prompt-unknown", Outcome.SETUP, 78,
     ValueError("Prompt name 'zzz' not found in the configured prompts dictionary with keys ['query'].")),
    ("prompt, our own check", LOAD, "prompt-unknown", Outcome.SETUP, 78,
     ValueError("prompt_name 'zzz' is not a prompt of this model; it has: 'query'")),
    ("setting", LOAD, "setting-impossible", Outcome.SETUP, 78,
     ValueError("model.max_length is 9000, but the model has positions for 512 tokens only")),
    ("module", FORWARD, "import-failed", Outcome.SETUP, 78, ModuleNotFoundError("No module named 'flash_attn'")),
    ("syntax", Phase.IMPORT, "import-failed", Outcome.SETUP, 78, SyntaxError("invalid syntax")),
    # Input
    ("surrogate", TOKENIZE, "text-not-unicode", Outcome.BAD_INPUT, 78,
     UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")),
    ("number", TOKENIZE, "not-a-text", Outcome.BAD_INPUT, 78,
     ValueError("Unsupported input type: NoneType. Expected one of: str, dict")),
    ("token id", FORWARD, "token-out-of-range", Outcome.BAD_INPUT, 78, IndexError("index out of range in self")),
    ("position", FORWARD, "text-too-long", Outcome.BAD_INPUT, 78,
     RuntimeError("The size of tensor a (402) must match the size of tensor b (64) at non-singleton dimension 1")),
    ("panic", TOKENIZE, "tokenizer-panic", Outcome.CRASHED, None, Panic("called `Option::unwrap()` on a `None` value")),
    # Everything else
    ("stop", FORWARD, "interrupted", Outcome.INTERRUPTED, None, chained(KeyboardInterrupt(), TorchOOM(OOM))),
    ("odd, loading", LOAD, "unknown-at-load", Outcome.SETUP, 78, ZeroDivisionError("division by zero")),
    ("odd, encoding", FORWARD, "unknown-on-texts", Outcome.CRASHED, None, ZeroDivisionError("division by zero")),
    ("odd, writing", WRITE, "unknown", Outcome.CRASHED, None, ZeroDivisionError("division by zero")),
]
# fmt: on


def check(diagnosis: Diagnosis, rule: str, outcome: Outcome, exit_code: int | None) -> None:
    """The diagnosis is the expected one, with something to show."""
    assert (diagnosis.rule.name, diagnosis.outcome, diagnosis.rule.exit_code) == (rule, outcome, exit_code)
    assert diagnosis.headline


@pytest.mark.parametrize(
    ("name", "phase", "rule", "outcome", "exit_code", "error"), TABLE, ids=[row[0] for row in TABLE]
)
def test_exception(
    name: str, phase: Phase, rule: str, outcome: Outcome, exit_code: int | None, error: BaseException
) -> None:
    """An exception, raised in a phase, falls under one rule."""
    check(diagnose(fault_of(error, phase)), rule, outcome, exit_code)


CUDA_ERRORS = {
    int(code): text
    for code, _, text in (
        line.split("\t")
        for line in Path(__file__).with_name("cuda_errors.tsv").read_text("utf-8").splitlines()
        if not line.startswith("#")
    )
}
"""Text of every CUDA error, as libcudart gives it."""


@pytest.mark.parametrize("phase", [INIT, FORWARD])
@pytest.mark.parametrize("code", CUDA_ERRORS)
def test_a_cuda_error_is_known_by_its_text_as_by_its_code(code: int, phase: Phase) -> None:
    """Torch before 2.9 gives no number: libcudart's own text leads to the rule that the number leads to."""
    text = CUDA_ERRORS[code]
    by_code = diagnose(fault_of(cuda(code, text), phase)).rule.name
    by_text = diagnose(fault_of(RuntimeError(f"CUDA error: {text}\nCUDA kernel errors might be ..."), phase)).rule.name

    assert by_code == by_text
    assert by_code not in ("unknown-on-texts", "unknown-at-load", "unknown")


@pytest.mark.parametrize("code", [209, 214, 220, 226, 700, 702, 710, 714, 715, 716, 719, 721, 810, 911])
def test_a_cuda_error_is_known_by_a_log_alone(code: int) -> None:
    """Where a worker dies without a record, libcudart's text in its log leads to the rule of the number."""
    found = diagnose_log(f"terminate called\n  what():  CUDA error: {CUDA_ERRORS[code]}\n", -signal.SIGABRT)

    assert found is not None
    assert found.rule.name == diagnose(fault_of(cuda(code, "?"), FORWARD)).rule.name


def test_the_reason_of_an_abort_is_found_behind_long_stacks() -> None:
    """Behind it come the stacks of C++ and of Python, a hundred frames of each, and the list of extension modules."""
    frame = '  File "/lib/python3.11/site-packages/transformers/models/qwen2/modeling_qwen2.py", line 192 in forward\n'
    log = f"  what():  CUDA error: {CUDA_ERRORS[710]}\n" + 230 * frame + "Extension modules: " + "torch._C, " * 400
    found = diagnose_log(log, -signal.SIGABRT)

    assert found is not None
    assert found.rule.name == "device-side-assert"


def test_table_has_every_rule_that_an_exception_can_meet() -> None:
    """No rule with a sign goes untested, in this table or the others of the module."""
    elsewhere = {row[2] for row in REAL}
    named = {row[2] for row in TABLE} | elsewhere | {row[1] for row in OWN}

    assert {rule.name for rule in RULES if rule.signs} == named


# What the worker's own modules raise.
OWN = [
    ("chunkvisor_worker.plugin.BadOutputError", "bad-output", FORWARD, Outcome.BAD_OUTPUT),
    ("chunkvisor_worker.plugin.PluginError", "setting-impossible", Phase.IMPORT, Outcome.SETUP),
    ("chunkvisor_worker.job.TextsDamagedError", "texts-damaged", TOKENIZE, Outcome.CRASHED),
    ("chunkvisor_worker.loaded.WrongModelError", "wrong-model", LOAD, Outcome.SETUP),
    ("chunkvisor_worker.loaded.TokenizerMismatchError", "tokenizer-mismatch", LOAD, Outcome.SETUP),
    ("chunkvisor_worker.loaded.TokenizerMismatchError", "token-out-of-range", TOKENIZE, Outcome.BAD_INPUT),
]


@pytest.mark.parametrize(("qualified", "rule", "phase", "outcome"), OWN)
def test_own_exception(qualified: str, rule: str, phase: Phase, outcome: Outcome) -> None:
    """An exception class of the worker exists under the name in the table, and falls under its rule."""
    module, _, name = qualified.rpartition(".")
    kind = getattr(pytest.importorskip(module), name)

    diagnosis = diagnose(fault_of(kind("because"), phase))

    assert (diagnosis.rule.name, diagnosis.outcome) == (rule, outcome)


# The real thing: each of these makes a library raise its own exception.
torch, transformers, hub_library, errors = map(
    Late, ("torch", "transformers", "huggingface_hub", "huggingface_hub.errors")
)
Provoke = Callable[[Path], Any]


def _raise(error: BaseException, **attributes: object) -> None:
    for name, value in attributes.items():
        setattr(error, name, value)
    raise error


def _no_cuda(_: Path) -> None:
    if torch.version.cuda is not None:
        pytest.skip("this torch has CUDA")
    torch.zeros(1, device="cuda")


def _damaged_weights(folder: Path) -> None:
    path = folder / "pytorch_model.bin"
    torch.save(torch.zeros(100_000), path)
    path.write_bytes(path.read_bytes()[:1000])
    torch.load(path)


def _transformers(config: str) -> Provoke:
    def load(folder: Path) -> None:
        (folder / "config.json").write_text(config)
        transformers.AutoModel.from_pretrained(str(folder))

    return load


def _to_a_full_disk(write: Callable[[Any], Any]) -> Provoke:
    def load(_: Path) -> None:
        with open("/dev/full", "wb", buffering=0) as file:
            write(file)

    return load


def _surrogate(_: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")).encode_batch(["\ud800x"])


def _safetensors(content: bytes) -> Provoke:
    def load(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(content)
        pytest.importorskip("safetensors").safe_open(path, "np")

    return load


def _http() -> Any:
    """Import the hub's HTTP library: httpx, or httpx2 since huggingface_hub 2."""
    return pytest.importorskip(errors.HfHubHTTPError.__mro__[1].__module__.partition(".")[0])


def _hub(status: int, code: str = "", message: str = "") -> Provoke:
    def answer(_: Path) -> None:
        from huggingface_hub.utils import hf_raise_for_status

        http = _http()
        headers = {"X-Error-Code": code, "X-Error-Message": message}
        request = http.Request("GET", "https://huggingface.co/api/models/a/b/revision/main")
        try:
            hf_raise_for_status(http.Response(status, headers=headers, request=request))
        except errors.HfHubHTTPError as error:
            raise OSError("We couldn't connect to 'https://hf.co' to load the files") from error

    return answer


BERT = json.dumps({"model_type": "bert", "hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1})
CUSTOM = '{"model_type": "zzz", "auto_map": {"AutoConfig": "c.C", "AutoModel": "m.M"}}'
LFS = b"version https://git-lfs.github.com/spec/v1\n"
# fmt: off
# With torch or transformers, which take seconds to import.
SLOW: list[tuple[Provoke, Phase, str, Outcome, int | None]] = [
    (lambda _: _raise(torch.OutOfMemoryError(OOM)), FORWARD, "gpu-out-of-memory", Outcome.GPU_OOM, None),
    (lambda _: _raise(torch.OutOfMemoryError(OOM)), INIT, "gpu-full-before-work", Outcome.GPU_BUSY, 75),
    (lambda _: _raise(torch.AcceleratorError("CUDA error"), error_code=710), FORWARD, "device-side-assert",
     Outcome.DEVICE_FAULT, None),
    (lambda _: torch.nn.Embedding(3, 2)(torch.tensor([5])), FORWARD, "token-out-of-range", Outcome.BAD_INPUT, 78),
    (lambda _: torch.zeros(2, 402) + torch.zeros(2, 64), FORWARD, "text-too-long", Outcome.BAD_INPUT, 78),
    (lambda _: torch.zeros(1, 64).expand(2, 402), FORWARD, "text-too-long", Outcome.BAD_INPUT, 78),
    (lambda _: torch.empty(1 << 50), FORWARD, "host-out-of-memory", Outcome.HOST_OOM, None),
    (_no_cuda, INIT, "torch-without-cuda", Outcome.SETUP, 69),
    (lambda _: torch.zeros(1, device="zzz"), LOAD, "no-such-gpu", Outcome.SETUP, 78),
    (lambda _: torch.save(torch.zeros(1_000_000), "/dev/full"), WRITE, "disk-full", Outcome.DISK_FULL, 74),
    (_damaged_weights, LOAD, "weights-damaged", Outcome.SETUP, 78),
    (_transformers('{"model_type": "zzz"}'), LOAD, "architecture-unknown", Outcome.SETUP, 78),
    (_transformers(CUSTOM), LOAD, "custom-code-refused", Outcome.SETUP, 78),
    (_transformers(BERT), LOAD, "weights-missing", Outcome.SETUP, 78),
    (_transformers("{"), LOAD, "model-config-damaged", Outcome.SETUP, 78),
    (lambda _: transformers.AutoConfig.from_pretrained("a b/c d"), LOAD, "model-name-invalid", Outcome.SETUP, 78),
]
QUICK: list[tuple[Provoke, Phase, str, Outcome, int | None]] = [
    (lambda _: np.zeros(1 << 45), FORWARD, "host-out-of-memory", Outcome.HOST_OOM, None),
    (_to_a_full_disk(np.zeros(1_000_000).tofile), WRITE, "disk-full", Outcome.DISK_FULL, 74),
    (_to_a_full_disk(lambda file: np.save(file, np.zeros(1_000_000))), WRITE, "disk-full", Outcome.DISK_FULL, 74),
    (_surrogate, TOKENIZE, "text-not-unicode", Outcome.BAD_INPUT, 78),
    (_safetensors(b""), LOAD, "weights-damaged", Outcome.SETUP, 78),
    (_safetensors(LFS), LOAD, "weights-damaged", Outcome.SETUP, 78),
    (_hub(429), LOAD, "hub-busy", Outcome.HUB, 75),
    (_hub(503), LOAD, "hub-busy", Outcome.HUB, 75),
    (_hub(403), LOAD, "hub-access-denied", Outcome.SETUP, 78),
    (_hub(403, "GatedRepo"), LOAD, "model-gated", Outcome.SETUP, 78),
    (_hub(403, message="Access to this resource is disabled."), LOAD, "hub-access-denied", Outcome.SETUP, 78),
    (_hub(401), LOAD, "model-not-found", Outcome.SETUP, 78),
    (_hub(404, "RepoNotFound"), LOAD, "model-not-found", Outcome.SETUP, 78),
    (_hub(404, "RevisionNotFound"), LOAD, "revision-not-found", Outcome.SETUP, 78),
    (_hub(404, "EntryNotFound"), LOAD, "revision-not-found", Outcome.SETUP, 78),
    (lambda _: hub_library.snapshot_download("chunkvisor-no/such-model", local_files_only=True), LOAD,
     "model-not-cached", Outcome.SETUP, 78),
    (lambda _: _http().get("http://127.0.0.1:9"), LOAD, "hub-unreachable", Outcome.HUB, 75),
    (lambda _: hub_library.snapshot_download("a b/c d"), LOAD, "model-name-invalid", Outcome.SETUP, 78),
]
# fmt: on
REAL = [(*row, pytest.mark.model) for row in SLOW] + [(*row, ()) for row in QUICK]


@pytest.mark.parametrize(
    ("provoke", "phase", "rule", "outcome", "exit_code"),
    [pytest.param(*row[:5], id=f"{row[2]} in {row[1]}", marks=row[5]) for row in REAL],
)
def test_real_exception(
    provoke: Callable[[Path], None], phase: Phase, rule: str, outcome: Outcome, exit_code: int | None, tmp_path: Path
) -> None:
    """What a library really raises falls under the rule that was written for it."""
    try:
        provoke(tmp_path)
    except pytest.skip.Exception:  # a BaseException, too
        raise
    except BaseException as error:
        check(diagnose(fault_of(error, phase)), rule, outcome, exit_code)
    else:
        pytest.fail("nothing was raised")


@pytest.mark.parametrize(
    ("tail", "returncode", "rule", "outcome"),
    [
        ("libgomp: Thread creation failed: Resource temporarily unavailable", 1, "thread-limit", Outcome.HOST_OOM),
        ("Fatal Python error: Segmentation fault\n\nCurrent thread", -11, "segmentation-fault", Outcome.CRASHED),
        ("", -signal.SIGSEGV, "segmentation-fault", Outcome.CRASHED),
        ("Fatal Python error: Bus error", -7, "bus-error", Outcome.CRASHED),
        ("Fatal Python error: Aborted", -6, "aborted", Outcome.CRASHED),
        (
            "terminate called after throwing an instance of 'c10::Error'\n what(): x",
            -6,
            "aborted",
            Outcome.CRASHED,
        ),
        (
            "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: device-side assert "
            "triggered\nFatal Python error: Aborted",
            -6,
            "device-side-assert",
            Outcome.DEVICE_FAULT,
        ),
        ("terminate called after throwing an instance of 'std::bad_alloc'", -6, "host-out-of-memory", Outcome.HOST_OOM),
        (
            "Indexing.cu:1553: indexSelectLargeIndex: block: [0,0,0], thread: [1,0,0] Assertion `srcIndex` failed.",
            1,
            "device-side-assert",
            Outcome.DEVICE_FAULT,
        ),
        ("Error an illegal memory access was encountered at line 90", 1, "illegal-memory-access", Outcome.DEVICE_FAULT),
        (
            "Unable to load any of {libcudnn_ops.so.9.1.0, libcudnn_ops.so}\nInvalid handle. Cannot load symbol cudnnX",
            -6,
            "cudnn-mixed",
            Outcome.SETUP,
        ),
        ("thread '<unnamed>' panicked at src/lib.rs:3:5:\n", 101, "tokenizer-panic", Outcome.CRASHED),
        ("OSError: [Errno 28] No space left on device", 1, "disk-full", Outcome.DISK_FULL),
        ("", 120, "disk-full", Outcome.DISK_FULL),
        ("/usr/bin/python3: No module named chunkvisor_worker", 1, "worker-not-started", Outcome.SETUP),
        ("Traceback\nModuleNotFoundError: No module named 'numpy'\n", 1, "worker-not-started", Outcome.SETUP),
        ("", 127, "worker-not-started", Outcome.SETUP),
        (
            "Fatal Python error: init_fs_encoding: failed\n<no frame>",
            1,
            "worker-not-started",
            Outcome.SETUP,
        ),
        ("Fatal Python error: config_init_hash_seed: must be\n", 1, "worker-not-started", Outcome.SETUP),
        ("", -signal.SIGILL, "illegal-instruction", Outcome.CRASHED),
        ("CUDA out of memory", -signal.SIGTERM, "interrupted", Outcome.INTERRUPTED),
        ("", -signal.SIGHUP, "interrupted", Outcome.INTERRUPTED),
        ("Killed\nCUDA out of memory", -signal.SIGKILL, "killed-from-outside", Outcome.CRASHED),
    ],
)
def test_log(tail: str, returncode: int, rule: str, outcome: Outcome) -> None:
    """A worker that left no record is judged by the end of its log, then by its return code."""
    diagnosis = diagnose_log(tail, returncode)

    assert diagnosis is not None
    assert (diagnosis.rule.name, diagnosis.outcome) == (rule, outcome)
    assert diagnosis.headline


@pytest.mark.parametrize(
    ("tail", "returncode"),
    [
        ("CUDA out of memory", 0),
        ("some text", 1),
        ("ImportError: no flash_attn\nfalling back to sdpa", 1),
        ("", -40),
    ],
)
def test_log_that_tells_nothing(tail: str, returncode: int) -> None:
    """Success and unknown ends are not guessed at."""
    assert diagnose_log(tail, returncode) is None


QUOTED = (
    *("GPU has fallen off the bus", "GPU is lost", "GPU requires reset", "uncorrectable ECC error encountered"),
    *("No CUDA GPUs are available", "Found no NVIDIA driver on your system", "Too many open files"),
    *("CUDA-capable device(s) is/are busy or unavailable", "system not yet initialized", "misaligned address"),
    *("No space left on device", "Disk quota exceeded", "can't start new thread", "Driver/library version mismatch"),
    *("pass trust_remote_code=True", "attn_implementation", "undefined symbol: x", "CUDA driver initialization failed"),
)


@pytest.mark.parametrize("phase", [TOKENIZE, FORWARD])
@pytest.mark.parametrize("kind", [RuntimeError, ValueError, OSError, stand_in("my.encoder.Refused", RuntimeError)])
@pytest.mark.parametrize("words", QUOTED)
def test_words_of_a_text_are_no_verdict(words: str, kind: type[BaseException], phase: Phase) -> None:
    """An encoder that quotes a text behind words of its own has met the text, not what the text speaks of."""
    found = diagnose(fault_of(kind(f"cannot encode: {words}"), phase)).rule

    assert (found.name, found.row_can_cause) == ("unknown-on-texts", True)


@pytest.mark.parametrize("words", QUOTED)
def test_words_of_a_text_in_a_log_are_no_verdict(words: str) -> None:
    """Nor where the worker prints its texts, and ends without a record."""
    assert diagnose_log(f"now at: {words}\n", 1, phase=FORWARD) is None


@pytest.mark.parametrize(
    "error",
    [
        cuda(46, "CUDA-capable device(s) is/are busy or unavailable"),
        cuda(214, "uncorrectable ECC error encountered"),
        cuda(1, "invalid argument"),
        RuntimeError("No CUDA GPUs are available"),
        RuntimeError("NVML: GPU is lost"),
    ],
)
@pytest.mark.parametrize("phase", [LOAD, FORWARD])
def test_on_the_cpu_no_verdict_speaks_of_a_gpu(error: BaseException, phase: Phase) -> None:
    """What an encoder on the CPU says of a GPU is its own error: of the model at load, of a text later."""
    name = diagnose(fault_of(error, phase), on_cpu=True).rule.name

    assert name == ("unknown-at-load" if phase is LOAD else "unknown-on-texts")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL])
def test_a_signal_outweighs_older_lines_of_the_log(number: int) -> None:
    """What was printed before native code crashed was survived; only an abort is explained by it."""
    found = diagnose_log("std::bad_alloc\nCUDA out of memory\nGPU is lost\n", -number)

    assert found is not None
    assert found.outcome is Outcome.CRASHED


causes = st.builds(
    Cause,
    name=st.text() | st.sampled_from(sorted({name for rule in RULES for sign in rule.signs for name in sign.classes})),
    bases=st.lists(st.text() | st.just("builtins.RuntimeError")).map(tuple),
    message=st.text(),
    error_code=st.none() | st.integers(),
    errno=st.none() | st.integers(),
    http_status=st.none() | st.integers(),
)


@given(
    st.builds(Fault, phase=st.sampled_from(Phase), chain=st.lists(causes, max_size=8).map(tuple), traceback=st.just(""))
)
def test_every_fault_has_a_diagnosis(fault: Fault) -> None:
    """Whatever the record says, there is a rule, a plain line and a worker's exit code for it."""
    diagnosis = diagnose(fault)

    assert "\n" not in diagnosis.headline
    assert len(diagnosis.headline) <= LINE_CHARS + 1
    assert diagnosis.outcome in EXIT_OF_OUTCOME


@given(st.text(), st.integers(-64, 255))
def test_every_log_has_an_answer(tail: str, returncode: int) -> None:
    """No log and no return code make it raise."""
    diagnose_log(tail, returncode)


@pytest.mark.parametrize("unit", ["NVML_SUCCESS == ", "Path x", "INTERNAL ASSERT FAILED at ", "1 requested and ", "\n"])
def test_huge_message_is_judged_by_its_head(unit: str) -> None:
    """A message of megabytes, made to upset a pattern, has an answer all the same; its end does not count."""
    message = unit * (10_000_000 // len(unit)) + "CUDA out of memory"
    fault = Fault(FORWARD, (Cause("builtins.RuntimeError", ("builtins.Exception",), message),), "")

    assert diagnose(fault).rule.name == "unknown-on-texts"
    assert diagnose_log(message.replace("CUDA out of memory", ""), 1) is None


def test_names_are_unique_and_stable_identifiers() -> None:
    """Users search for a rule's name, so it is a kebab-case word that occurs once."""
    names = [rule.name for rule in RULES]

    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+|unknown|aborted|interrupted", name) for name in names)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_is_complete(rule: Any) -> None:
    """Each rule says in sentences what happened and what to do, and how the run ends where the outcome does not say."""
    assert rule.cause.endswith(".")
    assert rule.remedy.endswith(".")
    assert rule.signs or rule.log or rule.returncodes
    retried = rule.outcome in (Outcome.GPU_OOM, Outcome.DEVICE_FAULT, Outcome.HOST_OOM, Outcome.CRASHED)
    unblamed = rule.outcome in (Outcome.INTERRUPTED, Outcome.BAD_OUTPUT)
    assert rule.exit_code in (69, 74, 75, 78) or (rule.exit_code is None and (retried or unblamed))
    assert not (rule.outcome is Outcome.GPU_OOM and not rule.smaller_batch_helps)


def test_the_page_on_gpus_names_rules_as_they_are() -> None:
    """docs/explanation/status-and-limits.md lists faults with the outcome of their rules."""
    rules = {rule.name: rule for rule in RULES}
    page = (ROOT / "docs" / "explanation" / "status-and-limits.md").read_text("utf-8")
    lines = re.findall(r"^\|[^|]+\| `([\w-]+)` \| `(\w+)` \|", page, re.MULTILINE)
    assert len(lines) >= 14
    assert all(outcome == rules[name].outcome for name, outcome in lines)
