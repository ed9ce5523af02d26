"""Findings on environment variables. Pure: both the command's own environment and that of its workers are handed in."""

from collections.abc import Iterator

from chunkvisor.commands.doctor.finding import Blame, Finding, State
from chunkvisor.commands.doctor.readings import Readings, Wanted
from chunkvisor.commands.doctor.torchbuild import ALLOCATOR_RULE, rule_of

ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Both work in torch 2.9 and later; the first wins where both are set (seen with 2.14)."""
UNREAD = ("PYTORCH_NO_NVML", "C10_DISABLE_NVML", "CUDA_DISABLE_NVML", "C10_CUDA_USE_NVML")
"""No library of torch 2.14 holds these names."""
_UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
_SEGMENTS_IPC = "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC"
_TF32 = "NVIDIA_TF32_OVERRIDE"
READ = (
    *ALLOCATOR, *UNREAD, _UNCACHED, _SEGMENTS_IPC, _TF32,
    "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "LD_LIBRARY_PATH",
)  # fmt: skip
"""The variables that are looked at; no other is handed in, so that none can be shown by accident."""

_NO_FLAG = ("", "0", "false", "off", "no", "n", "f")


def check_variables(readings: Readings) -> Iterator[Finding]:
    """Findings `allocator` and `environment`."""
    found = [*_check_allocator(readings), *_check_others(readings)]
    yield from found or [Finding("environment", State.OK, "no environment variable stands in the way")]


def _check_allocator(readings: Readings) -> Iterator[Finding]:
    check, given = "allocator", {name: readings.workers[name] for name in ALLOCATOR if readings.workers.get(name)}
    report = readings.probe.report
    if given and report is not None and report.gpus and rule_of(readings.probe) != ALLOCATOR_RULE:
        yield Finding(check, State.OK, f"torch takes {', '.join(f'{name}={value}' for name, value in given.items())}")
    if len(given) == 2:
        state = State.WARNING if len(set(given.values())) > 1 else State.NOTE
        meaning = f"{' and '.join(ALLOCATOR)} are both set; {ALLOCATOR[0]} wins, and the other is ignored"
        yield Finding(check, state, meaning, f"unset {ALLOCATOR[1]}")
    segments = any("expandable_segments:True" in value.replace(" ", "") for value in given.values())
    nvml_broken = readings.smi.returncode != 0 or any(gpu.mig for gpu in readings.smi.gpus)
    if segments and nvml_broken and readings.workers.get(_SEGMENTS_IPC) != "0" and readings.wanted is not Wanted.CPU:
        meaning = "expandable_segments:True asks NVML at its first allocation, which does not work here"
        blame = Blame.CONFIG if _SEGMENTS_IPC in readings.from_config else Blame.MACHINE
        yield Finding(check, State.WARNING, meaning, f"set {_SEGMENTS_IPC}=0", blame)


def _check_others(readings: Readings) -> Iterator[Finding]:
    check, own, workers = "environment", readings.own, readings.workers
    if unread := [name for name in UNREAD if name in workers]:
        meaning = f"{' and '.join(unread)} set: no part of torch reads it, so it neither helps nor harms"
        yield Finding(check, State.NOTE, meaning, f"unset {' '.join(unread)}")
    if workers.get(_UNCACHED, "0") != "0":
        meaning = f"{_UNCACHED} is set in the config's env: every allocation asks the driver, which is very slow"
        yield Finding(check, State.WARNING, meaning, "remove it from env")
    elif _UNCACHED in own and _UNCACHED not in workers:
        yield Finding(check, State.NOTE, f"{_UNCACHED} is set here; workers do not get it, since it is very slow")
    if any("stubs" in part.split("/") for part in workers.get("LD_LIBRARY_PATH", "").split(":")):
        meaning = "LD_LIBRARY_PATH has a folder named stubs: CUDA's stub library, made for building, may be loaded"
        yield Finding(check, State.WARNING, meaning, "remove that folder from LD_LIBRARY_PATH")
    if readings.wanted is Wanted.CPU:
        return
    if workers.get("CUDA_LAUNCH_BLOCKING", "").lower() not in _NO_FLAG:
        meaning = "CUDA_LAUNCH_BLOCKING is on: the GPU waits after every kernel, which is slow"
        yield Finding(check, State.WARNING, meaning, "unset it, unless you are looking for a CUDA fault")
    if _TF32 in workers:
        meaning = f"{_TF32}={workers[_TF32]} changes the last digits of the vectors; a workdir is bound to it"
        yield Finding(check, State.NOTE, meaning)
