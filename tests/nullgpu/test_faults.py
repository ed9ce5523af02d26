"""Genuine faults of torch's CUDA build, each in a real run on the null GPU, held against the
handbook's entries.
"""

import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from chunkvisor_worker.contract.rules import RULES
from harness import finish, wait_for
from nullgpu import GIB, LIMIT_S, GpuWorkplace, NullGpu

ASSERTS_NVML = tuple(map(int, importlib.metadata.version("torch").split(".")[:2])) < (2, 14)


def contradictions(failed: Mapping[str, Any], name: str, exit_code: int | None = None) -> list[str]:
    """In what a failed attempt, and the run that it ended, are not what the rule of that name says."""
    (rule,) = [rule for rule in RULES if rule.name == name]
    wrong = [] if failed["rule"] == name else [f"the rule is {failed['rule']}: {failed['reason']}"]
    if not failed["reason"].startswith(rule.cause.rstrip(".")):
        wrong.append(f"the reason is {failed['reason']!r}")
    if failed["outcome"] != rule.outcome:
        wrong.append(f"the rule's outcome is {rule.outcome}, not {failed['outcome']}")
    if exit_code not in (None, rule.exit_code):
        wrong.append(f"the rule's exit code is {rule.exit_code}, not {exit_code}")
    return wrong


def run_with_a_fault_a_chunk(
    workplace: GpuWorkplace, faults: list[str], **changes: Any
) -> list[dict[str, Any]]:
    """A run that completes; each second chunk meets the next faults at its first attempt, the
    others are spared.

    Returns what failed, in the order of the chunks: nothing but those attempts, and no row was lost
    to them.
    """
    struck = [2 * number + 1 for number in range(len(faults))]
    for chunk, together in zip(struck, faults, strict=True):
        for fault in together.split():
            what, _, place = fault.partition("@")
            workplace.gpu.fault(what, place, argv=f"/{chunk:06d}/001")
    rows = (2 * len(faults) + 1) * changes["chunk.size"]
    workplace.write_texts(rows)
    # The next worker is prepared meanwhile, and gets the GPU once that has been looked at.
    workplace.write_torch_config(**{"workers.start": "warm", "workers.standby": 1, **changes})
    workplace.ends(0)
    assert workplace.vectors().shape == (rows, 64)
    assert workplace.manifest()["quarantined"] == []
    assert not workplace.named("part_failed")
    failed = sorted(workplace.named("attempt_failed"), key=lambda each: each["chunk"])
    assert [(each["chunk"], each["attempt"]) for each in failed] == [(chunk, 1) for chunk in struck]
    return failed


