"""One entry of the taxonomy of faults: how a fault is recognised, what it means and what to do about it."""

import os
import re
from dataclasses import dataclass

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Cause, Phase

# format_size of CUDACachingAllocator.cpp: two decimals and a binary unit, or whole bytes.
_SIZE = r"(\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB)"
_UNIT_BYTES = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

_WANTED = re.compile(rf"CUDA out of memory\. Tried to allocate {_SIZE}")
# "capacty" is how torch 2.1 spells it; the second form is that of torch 2.0 and before.
_TOTAL = re.compile(rf"has a total capaci?ty of {_SIZE}|; {_SIZE} total capacity")
_FREE = re.compile(rf"of which {_SIZE} is free|; {_SIZE} free")
_THIS_PROCESS = re.compile(rf"this process has {_SIZE} memory in use")
_OTHER_PROCESS = re.compile(rf"\bProcess \d+ has {_SIZE} memory in use")
_ALLOWED = re.compile(rf"{_SIZE} allowed; ")
_ALLOCATED = re.compile(rf"{_SIZE} is allocated by PyTorch")
_UNALLOCATED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_RESERVED = re.compile(rf"; {_SIZE} reserved in total by PyTorch")

_NOBODYS_BYTES = 768 << 20
"""In use, and by no process that NVML names: what the driver keeps, and the windows of a desktop."""
_CONTEXT_BYTES = 512 << 20
"""Of a CUDA context with its libraries; torch's own count leaves it out."""


@dataclass(frozen=True, slots=True)
class OomFigures:
    """What the GPU's memory was at the time; figures of GiB are rounded to 0.01 of one."""

    wanted_bytes: int
    """Of the one allocation that failed; more may have been to come."""
    total_bytes: int
    free_bytes: int
    process_bytes: int | None
    """All that this process holds, as NVML says; None where it does not (no NVML, another PID namespace)."""
    reserved_bytes: int
    """What torch's allocator holds in this process."""
    others_named: bool = False
    """Whether NVML names other processes beside this one."""
    allowed_bytes: int | None = None
    """What torch's allocator may hold, where per_process_memory_fraction sets a limit."""

    @property
    def ours_bytes(self) -> int:
        """What this process holds, as well as is known."""
        if self.process_bytes is not None:
            return max(self.process_bytes, self.reserved_bytes)
        return self.reserved_bytes + min(_CONTEXT_BYTES, max(0, self.total_bytes - self.free_bytes))

    @property
    def others_bytes(self) -> int:
        """What other processes and the driver hold."""
        return max(0, self.total_bytes - self.free_bytes - self.ours_bytes)

    @property
    def larger_than_gpu(self) -> bool:
        """Whether it would not fit on a GPU that is ours alone; False also where that cannot be told (yet)."""
        if self.allowed_bytes is not None:
            return self.reserved_bytes + self.wanted_bytes > self.allowed_bytes
        if self.ours_bytes + self.wanted_bytes > self.total_bytes:
            return True
        # Where far more was free, it is in pieces, or was taken and given back meanwhile: no matter of size.
        full = self.free_bytes - self.wanted_bytes < self.total_bytes // 32
        return full and not self.others_named and self.others_bytes < _NOBODYS_BYTES


def read_oom(message: str) -> OomFigures | None:
    """The figures of a `torch.OutOfMemoryError`'s message; None where they are not all there."""
    wanted, total, free = (_bytes_in(pattern, message) for pattern in (_WANTED, _TOTAL, _FREE))
    if wanted is None or total is None or free is None or not total:
        return None
    reserved = _bytes_in(_RESERVED, message)
    if reserved is None:
        reserved = (_bytes_in(_ALLOCATED, message) or 0) + (_bytes_in(_UNALLOCATED, message) or 0)
    process = _bytes_in(_THIS_PROCESS, message)
    # Where this process is not named, another name can be its own: container and host count pids differently.
    others_named = process is not None and _OTHER_PROCESS.search(message) is not None
    return OomFigures(wanted, total, free, process, reserved, others_named, _bytes_in(_ALLOWED, message))


def _bytes_in(pattern: re.Pattern[str], message: str) -> int | None:
    found = pattern.search(message)
    if found is None:
        return None
    number, unit = (group for group in found.groups() if group is not None)
    return round(float(number) * _UNIT_BYTES[unit])


MACHINE = os.EX_UNAVAILABLE
"""Exit code 69 of `chunkvisor`: this machine can't do it."""
DISK = os.EX_IOERR
"""Exit code 74 of `chunkvisor`: disk full or failing."""
PASSING = os.EX_TEMPFAIL
"""Exit code 75 of `chunkvisor`: a passing cause."""
CONFIG = os.EX_CONFIG
"""Exit code 78 of `chunkvisor`: config, model or input is wrong."""

LOAD = (Phase.START, Phase.IMPORT, Phase.MODEL_LOAD)
"""No text has been touched yet: no row can be the cause."""
BEFORE_WORK = (*LOAD, Phase.TOKENIZE, Phase.READY, Phase.CUDA_INIT, Phase.WEIGHTS_COPY)
"""No batch has been on the device yet: a smaller one cannot help."""
AT_WORK = (Phase.FORWARD, Phase.WRITE, Phase.DONE)
"""The device has begun to compute."""
ON_TEXTS = (Phase.TOKENIZE, Phase.FORWARD)
"""The worker is handling texts: one of them can be the cause."""


