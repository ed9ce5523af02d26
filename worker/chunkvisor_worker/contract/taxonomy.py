"""Tells what a fault is, by the tables of `rules`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from signal import SIGABRT, Signals

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Cause, Fault, Phase
from chunkvisor_worker.contract.rule import AT_WORK, ON_TEXTS, Rule
from chunkvisor_worker.contract.rules import OF_GPUS, RULES

HEAD_CHARS = 16 << 10
"""How much of a message is looked at: bounds the time of every pattern, whatever a plug-in puts there."""
TAIL_CHARS = 32 << 10
"""Of the end of a log: behind the reason of an abort come torch's C++ stack, Python's own, and the list of extension
modules, 15,000 characters with the smallest of models."""
LINE_CHARS = 500
"""The line for the person is no longer."""

# torch ends its messages with advice that quotes other faults' names (CUDAMiscFunctions.cpp, CUDAException.cpp).
_ADVICE = re.compile(
    r"^(?:CUDA kernel errors might be|For debugging consider passing|Compile with `TORCH_USE_CUDA_DSA`"
    r"|For more detailed error information, run with CUDA_LOG_FILE|Search for `cudaError)[^\n]*",
    re.MULTILINE,
)
_DRIVER_LOG = re.compile(r"The CUDA driver logged these messages")
"""torch 2.14 and later append lines of the driver, which tell of other calls too: nothing after it counts."""
_EXPLAINED_BY_LOG = frozenset((SIGABRT,))
"""Signals that say less than the reason printed before them: a library that gives up. With any other signal the log
tells of another matter: some are sent by others, and the kernel's come at once, without a word."""
_CONTROL = re.compile(r"\x1b\[[\d;]{0,20}[A-Za-z]|[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a fault is."""

    rule: Rule
    headline: str
    """One plain line: the exception by which the rule was found, or the line of the log."""
    cause: Cause | None = None
    """That exception; None where there is only a log or a return code."""

    @property
    def outcome(self) -> Outcome:
        """What the attempt ends as, if nothing weighs more."""
        return self.rule.outcome


def diagnose(fault: Fault, *, on_cpu: bool = False) -> Diagnosis:
    """The first rule that any exception of the chain falls under; never raises, always finds one."""
    heads = [(cause, head_of(cause.message)) for cause in fault.chain] or [(Cause("unknown", (), ""), "")]
    for rule in _rules(fault.phase, on_cpu=on_cpu):
        for cause, head in heads:
            if rule.matches(cause, fault.phase, head):
                return Diagnosis(rule, _line(cause, head), cause)
    raise AssertionError("the last rule takes everything")


def diagnose_log(tail: str, returncode: int, *, phase: Phase | None = None, on_cpu: bool = False) -> Diagnosis | None:
    """What ended a worker that left no record, by the end of its log and `Popen.returncode`.

    None where they do not tell: for a plain exit without a known text, and for success. Texts go before return codes,
    since an abort says less than the reason that was printed before it; but not before other signals, whose reason
    is the signal itself. `phase` is that of the last beat: an exit code of a worker that was at texts is theirs.
    """
    if returncode == 0:
        return None
    end = tail[-TAIL_CHARS:]
    rules = _rules(phase, on_cpu=on_cpu)
    explained = returncode > 0 or -returncode in _EXPLAINED_BY_LOG
    for rule in rules:
        elsewhere = rule.phases and phase is not None and phase not in rule.phases
        told = (explained or returncode in rule.returncodes) and not elsewhere
        if told and (found := rule.found_in_log(end)):
            return Diagnosis(rule, _plain(_line_around(end, found.start())))
    for rule in rules:
        if returncode in rule.returncodes and (returncode < 0 or phase not in ON_TEXTS):
            return Diagnosis(rule, _ended_by(returncode))
    return None


def _rules(phase: Phase | None, *, on_cpu: bool) -> Sequence[Rule]:
    """Those that can hold; in a run on the CPU none that speaks of a GPU, unless it leads to the text in question."""
    if not on_cpu:
        return RULES
    at_texts = phase is None or phase in (*AT_WORK, *ON_TEXTS)
    return [rule for rule in RULES if rule.name not in OF_GPUS or (rule.row_can_cause and at_texts)]


def head_of(message: str) -> str:
    """What of a message may be matched: the beginning, without torch's advice and the driver's log."""
    return _ADVICE.sub("", _DRIVER_LOG.split(message[:HEAD_CHARS], maxsplit=1)[0])


def _line(cause: Cause, head: str) -> str:
    name = cause.name.rpartition(".")[2]
    first = next((line for line in head.splitlines() if line.strip()), "")
    if first and cause.name.startswith("chunkvisor_worker."):
        return _plain(first.strip())  # our own words need no class
    return _plain(f"{name}: {first.strip()}" if first else name)


def _line_around(text: str, position: int) -> str:
    stop = text.find("\n", position)
    return text[text.rfind("\n", 0, position) + 1 : stop if stop >= 0 else None]


def _ended_by(returncode: int) -> str:
    return f"ended by {Signals(-returncode).name}" if returncode < 0 else f"ended with exit code {returncode}"


def _plain(line: str) -> str:
    plain = _CONTROL.sub(" ", line).strip()
    return plain if len(plain) <= LINE_CHARS else f"{plain[:LINE_CHARS]}…"