_BROKEN_NVML = "nvml-assert-allocator" if ASSERTS_NVML else "gpu-out-of-memory"
_OUT_OF_MEMORY = {
    "2@cudaMalloc:2+": (
        "gpu-out-of-memory",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate",
    ),
    "2@cudaMalloc:2+ 999@nvmlInit_v2": (_BROKEN_NVML, "nvmlInit_v2_() INTERNAL ASSERT FAILED"),
    "2@cudaMalloc:2+ 999@nvmlDeviceGetHandleByPciBusId_v2": (
        _BROKEN_NVML,
        "nvmlDeviceGetHandleByPciBusId_v2_( pci_id, &nvml_device) INTERNAL ASSERT FAILED",
    ),
    "2@cudaMalloc:2+ 999@nvmlDeviceGetComputeRunningProcesses": (
        _BROKEN_NVML,
        "INTERNAL ASSERT FAILED",
    ),
    "3@cublasCreate_v2": (
        "gpu-out-of-memory",
        "CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ),
}
"""What fails in a chunk's first batch -> the rule, and a part of torch's own words."""


@pytest.mark.newer
def test_out_of_memory_in_all_its_spellings_halves_the_batch(gpu_workplace: GpuWorkplace) -> None:
    """OutOfMemoryError, the allocator's three NVML assertions and cuBLAS: each goes on with half
    the batch at most.
    """
    changes = {"chunk.size": 32, "encode.batch_size": 32, "encode.batch_tokens": None}
    failed = run_with_a_fault_a_chunk(gpu_workplace, list(_OUT_OF_MEMORY), **changes)
    wrong: dict[str, list[str]] = {}
    for (fault, (rule, words)), each in zip(_OUT_OF_MEMORY.items(), failed, strict=True):
        wrong[fault] = contradictions(each, rule)
        if not ASSERTS_NVML and "nvml" in fault:
            words = "OutOfMemoryError: CUDA out of memory"
        wrong[fault] += [] if words in each["reason"] else [each["reason"]]
        first, second = (go for go in gpu_workplace.named("go") if go["chunk"] == each["chunk"])
        wrong[fault] += [] if is_half(second, first) else [f"{first} then {second}"]
    assert not any(wrong.values()), wrong


def is_half(second: Mapping[str, Any], first: Mapping[str, Any]) -> bool:
    """Whether batches are half as large the second time, in padded tokens where these are counted."""
    if second["tokens"] is None:
        return bool(second["rows"] <= first["rows"] // 2)
    return first["tokens"] is None or bool(second["tokens"] <= first["tokens"] // 2)


_AT_WORK = {
    "710@kernel:layer_norm": ("device-side-assert", "CUDA error: device-side assert triggered"),
    "700@kernel:layer_norm": (
        "illegal-memory-access",
        "CUDA error: an illegal memory access was encountered",
    ),
    "719@kernel:layer_norm": ("illegal-memory-access", "CUDA error: unspecified launch failure"),
    "226@kernel:layer_norm": (
        "context-lost",
        "CUDA error: Invalid access of peer GPU memory over nvlink or",
    ),
    "716@kernel:layer_norm": ("context-lost", "CUDA error: misaligned address"),
    "911@kernel:layer_norm": (
        "context-lost",
        "CUDA error: an async error has occured in external entity",
    ),
    "999@kernel:layer_norm": ("cuda-error", "CUDA error: unknown error"),
    "1@kernel:layer_norm": ("cuda-error", "CUDA error: invalid argument"),
    "13@cublasLtMatmul 13@cublasSgemm_v2": (
        "cuda-library-failed",
        "CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm",
    ),
}
"""As above; each breaks one process, while it computes."""

_AT_THE_START = {
    "802@init": ("gpu-services-not-ready", "Unexpected error from cudaGetDeviceCount()"),
    "719@context": ("gpu-fault-before-work", "CUDA error: unspecified launch failure"),
    "999@init": ("cuda-does-not-start", "CUDA unknown error - this may be due to"),
}
"""As above; no text has been touched yet. With sentence-transformers the phase would be cuda_init."""


@pytest.mark.parametrize(
    ("faults", "phase"),
    [(_AT_WORK, "forward"), (_AT_THE_START, "model_load")],
    ids=["at work", "at the start"],
)
def test_what_passes_is_cured_by_the_next(
    gpu_workplace: GpuWorkplace, faults: dict[str, tuple[str, str]], phase: str
) -> None:
    """Errors of kernels, of cuBLAS and of a start: each is known by its own rule, costs one attempt
    and no row.
    """
    failed = run_with_a_fault_a_chunk(gpu_workplace, list(faults), **{"chunk.size": 2})
    wrong = {}
    for (fault, (rule, words)), each in zip(faults.items(), failed, strict=True):
        wrong[fault] = contradictions(each, rule)
        wrong[fault] += [] if words in each["reason"] and each["phase"] == phase else [str(each)]
    assert not any(wrong.values()), wrong
    assert len(gpu_workplace.named("waiting")) == sum(
        each["outcome"] == "gpu_busy" for each in failed
    )


def test_a_gpu_that_another_process_has_for_itself_is_waited_for(
    gpu_workplace: GpuWorkplace,
) -> None:
    """In exclusive mode the run waits while a neighbour has the GPU, and goes on when it leaves."""
    gpu_workplace.gpu.set(mode__0="exclusive")
    gpu_workplace.gpu.neighbour(0, GIB)
    gpu_workplace.write_texts(4)
    gpu_workplace.write_model_config()
    process = gpu_workplace.begin()
    wait_for(lambda: process.poll() is not None or gpu_workplace.named("waiting"), LIMIT_S)
    gpu_workplace.gpu.neighbours_leave()
    finish(process, LIMIT_S, code=0)
    failed = gpu_workplace.named("attempt_failed")
    assert failed
    assert not any(contradictions(each, "gpu-exclusive") for each in failed)
    assert {each["phase"] for each in failed} == {"cuda_init"}
    assert gpu_workplace.vectors().shape == (4, 64)


def test_a_gpu_that_is_busy_in_every_batch_is_not_waited_for_without_limit(
    gpu_workplace: GpuWorkplace,
) -> None:
    """Starts that succeed meanwhile do not renew `wait_timeout`: the run ends with 75, and blames
    no text.
    """
    gpu_workplace.gpu.fault("46", "kernel:layer_norm")
    gpu_workplace.write_texts(4)
    gpu_workplace.write_torch_config(**{"chunk.size": 2, "recovery.wait_timeout": 5})
    ended = gpu_workplace.ends(75)
    failed = gpu_workplace.named("attempt_failed")
    assert {(each["outcome"], each["phase"]) for each in failed} == {("gpu_busy", "forward")}
    assert "busy or unavailable" in failed[0]["reason"]
    assert "busy or unavailable" in ended.stderr
    assert not gpu_workplace.named("quarantined")


@dataclass(frozen=True)
class End:
    """How a run ends that cannot go on."""

    rule: str
    exit_code: int
    words: str
    """Torch's own, in part."""
    settings: dict[str, str] = field(default_factory=dict)
    """Further ones of the null GPU; `__` for a dot."""
    env: dict[str, str] = field(default_factory=dict)
    """The config's."""
    attempts: int = 1


_COUNT = "Unexpected error from cudaGetDeviceCount()"
_EXPANDABLE = {
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC": "1",
}
_NEIGHBOUR = {"neighbour": f"0:{GIB}"}
"""On a GPU where nobody else is there is nobody to wait for: the model is too large, 69 at once."""
_ENDS = {
    "100@init": End("no-gpu-visible", 69, "No CUDA GPUs are available"),
    "35@init": End("driver-too-old", 69, "The NVIDIA driver on your system is too old"),
    "803@init": End("driver-library-mismatch", 69, _COUNT),
    "802@init": End("gpu-services-not-ready", 69, _COUNT, attempts=2),
    "999@init": End("cuda-does-not-start", 69, "CUDA unknown error - this may be due to"),
    "46@context": End(
        "gpu-exclusive", 75, "CUDA-capable device(s) is/are busy or unavailable", attempts=2
    ),
    "2@context": End(
        "gpu-full-before-work", 75, "CUDA error: out of memory", _NEIGHBOUR, attempts=2
    ),
    "2@cudaMalloc": End(
        "gpu-full-before-work",
        75,
        "nvmlInit_v2_() INTERNAL ASSERT FAILED",
        {"nvml__init": "999", "smi": "ok", **_NEIGHBOUR},
        attempts=2,
    ),
    "719@context": End(
        "gpu-fault-before-work", 69, "CUDA error: unspecified launch failure", attempts=3
    ),
    "209@launch": End(
        "gpu-not-supported-by-torch", 69, "no kernel image is available for execution on the device"
    ),
    "801@launch": End("cuda-does-not-start", 69, "CUDA error: operation not supported"),
    "214@kernel:layer_norm": End(
        "gpu-ecc-error", 69, "CUDA error: uncorrectable ECC error encountered"
    ),
    "an unknown allocator option": End(
        "allocator-config",
        78,
        "no_such_option",
        env={"PYTORCH_CUDA_ALLOC_CONF": "no_such_option:1"},
    ),
    "expandable segments": End(
        "nvml-assert-expandable-segments",
        78,
        "INTERNAL ASSERT FAILED",
        {"nvml__init": "999", "smi": "ok"},
        _EXPANDABLE,
    ),
}
"""What all workers meet -> the end."""


@pytest.mark.parametrize("fault", _ENDS)
def test_what_every_worker_would_meet_ends_the_run(
    fault: str, make_gpu: Callable[..., NullGpu], bert: Path, tmp_path: Path
) -> None:
    """Driver, context, build and settings: the exit code is the handbook's, and the last words are
    its remedy.
    """
    end = _ENDS[fault]
    gpu = make_gpu(**end.settings)
    if "@" in fault:
        gpu.fault(*fault.split("@"))
    workplace = GpuWorkplace(tmp_path, gpu, bert)
    workplace.write_texts(4)
    workplace.write_torch_config(**{"chunk.size": 2, "recovery.wait_timeout": 0.1, "env": end.env})
    ended = workplace.run()
    failed = workplace.named("attempt_failed")
    wrong = [] if ended.returncode == end.exit_code else [f"exit code {ended.returncode}"]
    if len(failed) != end.attempts:
        wrong += [f"{len(failed)} attempts", ended.stderr]
    for each in failed:
        wrong += contradictions(each, end.rule, end.exit_code)
        wrong += [] if end.words in each["reason"] else [f"the reason is {each['reason']!r}"]
    (remedy,) = [rule.remedy for rule in RULES if rule.name == end.rule]
    wrong += [] if remedy in ended.stderr else [f"without the remedy: {ended.stderr}"]
    # Texts have nothing to do with it.
    wrong += ["taken apart"] if workplace.named("part_failed") else []
    assert wrong == []