_SPEAKERS = (
    r"(?:CUDA (?:driver )?error: |CUDA failed with error |CUDA failure |Unexpected error from cuda|cuDNN error: "
    r"|NVML: |NVIDIA-SMI has failed|Unable to determine the device handle for |The NVIDIA driver on your system "
    r"|Found no NVIDIA driver |\[enforce fail at |unable to open shared memory object |\[Errno -?\d{1,5}\] )"
)
"""How the driver, the libraries and the kernel begin what they say themselves."""
_LOG_SPEAKERS = (
    rf"\s*(?:what\(\): .*|[\w.]*(?:Error|Exception): (?:{_SPEAKERS}.*)?|libgomp: |\S*python[\d.]*: |{_SPEAKERS}.*)?"
)
"""What may stand before that in a line of a log: the class of an exception, or a program's name."""
_LIBRARIES = ("torch.", "cupy.", "cupy_backends.", "pynvml.", "onnxruntime.", "jaxlib.", "huggingface_hub.")
"""Their own exceptions never quote a text."""

_DECISIVE = frozenset(
    {
        *(Outcome.HARDWARE_FAULT, Outcome.SETUP, Outcome.GPU_BUSY, Outcome.DISK_FULL, Outcome.HUB),
        Outcome.DEVICE_FAULT,
    }
)
"""Outcomes that end a run, or hold it up: words that a text may have put into a message must not bring them about."""


@dataclass(frozen=True, slots=True)
class Sign:
    """What gives a fault away in one exception; everything that is set must hold."""

    classes: tuple[str, ...] = ()
    """Qualified class names, of the exception or of a base class; empty = any."""
    codes: tuple[int, ...] = ()
    """cudaError_t, as in torch.AcceleratorError.error_code."""
    errnos: tuple[int, ...] = ()
    http_statuses: tuple[int, ...] = ()
    pattern: str | None = None
    """Searched in the head of the message, advice lines dropped.

    Compiled by the first search, as `Rule.log`: every process of ours imports the rules, and few meet a fault.
    """

    def matches(self, cause: Cause, head: str, *, at_start: bool = False) -> bool:
        """Whether the exception shows the sign; `head` is its message as `taxonomy.head_of` leaves it.

        With `at_start`, its words count only where the driver or a library speaks from the beginning of the message:
        an encoder may quote a text behind words of its own. Classes that only a library has need no such proof.

        Where the exception bears a number and the sign lists numbers of that kind, the number alone decides: texts
        differ between releases, numbers do not. The text is for exceptions that bear none.
        """
        if self.classes and not set(self.classes).intersection((cause.name, *cause.bases)):
            return False
        numbers = (
            (self.codes, cause.error_code),
            (self.errnos, cause.errno),
            (self.http_statuses, cause.http_status),
        )
        for wanted, found in numbers:
            if wanted and found is not None:
                return found in wanted
        if self.pattern is not None:
            own = any(not name.startswith("builtins.") for name in self.classes) or cause.name.startswith(_LIBRARIES)
            if own or not at_start or re.match(rf"\s*{_SPEAKERS}", head):
                return re.search(self.pattern, head) is not None
            return re.match(self.pattern, head) is not None
        return not any(wanted for wanted, _ in numbers)


@dataclass(frozen=True, slots=True)
class Rule:
    """A fault that we know."""

    name: str
    """Stable identifier; users search the handbook for it."""
    outcome: Outcome
    cause: str
    """What happened, in a sentence or two for the person."""
    remedy: str
    """What to do, likewise."""
    signs: tuple[Sign, ...] = ()
    """Any of them suffices."""
    phases: tuple[Phase, ...] = ()
    """The rule holds in these only; empty = any."""
    log: str | None = None
    """Searched in the end of the log of a worker that left no record, `^` and `$` line by line."""
    returncodes: tuple[int, ...] = ()
    """Of a worker that left no record, as `Popen.returncode`: -n is death by signal n."""
    exit_code: int | None = None
    """With which `chunkvisor` ends if this stops the run; None = the outcome alone decides."""
    exit_code_alone: int | None = None
    """Of a GPU that had no room for the model: with which it ends where nobody else is on that GPU."""
    smaller_batch_helps: bool = False
    """The same work can succeed in smaller batches."""
    row_can_cause: bool = False
    """A row of the input can be the cause: taking the chunk apart makes sense."""
    if_ended: str = ""
    """What to do where it has ended the run, if more can be said than of every fault with its outcome."""

    @property
    def decisive(self) -> bool:
        """Whether it ends a run or holds it up, so that a text's words must not be taken for it."""
        return self.outcome in _DECISIVE or (self.outcome is Outcome.HOST_OOM and self.exit_code is not None)

    def matches(self, cause: Cause, phase: Phase, head: str) -> bool:
        """Whether one exception of a fault in `phase` falls under the rule; `head` as in `Sign.matches`."""
        if self.phases and phase not in self.phases:
            return False
        at_start = self.decisive and phase in ON_TEXTS
        return any(sign.matches(cause, head, at_start=at_start) for sign in self.signs)

    def found_in_log(self, end: str) -> re.Match[str] | None:
        """Where the end of a log tells of it: anywhere, unless it is decisive, which has to begin its line."""
        if self.log is None:
            return None
        found = re.finditer(self.log, end, re.MULTILINE)
        if not self.decisive or self.outcome is Outcome.DEVICE_FAULT:  # kernels print theirs in many ways
            return next(found, None)
        before = ((each, end[end.rfind("\n", 0, each.start()) + 1 : each.start()]) for each in found)
        return next((each for each, words in before if re.fullmatch(_LOG_SPEAKERS, words[-500:])), None)
