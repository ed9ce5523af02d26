"""What the readings of the doctor mean, as tables."""

import re
from dataclasses import replace
from typing import Any

import pytest

from chunkvisor.commands.doctor import examine, exit_code
from chunkvisor.commands.doctor.finding import Blame, Finding, State
from chunkvisor.commands.doctor.gpus import before_a_run, runs_on
from chunkvisor.commands.doctor.readings import (
    DriverReading,
    FolderReading,
    GpuProcess,
    GpuReading,
    HostReading,
    HubReading,
    JobReading,
    Readings,
    SampleReading,
    SmiReading,
    SourceReading,
    Wanted,
    Whereabouts,
)
from chunkvisor.config.model import OutputConfig
from chunkvisor.devices.gpu import ProbeReading
from chunkvisor.engine.ray.wire import Survey
from chunkvisor.errors import ExitCode
from chunkvisor.judge import Verdict
from chunkvisor.sources.child import SourceSize
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Cause, Fault, LinearKernel, Phase, ProbedGpu, ProbeReport
from chunkvisor_worker.contract.rule import Rule
from chunkvisor_worker.contract.rules import RULES

OK, NOTE, WARNING, FAULT = State
GIB = 1 << 30
UUID = "GPU-11111111-2222-3333-4444-555555555555"
OTHER_UUID = "GPU-99999999-2222-3333-4444-555555555555"


def failed(message: str, phase: Phase = Phase.CUDA_INIT, name: str = "builtins.RuntimeError") -> Fault:
    """A fault with one exception."""
    return Fault(phase, (Cause(name, ("builtins.Exception",), message),), "")


GPU = GpuReading(UUID, "NVIDIA A100", 40 * GIB, 3 << 20, "Default", ecc_uncorrectable=0, recovery_action="None")
REPORT = ProbeReport(
    Phase.DONE,
    {"torch": "2.14.1+cu130"},
    cuda="13.0",
    arch_list=("sm_80", "sm_90", "sm_100", "compute_100"),
    gpus=(ProbedGpu("NVIDIA A100", (8, 0), 40 * GIB, 39 * GIB),),
)
FOLDER = FolderReading("/data/work", 100 * GIB, 10**6)
GOOD = SampleReading(Verdict(Outcome.COMMITTED, "done"), dimension=384)
JOB = JobReading("some/model", Whereabouts.CACHED, workers=2, workdir=FOLDER, samples=(GOOD,))
WELL = Readings(
    wanted=Wanted.CUDA,
    chosen=(UUID,),
    smi=SmiReading(0, driver="580.65.06", cuda="13.0", gpus=(GPU,)),
    driver=DriverReading("580.65.06", ("/dev/nvidia0", "/dev/nvidiactl")),
    probe=ProbeReading(REPORT, 0),
    host=HostReading(8, 64 * GIB, 60 * GIB, 8 * GIB, None, "", 65536),
    hub=HubReading(FOLDER, has_token=True),
    job=JOB,
)
"""A machine and a job in perfect health."""

NO_CUDA = ProbeReading(replace(REPORT, gpus=(), fault=failed("Found no NVIDIA driver on your system")), 20)
NO_DRIVER = replace(WELL, chosen=(), smi=SmiReading(), driver=DriverReading(), probe=NO_CUDA)
WSL = replace(WELL, chosen=("0",), smi=SmiReading(), driver=DriverReading(None, ("/dev/dxg",)))


def with_gpu(**changes: Any) -> Readings:
    """WELL with another GPU."""
    return replace(WELL, smi=replace(WELL.smi, gpus=(replace(GPU, **changes),)))


def with_smi(**changes: Any) -> Readings:
    """WELL with another answer of nvidia-smi."""
    return replace(WELL, smi=replace(WELL.smi, **changes))


def with_report(**changes: Any) -> Readings:
    """WELL with another report of the probe."""
    return replace(WELL, probe=ProbeReading(replace(REPORT, **changes), 0))


def with_host(**changes: Any) -> Readings:
    """WELL with another machine."""
    return replace(WELL, host=replace(WELL.host, **changes))


