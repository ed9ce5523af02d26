"""Finds the rule that a fault falls under, and reads figures of GPU memory from messages."""

import re
from signal import SIGABRT, Signals

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import Cause, Fault, Phase
from chunkvisor_worker.contract.rules import ENCODER_BROKEN, OF_GPUS, ON_TEXTS, RULES, Rule, Sign

# of a message: bounds the time of every pattern, whatever a plug-in puts there
HEAD_CHARS = 16 << 10
# of a log: behind the reason of an abort come the stacks of C++ and Python, and all modules
TAIL_CHARS = 32 << 10
LINE_CHARS = 700  # of the line for the person, which may have the beginning of a server's reply

# torch ends its messages with advice that quotes other faults' names (CUDAMiscFunctions.cpp,
# CUDAException.cpp); 2.14 and later append lines of the driver, which tell of other calls too:
# nothing after them counts.
_ADVICE = re.compile(
    r"^(?:CUDA kernel errors might be|For debugging consider passing|Compile with "
    r"`TORCH_USE_CUDA_DSA`"
    r"|For more detailed error information, run with CUDA_LOG_FILE|Search for `cudaError)[^\n]*"
    r"|The CUDA driver logged these messages(?s:.*)",
    re.MULTILINE,
)
_FRAME = re.compile(r'^  File "([^"\n]+)", line (\d+), in ', re.MULTILINE)
_CONTROL = re.compile(r"\x1b\[[\d;]{0,20}[A-Za-z]|[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

# Outcomes that end a run, or hold it up: words that a text may have put into a message must not
# bring them about.
_GRAVE = {
    Outcome.HARDWARE_FAULT,
    Outcome.DEVICE_FAULT,
    Outcome.SETUP,
    Outcome.GPU_BUSY,
    Outcome.DISK_FULL,
    Outcome.HUB,
}
# How the driver, the libraries and the kernel begin what they say themselves.
_SPEAKERS = (
    r"(?:CUDA (?:driver )?error: |CUDA failed with error |CUDA failure |Unexpected error from "
    r"cuda|cuDNN error: "
    r"|NVML: |NVIDIA-SMI has failed|Unable to determine the device handle for |The NVIDIA driver "
    r"on your system "
    r"|Found no NVIDIA driver |\[enforce fail at |unable to open shared memory object |\[Errno "
    r"-?\d{1,5}\] )"
)
# Their own exceptions never quote a text.
_LIBRARIES = (
    "torch.",
    "cupy.",
    "cupy_backends.",
    "pynvml.",
    "onnxruntime.",
    "jaxlib.",
    "huggingface_hub.",
)


@frozen
class Diagnosis:
    """The rule that a fault falls under, and the line that shows it."""

    rule: Rule
    headline: str
    """One plain line: the exception by which the rule was found, or the line of the log."""
    cause: Cause | None = None  # that exception; None if there is only a log or a return code


@frozen
class Known:
    """What is known of the place of a fault; it outweighs what a message says."""

    on_cpu: bool = False  # the worker was given no GPU
    has_space: bool = False  # the disks that it writes to are not full


NOTHING = Known()


def diagnose(fault: Fault, known: Known = NOTHING) -> Diagnosis:
    """Find the first rule that an exception of the chain shows. Always finds one, never raises."""
    heads = [(cause, _ADVICE.sub("", cause.message[:HEAD_CHARS])) for cause in fault.chain]
    for rule in RULES:
        decisive = rule.outcome in _GRAVE or (
            rule.outcome is Outcome.HOST_OOM and rule.exit_code is not None
        )
        at_start = decisive and fault.phase in ON_TEXTS
        for cause, head in heads or [(Cause("unknown", (), ""), "")]:
            if not _is_possible(rule, fault.phase, known, cause):
                continue
            if any(_shows(sign, cause, head, at_start=at_start) for sign in rule.signs):
                first = next((line.strip() for line in head.splitlines() if line.strip()), "")
                # our own words need no class
                ours = first and cause.name.startswith("chunkvisor_worker.")
                name = cause.name.rpartition(".")[2]
                place = _place(fault.traceback) if rule.name == ENCODER_BROKEN else ""
                line = first if ours else f"{name}: {first}" if first else name
                return Diagnosis(rule, _plain(place + line), cause)
    raise AssertionError("the last rule takes everything")


def diagnose_log(
    tail: str, returncode: int, phase: Phase | None = None, known: Known = NOTHING
) -> Diagnosis | None:
    """Find what ended a worker that left no record; None if nothing shows it.

    `tail` is the end of its log, `returncode` as `Popen` has it, `phase` that of the last beat.
    """
    if returncode == 0:
        return None
    end = tail[-TAIL_CHARS:]
    # Before an abort, the log has its reason. Before another signal it has not: a signal is sent
    # from outside, or by the kernel at once.
    explained = returncode > 0 or returncode == -SIGABRT
    rules = [rule for rule in RULES if _is_possible(rule, phase, known)]
    for rule in rules:
        told = explained or returncode in rule.returncodes
        found = re.search(rule.log, end, re.MULTILINE) if told and rule.log else None
        if found:
            first = end.rfind("\n", 0, found.start()) + 1
            return Diagnosis(rule, _plain(end[first:].partition("\n")[0]))
    for rule in rules:
        if returncode in rule.returncodes and (returncode < 0 or phase not in ON_TEXTS):
            how = (
                f"ended by {Signals(-returncode).name}"
                if returncode < 0
                else f"ended with exit code {returncode}"
            )
            return Diagnosis(rule, how)
    return None


def _is_possible(rule: Rule, phase: Phase | None, known: Known, cause: Cause | None = None) -> bool:
    """Say whether the rule can hold by what is known; the class of a `cause` is known as well."""
    if rule.phases and phase is not None and phase not in rule.phases:
        return False
    # Out of memory only makes batches smaller: for that, words are enough.
    if known.on_cpu and rule.name in OF_GPUS and rule.outcome is not Outcome.GPU_OOM:
        return cause is not None and cause.name.startswith(_LIBRARIES)
    if known.has_space and rule.outcome is Outcome.DISK_FULL:
        return cause is not None and "builtins.OSError" in (cause.name, *cause.bases)
    return True


def _shows(sign: Sign, cause: Cause, head: str, *, at_start: bool) -> bool:
    """Say whether the exception shows the sign; `head` is its message without advice.

    With `at_start`, the message must begin with the pattern, or with what the driver or a library
    writes: an encoder may quote a text further on. Exceptions of a library's own classes never
    quote a text.
    """
    if sign.classes and not set(sign.classes).intersection((cause.name, *cause.bases)):
        return False
    numbers = (cause.error_code, cause.errno, cause.http_status)
    number = next((each for each in numbers if each is not None), None)
    if sign.numbers and number is not None:
        return number in sign.numbers
    if sign.pattern is None:
        return not sign.numbers
    own = any(not name.startswith("builtins.") for name in sign.classes) or cause.name.startswith(
        _LIBRARIES
    )
    if own or not at_start or re.match(rf"\s*{_SPEAKERS}", head):
        return re.search(sign.pattern, head) is not None
    return re.match(sign.pattern, head) is not None


def _place(traceback: str) -> str:
    """Return the innermost line of the plug-in's file, such as `enc.py, line 3: `, or nothing."""
    frames = _FRAME.findall(traceback.rpartition("/chunkvisor_worker/")[2])
    return next(
        (f"{file}, line {line}: " for file, line in reversed(frames) if file == frames[0][0]), ""
    )


def _plain(line: str) -> str:
    plain = _CONTROL.sub(" ", line).strip()
    return plain if len(plain) <= LINE_CHARS else f"{plain[:LINE_CHARS]}…"


# format_size of CUDACachingAllocator.cpp: two decimals and a binary unit, or whole bytes.
_SIZE = r"(\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB)"
_UNIT_BYTES = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
# Memory that is in use without a process that NVML names: the driver's own, windows of a desktop.
UNATTRIBUTED_BYTES = 768 << 20
_CONTEXT_BYTES = 512 << 20  # of a CUDA context with its libraries; torch's own count leaves it out


@frozen
class OomFigures:
    """What a `torch.OutOfMemoryError` says of the GPU's memory, in steps of 0.01 GiB."""

    wanted_bytes: int  # of the one allocation that failed; more may have been to come
    total_bytes: int
    free_bytes: int
    process_bytes: int | None  # all that this process holds, as NVML says; None if it does not
    reserved_bytes: int  # what torch's allocator holds in this process
    others_named: bool = False  # whether NVML names other processes next to this one

    @property
    def ours_bytes(self) -> int:
        """Return what this process holds, as well as is known."""
        if self.process_bytes is not None:
            return max(self.process_bytes, self.reserved_bytes)
        return self.reserved_bytes + min(_CONTEXT_BYTES, max(0, self.total_bytes - self.free_bytes))

    @property
    def others_bytes(self) -> int:
        """Return what other processes and the driver hold."""
        return max(0, self.total_bytes - self.free_bytes - self.ours_bytes)

    @property
    def larger_than_gpu(self) -> bool:
        """Say whether it does not fit even on a GPU without other processes; False if unknown."""
        if self.ours_bytes + self.wanted_bytes > self.total_bytes:
            return True
        # If far more was free, the memory is in pieces, or was given back meanwhile.
        full = self.free_bytes - self.wanted_bytes < self.total_bytes // 32
        return full and not self.others_named and self.others_bytes < UNATTRIBUTED_BYTES


def read_oom(message: str) -> OomFigures | None:
    """Read the message of a `torch.OutOfMemoryError`; None if it does not have all figures."""

    def figure(form: str) -> int | None:
        found = re.search(form.replace("SIZE", _SIZE), message)
        return round(float(found[1]) * _UNIT_BYTES[found[2]]) if found else None

    wanted = figure(r"CUDA out of memory\. Tried to allocate SIZE")
    total = figure("has a total capacity of SIZE")
    free = figure("of which SIZE is free")
    process = figure("this process has SIZE memory in use")
    if wanted is None or not total or free is None:
        return None
    reserved = (figure("SIZE is allocated by PyTorch") or 0) + (
        figure("SIZE is reserved by PyTorch but") or 0
    )
    # If this process is not named, another name can be its own: container and host count pids
    # differently.
    others_named = (
        process is not None and figure(r"\bProcess \d+ has SIZE memory in use") is not None
    )
    return OomFigures(wanted, total, free, process, reserved, others_named)
