"""Findings on environment variables, and on the allocator settings of torch in particular.

Pure: it never reads the environment; both the command's own and that of its workers are handed in.
"""

import difflib
import re
from collections.abc import Callable, Iterator

from chunkvisor.commands.doctor.finding import Blame, Finding, State
from chunkvisor.commands.doctor.gpus import severity
from chunkvisor.commands.doctor.readings import Readings, Wanted

ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Both work in torch 2.9 and later; the first wins where both are set (seen with 2.14)."""
UNREAD = ("PYTORCH_NO_NVML", "C10_DISABLE_NVML", "CUDA_DISABLE_NVML", "C10_CUDA_USE_NVML")
"""No library of torch 2.14 holds these names."""
_UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
_SEGMENTS_IPC = "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC"
READ = (
    *ALLOCATOR, *UNREAD, _UNCACHED, _SEGMENTS_IPC,
    "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "LD_LIBRARY_PATH", "NVIDIA_TF32_OVERRIDE",
)  # fmt: skip
"""The variables that are looked at; no other is handed in, so that none can be shown by accident."""

_NO_FLAG = ("", "0", "false", "off", "no", "n", "f")
_ENTRY = re.compile(r"([^:,\[\]]*)(?::(\[[^\]]*\]|[^:,\[\]]*))?(?:,|$)")


def check_variables(readings: Readings) -> Iterator[Finding]:
    """Findings `allocator` and `environment`."""
    found = [*_check_allocator(readings), *_check_others(readings)]
    if not found:
        found.append(Finding("environment", State.OK, "no variable of the environment stands in the way"))
    yield from found


def allocator_problems(value: str) -> list[str]:
    """What torch would refuse in an allocator setting; the keys and rules are those of torch 2.14.

    The form is `key:value,key:value`; a list as value is `[256:1,512:2]`.
    """
    text = value.replace(" ", "")  # torch skips blanks
    if wrong := next((sign for sign in "=;" if sign in text), None):
        return [f"{wrong!r} is not understood: settings are written key:value,key:value"]
    problems: list[str] = []
    position = 0
    while position < len(text):
        match = _ENTRY.match(text, position)
        if match is None or match.end() == position:
            return [*problems, f"{text[position:]!r} is not understood: settings are written key:value,key:value"]
        problems += _entry_problems(match[1], match[2])
        position = match.end()
    return problems


def _entry_problems(key: str, value: str | None) -> list[str]:
    rule = _KEYS.get(key)
    if key == "expandable_segments_handle_type":
        return [f"{key} is what torch itself recommends in a message, but refuses as unknown"]
    if rule is None:
        near = difflib.get_close_matches(key, _KEYS, 1)
        return [f"{key or 'an empty setting'} is not known" + (f"; did you mean {near[0]}?" if near else "")]
    if value is None:
        return [f"{key} has no value; write {key}:…"]
    wanted = rule(value)
    return [f"{key} is {value!r}, and must be {wanted}"] if wanted else []


def _check_allocator(readings: Readings) -> Iterator[Finding]:
    given = {name: readings.workers[name] for name in ALLOCATOR if readings.workers.get(name)}
    report = readings.probe.report
    # torch has read the same setting in the probe: what it took there is no fault, whatever this table says.
    accepted = report is not None and bool(report.gpus)
    for name, value in given.items():
        blame = Blame.CONFIG if name in readings.from_config else Blame.MACHINE
        if problems := allocator_problems(value):
            state = State.NOTE if accepted else severity(readings.wanted)
            meaning = f"{name}={value}: " + "; ".join(problems)
            meaning += ". The installed torch took it all the same" if accepted else ". Every worker would fail on it"
            yield Finding("allocator", state, meaning, f"correct {name}, or unset it", blame)
        else:
            yield Finding("allocator", State.OK, f"{name}={value} has nothing that torch would refuse")
    if len(given) == 2:
        state = State.WARNING if len(set(given.values())) > 1 else State.NOTE
        meaning = f"{' and '.join(ALLOCATOR)} are both set; {ALLOCATOR[0]} wins, and the other is ignored"
        yield Finding("allocator", state, meaning, f"unset {ALLOCATOR[1]}")
    segments = any("expandable_segments:True" in value.replace(" ", "") for value in given.values())
    if segments and readings.workers.get(_SEGMENTS_IPC) != "0":
        broken = readings.smi.returncode != 0 or any(gpu.mig for gpu in readings.smi.gpus)
        if broken and readings.wanted is not Wanted.CPU:
            meaning = "expandable_segments:True asks NVML at its first allocation, which does not work here"
            blame = Blame.CONFIG if _SEGMENTS_IPC in readings.from_config else Blame.MACHINE
            yield Finding("allocator", State.WARNING, meaning, f"set {_SEGMENTS_IPC}=0", blame)


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
    if workers.get("CUDA_LAUNCH_BLOCKING", "").lower() not in _NO_FLAG and readings.wanted is not Wanted.CPU:
        meaning = "CUDA_LAUNCH_BLOCKING is on: the GPU waits after every kernel, which is slow"
        yield Finding(check, State.WARNING, meaning, "unset it, unless you hunt a CUDA fault")
    if any("stubs" in part.split("/") for part in workers.get("LD_LIBRARY_PATH", "").split(":")):
        meaning = "LD_LIBRARY_PATH has a folder named stubs: CUDA's stub library, made for building, may be loaded"
        yield Finding(check, State.WARNING, meaning, "remove that folder from LD_LIBRARY_PATH")
    if "NVIDIA_TF32_OVERRIDE" in workers and readings.wanted is not Wanted.CPU:
        meaning = f"NVIDIA_TF32_OVERRIDE={workers['NVIDIA_TF32_OVERRIDE']}: it changes the last digits of the vectors, "
        meaning += "and belongs to what a workdir is bound to"
        yield Finding(check, State.NOTE, meaning)


def _flag(value: str) -> str:
    return "" if value in ("True", "False") else "True or False, in this spelling"


def _whole(value: str) -> str:
    return "" if value.isdecimal() else "a whole number"


def _split_mb(value: str) -> str:
    return "" if value.isdecimal() and int(value) >= 20 else "a whole number of 20 or more"


def _fraction(value: str) -> str:
    return "" if re.fullmatch(r"\d*\.?\d+", value) and 0 < float(value) < 1 else "a number between 0 and 1"


def _share(value: str) -> str:
    return "" if re.fullmatch(r"\d*\.?\d+", value) and 0 < float(value) <= 1 else "a number above 0, 1 at most"


def _power(value: str) -> str:
    numbers = re.findall(r"(?:^|:)(\d+)(?=[,\]]|$)", value)
    fits = bool(numbers) and all(number == "0" or int(number).bit_count() == 1 for number in numbers)
    return "" if fits else "a power of 2, or a list such as [256:1,512:2,>:8]"


def _backend(value: str) -> str:
    return "" if value in ("native", "cudaMallocAsync") else "native or cudaMallocAsync"


_KEYS: dict[str, Callable[[str], str]] = {
    "backend": _backend,
    "expandable_segments": _flag,
    "garbage_collection_threshold": _fraction,
    "graph_capture_record_stream_reuse": _flag,
    "large_segment_size_mb": _whole,
    "max_non_split_rounding_mb": _whole,
    "max_split_size_mb": _split_mb,
    "per_process_memory_fraction": _share,
    "pinned_free_catch_all": _flag,
    "pinned_max_cached_size_mb": _whole,
    "pinned_max_round_threshold_mb": _whole,
    "pinned_num_register_threads": _whole,
    "pinned_reserve_segment_size_mb": _whole,
    "pinned_use_background_threads": _flag,
    "pinned_use_cuda_host_register": _flag,
    "release_lock_on_cudamalloc": _flag,
    "roundup_power2_divisions": _power,
    "throw_on_cudamalloc_oom": _flag,
}
"""Keys of torch 2.14, and what a value must be where it is not that; an empty text where it is."""