def with_job(**changes: Any) -> Readings:
    """WELL with another job."""
    return replace(WELL, job=replace(JOB, **changes))


def first_disk(rows: int, *, exact: bool = False, **changes: Any) -> Readings:
    """WELL before the first run, with a source of so many rows, whose copy takes 100 bytes a row."""
    return with_job(sources=(SourceReading("o", size=SourceSize(rows, 100 * rows, exact)),), **changes)


def with_variables(**variables: str) -> Readings:
    """WELL with these variables in both environments."""
    return replace(WELL, own=variables, workers=variables)


def with_sample(outcome: Outcome, **changes: Any) -> Readings:
    """WELL with a sample that ended otherwise."""
    return with_job(samples=(SampleReading(Verdict(outcome, "why", "mend it", **changes)),))


def on_card(capability: tuple[int, int], dtype: str, model_type: str) -> Readings:
    """WELL on another GPU, with a model in that dtype."""
    gpus = (ProbedGpu("NVIDIA", capability, 40 * GIB, 39 * GIB),)
    return replace(with_job(dtype=dtype, model_type=model_type), probe=ProbeReading(replace(REPORT, gpus=gpus), 0))


def find(readings: Readings, check: str) -> list[Finding]:
    """The findings of one check."""
    return [finding for finding in examine(readings) if finding.check == check]


def worst(readings: Readings, check: str) -> Finding:
    """The finding of a check that matters most."""
    return max(find(readings, check), key=lambda finding: list(State).index(finding.state))


def test_a_template_that_is_probably_not_meant() -> None:
    """A backslash and an n in a template are warned of, with what to write instead."""
    template = OutputConfig.model_validate({"source": "a.csv", "template": r"{title}\n{body}"}).template_note

    finding = worst(with_job(sources=(SourceReading("o", note=template),)), "source")

    assert finding.state is State.WARNING
    assert finding.meaning.startswith("o: the template has a backslash and the letter n")
    assert r'"{title}\n{body}"' in finding.meaning
    assert OutputConfig.model_validate({"source": "a.csv", "template": "{title}\n{body}"}).template_note == ""


def test_a_well_machine_is_all_well() -> None:
    """With nothing wrong, every finding is `ok`, and the exit code is 0."""
    findings = examine(WELL)

    assert [finding for finding in findings if finding.state is not OK] == []
    assert {"driver", "nvml", "gpu-health", "gpu-memory", "torch", "torch-driver", "torch-gpu", "gpu-generation"} < {
        finding.check for finding in findings
    }
    assert exit_code(findings) is ExitCode.COMPLETE


MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"
STRANGER = GpuProcess(4711, "python", 30 * GIB)
SEGMENTS = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
NO_DEVICE = ("this machine has no GPU for this config: it has 0 visible GPUs", "check device")

REFUSED = replace(
    with_report(gpus=(), fault=failed("Unrecognized key 'foo' in CUDA allocator config.", name="builtins.ValueError")),
    workers={"PYTORCH_ALLOC_CONF": "foo:1"},
)

CASES: dict[str, tuple[Readings, str, State, str]] = {
    # driver and nvidia-smi
    "a cluster": (replace(WELL, cluster=Survey(3, 96, 24)), "cluster", OK, "3 nodes with 96 processors and 24 GPUs"),
    "a cluster without GPUs": (replace(WELL, cluster=Survey(3, 96, 0)), "cluster", WARNING, "would wait for a GPU"),
    "no cluster": (
        replace(WELL, cluster=Survey(problem="refused")),
        "cluster",
        FAULT,
        "no Ray cluster answers: refused",
    ),
    "no driver": (NO_DRIVER, "driver", FAULT, "no NVIDIA driver"),
    "no driver, no config": (replace(NO_DRIVER, wanted=Wanted.ANYTHING, job=None), "driver", NOTE, "no NVIDIA driver"),
    "config on the CPU": (replace(NO_DRIVER, wanted=Wanted.CPU), "gpu", NOTE, "asks for the CPU"),
    "wsl2 without nvidia-smi": (WSL, "nvml", WARNING, "nvidia-smi is not on PATH; CUDA works all the same"),
    "no device file, and cuda works": (
        replace(WSL, driver=DriverReading()),
        "nvml",
        WARNING,
        "CUDA works all the same",
    ),
    "container without GPUs": (
        replace(WELL, driver=DriverReading("580.65.06"), probe=NO_CUDA),
        "driver",
        FAULT,
        "no /dev/nvidia",
    ),
    "no permission on the device": (
        replace(WELL, driver=replace(WELL.driver, forbidden=("/dev/nvidia0",)), probe=NO_CUDA),
        "driver",
        FAULT,
        "cannot open /dev/nvidia0",
    ),
    "nvml broken, cuda works": (
        with_smi(returncode=18, line=MISMATCH, gpus=()),
        "nvml",
        WARNING,
        "CUDA works all the same",
    ),
    "nvml and cuda broken": (
        replace(
            with_report(
                gpus=(), fault=failed("Error 803: system has unsupported display driver / cuda driver combination")
            ),
            smi=SmiReading(18, MISMATCH),
        ),
        "nvml",
        WARNING,
        "different versions",
    ),
    "a GPU that computes a wrong product": (
        with_report(
            gpus=(), fault=failed("a product of matrices of ones sums up to 7", name="builtins.ArithmeticError")
        ),
        "torch-gpu",
        FAULT,
        "a product of matrices of ones",
    ),
    "the same, for a plug-in": (
        replace(
            with_report(gpus=(), fault=failed("a product of matrices of ones", name="builtins.ArithmeticError")),
            job=replace(JOB, whereabouts=Whereabouts.PLUGIN),
        ),
        "torch-gpu",
        WARNING,
        "a product of matrices of ones",
    ),
    "a CUDA error that no rule knows": (
        with_report(gpus=(), fault=failed("CUDA error: OS call failed or operation not supported on this OS")),
        "torch-gpu",
        FAULT,
        "OS call failed",
    ),
    "smi without permission": (
        replace(with_report(gpus=()), smi=SmiReading(4, "Insufficient Permissions")),
        "nvml",
        FAULT,
        "may not ask",
    ),
    "smi unknown code": (replace(with_report(gpus=()), smi=SmiReading(99)), "nvml", WARNING, "exit code 99"),
    "gpu lost": (replace(with_report(gpus=()), smi=SmiReading(15)), "nvml", FAULT, "fallen off the bus"),
    "smi hangs, cuda works": (with_smi(returncode=None, line="no answer within 20 s"), "nvml", WARNING, "hangs"),
    "smi hangs": (
        replace(with_report(gpus=()), smi=SmiReading(None, "no answer within 20 s")),
        "nvml",
        FAULT,
        "hangs",
    ),
    "smi hangs, no config": (
        replace(with_smi(returncode=None, line="no answer within 20 s"), wanted=Wanted.ANYTHING),
        "nvml",
        WARNING,
        "hangs",
    ),
    "smi not installed": (with_smi(returncode=None, gpus=()), "nvml", WARNING, "not on PATH"),
    "device not there": (replace(WELL, no_device=NO_DEVICE), "gpu", FAULT, "has no GPU for this config"),
    # CUDA_VISIBLE_DEVICES and MIG
    "visible all": (with_variables(CUDA_VISIBLE_DEVICES="0"), "visible-gpus", OK, "shows 1 GPU"),
    "visible by uuid": (with_variables(CUDA_VISIBLE_DEVICES="GPU-1111"), "visible-gpus", OK, "shows 1 GPU"),
    "visible none": (with_variables(CUDA_VISIBLE_DEVICES=""), "visible-gpus", FAULT, "hides every GPU"),
    "visible wrong": (with_variables(CUDA_VISIBLE_DEVICES="7"), "visible-gpus", FAULT, "'7' names no GPU"),
    "visible partly wrong": (with_variables(CUDA_VISIBLE_DEVICES="0,7"), "visible-gpus", WARNING, "'7' names no GPU"),
    "visible twice": (with_variables(CUDA_VISIBLE_DEVICES="0,0"), "visible-gpus", FAULT, "twice"),
    "visible mixed": (with_variables(CUDA_VISIBLE_DEVICES=f"0,{UUID}"), "visible-gpus", WARNING, "mixes"),
    "mig without slices": (with_gpu(mig=True), "mig", FAULT, "no slice"),
    "mig not chosen": (with_gpu(mig=True, mig_slices=2), "mig", WARNING, "one slice"),
    "mig chosen": (
        replace(with_gpu(mig=True, mig_slices=2), own={"CUDA_VISIBLE_DEVICES": "MIG-1"}, chosen=("MIG-1",)),
        "mig",
        OK,
        "slice",
    ),
    # health and memory
    "reset needed": (with_gpu(recovery_action="Reset"), "gpu-health", FAULT, "recovery action: Reset"),
    "drain p2p": (with_gpu(recovery_action="Drain P2P"), "gpu-health", WARNING, "Drain P2P"),
    "ecc errors": (with_gpu(ecc_uncorrectable=2), "gpu-health", WARNING, "2 uncorrectable memory errors"),
    "remap pending": (with_gpu(remap_pending=True), "gpu-health", WARNING, "waits for a reset"),
    "remap failed": (with_gpu(remap_failed=True), "gpu-health", FAULT, "could not be replaced"),
    "health unknown": (with_gpu(recovery_action="N/A", ecc_uncorrectable=None), "gpu-health", NOTE, "tells nothing"),
    "stranger": (
        with_gpu(used_bytes=30 * GIB, processes=(STRANGER,)),
        "gpu-memory",
        WARNING,
        "pid 4711 python (30.0 GiB)",
    ),
    "small stranger": (with_gpu(used_bytes=GIB, processes=(STRANGER,)), "gpu-memory", NOTE, "pid 4711"),
    "unseen stranger": (with_gpu(used_bytes=30 * GIB), "gpu-memory", WARNING, "cannot be seen from here"),
    "own worker": (
        with_gpu(used_bytes=30 * GIB, processes=(replace(STRANGER, is_worker=True),)),
        "gpu-memory",
        NOTE,
        "run of chunkvisor",
    ),
    "exclusive": (
        with_gpu(compute_mode="Exclusive_Process", processes=(STRANGER,)),
        "gpu-memory",
        FAULT,
        "one process at a time",
    ),
    "prohibited": (with_gpu(compute_mode="Prohibited"), "gpu-memory", FAULT, "forbids CUDA"),
    # torch
    "torch missing": (
        with_report(phase=Phase.IMPORT, versions={}, fault=failed("No module named 'torch'")),
        "torch",
        FAULT,
        "not installed",
    ),
    "torch hangs": (
        replace(WELL, probe=ProbeReading(replace(REPORT, phase=Phase.IMPORT), None)),
        "torch",
        FAULT,
        "hangs",
    ),
    "torch crashes": (
        replace(
            WELL,
            probe=ProbeReading(replace(REPORT, phase=Phase.FORWARD), -4, "Fatal Python error: Illegal instruction\n"),
        ),
        "torch",
        FAULT,
        "older than the build",
    ),
    "torch missing for a plug-in": (
        replace(
            with_job(whereabouts=Whereabouts.PLUGIN),
            probe=ProbeReading(ProbeReport(Phase.IMPORT, fault=failed("x")), 1),
        ),
        "torch",
        NOTE,
        "has to do without it",
    ),
    "cpu build": (with_report(cuda=None, gpus=()), "torch-gpu", FAULT, "build for the CPU only"),
    "cpu build, no config": (
        replace(with_report(cuda=None, gpus=()), wanted=Wanted.ANYTHING),
        "torch-gpu",
        WARNING,
        "CPU only",
    ),
    "rocm build": (with_report(cuda=None, hip="6.4", gpus=()), "torch-gpu", FAULT, "ROCm 6.4"),
    "driver too old": (
        replace(
            with_report(gpus=(), fault=failed("The NVIDIA driver on your system is too old (found version 12020).")),
            smi=replace(WELL.smi, cuda="12.2"),
        ),
        "torch-driver",
        FAULT,
        "driver is too old",
    ),
    "driver too old, as torch says": (
        with_report(gpus=(), fault=failed("The NVIDIA driver on your system is too old (found version 12020).")),
        "torch-gpu",
        FAULT,
        "older than the CUDA",
    ),
    "driver of the same major": (with_report(cuda="13.2"), "torch-driver", NOTE, "compatible"),
    "old driver with compatibility package": (with_smi(cuda="12.9"), "torch-driver", NOTE, "compatible"),
    "driver tells no cuda": (with_smi(cuda=""), "torch-gpu", OK, "computes on NVIDIA A100"),
    "cuda crashes": (
        replace(WELL, probe=ProbeReading(replace(REPORT, phase=Phase.CUDA_INIT, gpus=()), -11)),
        "torch-gpu",
        FAULT,
        "SIGSEGV",
    ),
    "gpu generation unknown to torch": (
        with_report(gpus=(ProbedGpu("Tesla P100", (6, 0), 16 * GIB, 15 * GIB),)),
        "gpu-generation",
        FAULT,
        "capability 6.0",
    ),
    "generation that the build lacks, for a plug-in": (
        replace(
            with_report(gpus=(ProbedGpu("NVIDIA GeForce GTX 1080", (6, 1), 8 * GIB, 8 * GIB),)),
            job=replace(JOB, whereabouts=Whereabouts.PLUGIN),
        ),
        "gpu-generation",
        WARNING,
        "capability 6.1",
    ),
    # variables
    "an allocator setting that torch refuses": (REFUSED, "allocator", FAULT, "has an option that torch does not take"),
    "the same, no config": (replace(REFUSED, wanted=Wanted.ANYTHING), "allocator", WARNING, "foo"),
    "an allocator setting that torch takes": (
        with_variables(PYTORCH_ALLOC_CONF="brand_new_key:1"),
        "allocator",
        OK,
        "torch takes PYTORCH_ALLOC_CONF=brand_new_key:1",
    ),
    "both allocator variables": (
        with_variables(PYTORCH_CUDA_ALLOC_CONF="backend:native", PYTORCH_ALLOC_CONF="backend:cudaMallocAsync"),
        "allocator",
        WARNING,
        "PYTORCH_CUDA_ALLOC_CONF wins",
    ),
    "both allocator variables alike": (
        with_variables(PYTORCH_CUDA_ALLOC_CONF="backend:native", PYTORCH_ALLOC_CONF="backend:native"),
        "allocator",
        NOTE,
        "both set",
    ),
    "expandable segments, nvml broken": (
        replace(
            with_smi(returncode=18, line=MISMATCH), workers={**SEGMENTS, "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC": "1"}
        ),
        "allocator",
        WARNING,
        "asks NVML",
    ),
    "expandable segments without ipc": (
        replace(
            with_smi(returncode=18, line=MISMATCH), workers={**SEGMENTS, "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC": "0"}
        ),
        "allocator",
        OK,
        "",
    ),
    "folklore": (with_variables(PYTORCH_NO_NVML="1"), "environment", NOTE, "no part of torch reads it"),
    "uncached, from the shell": (
        replace(WELL, own={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
        "environment",
        NOTE,
        "workers do not get it",
    ),
    "uncached, from the config": (
        replace(WELL, workers={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
        "environment",
        WARNING,
        "very slow",
    ),
    "blocking launches": (with_variables(CUDA_LAUNCH_BLOCKING="1"), "environment", WARNING, "slow"),
    "blocking launches off": (with_variables(CUDA_LAUNCH_BLOCKING="0"), "environment", OK, "stands in the way"),
    "stub library": (with_variables(LD_LIBRARY_PATH="/usr/local/cuda/lib64/stubs"), "environment", WARNING, "stubs"),
    "tf32 override": (with_variables(NVIDIA_TF32_OVERRIDE="0"), "environment", NOTE, "last digits"),
    # machine
    "small shm": (with_host(shm_bytes=64 << 20), "shm", NOTE, "64.0 MiB"),
    "small shm, plug-in": (
        replace(with_host(shm_bytes=64 << 20), job=replace(JOB, whereabouts=Whereabouts.PLUGIN)),
        "shm",
        WARNING,
        "plug-in",
    ),
    "no shm": (with_host(shm_bytes=None), "shm", NOTE, "no /dev/shm"),
    "low fds": (with_host(files=256), "files", WARNING, "a process may open 256 files, perhaps too few"),
    "very low fds": (with_host(files=64), "files", FAULT, "too few"),
    "no fd limit": (with_host(files=None), "files", OK, "no limit"),
    "low pids": (with_host(tasks_left=100, tasks_limit="ulimit -u"), "processes", WARNING, "ulimit -u"),
    "very low pids": (with_host(tasks_left=20, tasks_limit="pids.max"), "processes", FAULT, "20 more processes"),
    "little memory": (with_host(memory_available_bytes=GIB // 2), "memory", FAULT, "killed by the kernel"),
    "memory for one worker of two": (
        replace(with_job(weights_bytes=3 * GIB), host=replace(WELL.host, memory_available_bytes=5 * GIB)),
        "memory",
        WARNING,
        "2 workers at once",
    ),
    "memory unknown": (with_host(memory_bytes=None), "memory", NOTE, "does not tell how much"),
    "disk too small": (with_job(rows=10**9), "disk", FAULT, "1,000,000,000 rows of 384 dimensions"),
    "disk large enough": (with_job(rows=1000), "disk", OK, "need up to"),
    "disk, dimension from an earlier run": (
        with_job(rows=10**9, dimension=1536, samples=()),
        "disk",
        FAULT,
        "1536 dimensions",
    ),
    "disk nearly full": (with_job(workdir=replace(FOLDER, free_bytes=1 << 20)), "disk", WARNING, "1.0 MiB free"),
    "disk, of a complete job": (with_job(rows=0), "disk", OK, "all outputs are complete"),
    "disk, estimated": (
        first_disk(10**6),
        "disk",
        OK,
        "about 1,000,000 rows need up to 95.4 MiB for the",
    ),
    "disk may be too small for what is estimated": (first_disk(45_000_000), "disk", WARNING, "for vectors of 384"),
    "disk is too small for half of it": (first_disk(10**8), "disk", FAULT, "286.2 GiB for vectors of 384 dimensions"),
    "disk is too small for counted rows": (first_disk(45_000_000, exact=True), "disk", FAULT, "; 45,000,000 rows need"),
    "disk is too small to read the source": (first_disk(10**10, samples=()), "disk", FAULT, "and more for the vectors"),
    "workdir not writable": (with_job(workdir=replace(FOLDER, writable=False)), "disk", FAULT, "cannot be written"),
    "no inodes": (with_job(workdir=replace(FOLDER, free_files=3)), "disk", FAULT, "3 more files"),
    # model
    "cache not writable, needed": (
        replace(with_job(whereabouts=Whereabouts.HUB), hub=HubReading(replace(FOLDER, writable=False))),
        "hub-cache",
        FAULT,
        "cannot be written",
    ),
    "cache not writable, not needed": (
        replace(WELL, hub=HubReading(replace(FOLDER, writable=False))),
        "hub-cache",
        NOTE,
        "downloaded",
    ),
    "no token": (replace(WELL, hub=HubReading(FOLDER)), "hub-token", NOTE, "no access token"),
    "bfloat16 on a CPU without": (
        replace(with_job(dtype="bfloat16", cpu_has_bfloat16=False), wanted=Wanted.CPU),
        "dtype",
        WARNING,
        "slower than float32",
    ),
    "bfloat16 on a card without": (on_card((7, 5), "bfloat16", "bert"), "dtype", WARNING, "does not have"),
    "float16 on a card with bfloat16": (on_card((8, 0), "float16", "qwen2"), "dtype", WARNING, "overflow to NaN"),
    "bfloat16 on a card with it": (
        on_card((9, 0), "bfloat16", "qwen2"),
        "dtype",
        OK,
        "suits NVIDIA (compute capability 9.0)",
    ),
    "float32 on a card without bfloat16": (
        on_card((7, 5), "float32", "qwen2"),
        "dtype",
        OK,
        "overflow to NaN in float16",
    ),
    "float32, where less would do": (on_card((7, 5), "float32", "bert"), "dtype", OK, "model.dtype float16 takes half"),
    "model to be downloaded": (with_job(whereabouts=Whereabouts.HUB, samples=()), "model", NOTE, "downloads it"),
    "model to be downloaded, hub out of reach": (
        with_job(whereabouts=Whereabouts.HUB, no_download=Verdict(Outcome.HUB, "no route"), samples=()),
        "model",
        FAULT,
        "does not give it: no route",
    ),
    "model that the hub does not have": (
        with_job(whereabouts=Whereabouts.HUB, no_download=Verdict(Outcome.SETUP, "no such model"), samples=()),
        "model",
        FAULT,
        "does not give it: no such model",
    ),
    "model to be downloaded, offline": (
        replace(with_job(whereabouts=Whereabouts.HUB, samples=()), hub=HubReading(FOLDER, offline=True)),
        "model",
        FAULT,
        "forbids",
    ),
    "model nowhere": (
        with_job(whereabouts=Whereabouts.NOWHERE, problem="there is no model folder /m", samples=()),
        "model",
        FAULT,
        "/m",
    ),
    "wrong tokenizer": (with_sample(Outcome.SETUP, rule="tokenizer-mismatch"), "tokenizer", FAULT, "why"),
    "worker crashed": (with_sample(Outcome.CRASHED), "encoding", FAULT, "failed: crashed: why"),
    "bad vectors": (with_sample(Outcome.BAD_OUTPUT), "encoding", FAULT, "bad_output"),
    "vectors differ": (with_job(samples=(replace(GOOD, difference=0.1),)), "encoding", FAULT, "differ by 0.1"),
    "random weights": (with_job(samples=(replace(GOOD, elsewhere=0.9),)), "encoding", FAULT, "each has other weights"),
    "weights that are the same": (with_job(samples=(replace(GOOD, elsewhere=1e-4),)), "encoding", OK, "same vector"),
    "other vectors than expected": (
        with_job(expected=("e.jsonl", 2), samples=(replace(GOOD, unexpected="cosine 0.2"),)),
        *("expect", FAULT, "cosine 0.2"),
    ),
    "expected vectors": (with_job(expected=("e.jsonl", 2)), "expect", OK, "2 texts in e.jsonl"),
    "vectors differ by rounding": (with_job(samples=(replace(GOOD, difference=1e-6),)), "encoding", OK, "rounding"),
    "texts do not matter": (with_job(samples=(replace(GOOD, tells_apart=False),)), "encoding", WARNING, "same vector"),
    "packed weights": (
        with_job(samples=(replace(GOOD, linear=LinearKernel("onednn", 0.48)),)),
        "linear-layers",
        OK,
        "most of a model's work, by the library oneDNN, the faster one here: it takes 48 % of the time of torch's own",
    ),
    "torch's own products": (
        with_job(samples=(replace(GOOD, linear=LinearKernel("torch", 1.02)),)),
        "linear-layers",
        OK,
        "torch's own code, the faster one here: oneDNN would take 102 % of its time",
    ),
    "a kernel that was laid down": (
        with_job(samples=(replace(GOOD, linear=LinearKernel("torch")),)),
        "linear-layers",
        OK,
        "by torch's own code",
    ),
    "a run is at work": (with_job(busy_pid=99, samples=()), "encoding", NOTE, "pid 99"),
    "config wrong": (replace(WELL, config_problem=("c.yaml:3: no", "correct this")), "config", FAULT, "c.yaml:3"),
}


@pytest.mark.parametrize("readings", [WSL, replace(WSL, driver=DriverReading())])
def test_a_missing_nvidia_smi_is_no_fault_where_cuda_works(readings: Readings) -> None:
    """A job can be done on such a machine, and the doctor ends with 0."""
    found = examine(readings)
    assert not [each for each in found if each.state is FAULT]
    assert exit_code(found) == 0


@pytest.mark.parametrize(("readings", "check", "state", "words"), CASES.values(), ids=CASES.keys())
def test_what_readings_mean(readings: Readings, check: str, state: State, words: str) -> None:
    """Each reading gives its check the state and the words of the table, and a mend where one is needed."""
    finding = worst(readings, check)

    assert finding.state is state
    assert words in finding.meaning
    assert finding.mend or state not in (WARNING, FAULT)


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        (with_gpu(recovery_action="Reset"), ExitCode.MACHINE),
        (with_job(whereabouts=Whereabouts.NOWHERE, samples=()), ExitCode.CONFIG),
        (with_sample(Outcome.SETUP, rule="weights-missing", exit_code=78), ExitCode.CONFIG),
        (with_sample(Outcome.SETUP, rule="driver-too-old", exit_code=69), ExitCode.MACHINE),
        (with_sample(Outcome.CRASHED), ExitCode.MACHINE),
        (replace(with_sample(Outcome.SETUP, exit_code=78), host=replace(WELL.host, files=10)), ExitCode.MACHINE),
        (with_gpu(ecc_uncorrectable=5), ExitCode.COMPLETE),
    ],
)
def test_exit_code(readings: Readings, expected: ExitCode) -> None:
    """69 for a fault of the machine, also beside one of the config; 78 for the config's alone; 0 without a fault."""
    assert exit_code(examine(readings)) is expected


def test_a_bad_allocator_setting_of_the_config_is_the_configs_fault() -> None:
    """Who wrote the setting is to blame for it."""
    assert worst(REFUSED, "allocator").blame is Blame.MACHINE
    readings = replace(REFUSED, from_config=frozenset({"PYTORCH_ALLOC_CONF"}))
    assert worst(readings, "allocator").blame is Blame.CONFIG


def test_other_gpus_than_the_chosen_one_do_not_matter() -> None:
    """A broken GPU that the job does not use is not reported."""
    broken = replace(GPU, uuid=OTHER_UUID, recovery_action="Reset")
    readings = with_smi(gpus=(GPU, broken))

    assert exit_code(examine(readings)) is ExitCode.COMPLETE
    assert exit_code(examine(replace(readings, chosen=(UUID, OTHER_UUID)))) is ExitCode.MACHINE


@pytest.mark.parametrize(
    ("capability", "arch_list", "fits"),
    [
        ((8, 0), ["sm_80"], True),
        ((8, 9), ["sm_80", "sm_90"], True),
        ((8, 0), ["sm_86"], False),
        ((9, 0), ["sm_80"], False),
        ((9, 0), ["sm_90a"], True),
        ((9, 1), ["sm_90a"], False),
        ((12, 0), ["sm_90", "compute_90"], True),
        ((6, 0), ["sm_70", "compute_70"], False),
        ((10, 3), ["sm_100f"], True),
        ((12, 0), ["sm_120"], True),
        ((8, 0), [], False),
        ((8, 0), ["gfx90a"], False),
    ],
)
def test_code_for_a_generation(capability: tuple[int, int], arch_list: list[str], fits: bool) -> None:
    """Machine code serves its own major generation from its minor on, PTX everything later."""
    assert runs_on(capability, arch_list) is fits


MENDS = {
    "The chunk is tried again, then bisected; update tokenizers.": "update tokenizers.",
    "The chunk is tried again in a new process; if it returns, look the error up in NVIDIA's documentation.": (
        "look the error up in NVIDIA's documentation."
    ),
    "The chunk is tried again, then with a smaller batch, then row by row.": "",
    "Check free space and the model's files; the chunk is tried again.": "Check free space and the model's files",
    "Update the driver, or use a torch for CUDA 12.x.": "Update the driver, or use a torch for CUDA 12.x",
}


@pytest.mark.parametrize(("remedy", "mend"), MENDS.items())
def test_what_to_do_before_a_run(remedy: str, mend: str) -> None:
    """What a run does by itself is left out of a rule's remedy."""
    assert before_a_run(remedy).rstrip(".") == mend.rstrip(".")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_no_mend_speaks_of_a_run_under_way(rule: Rule) -> None:
    """Of no rule the doctor says what happens to a chunk, which there is none of."""
    assert not re.search(r"tried again|run goes on|bisected|next worker", before_a_run(rule.remedy))
