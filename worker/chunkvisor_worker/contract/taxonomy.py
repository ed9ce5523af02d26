"""Tells what a fault is, by the tables of `rules`."""

import re
from dataclasses import dataclass
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM, Signals

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Cause, Fault
from chunkvisor_worker.contract.rule import Rule
from chunkvisor_worker.contract.rules import RULES

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
_ASKED_TO_END = frozenset((SIGKILL, SIGINT, SIGTERM, SIGHUP))
"""Signals that others send: what the log says has nothing to do with the death."""
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


def diagnose(fault: Fault) -> Diagnosis:
    """The first rule that any exception of the chain falls under; never raises, always finds one."""
    heads = [(cause, head_of(cause.message)) for cause in fault.chain] or [(Cause("unknown", (), ""), "")]
    for rule in RULES:
        for cause, head in heads:
            if rule.matches(cause, fault.phase, head):
                return Diagnosis(rule, _line(cause, head), cause)
    raise AssertionError("the last rule takes everything")


def diagnose_log(tail: str, returncode: int) -> Diagnosis | None:
    """What ended a worker that left no record, by the end of its log and `Popen.returncode`.

    None where they do not tell: for a plain exit without a known text, and for success. Texts go before return codes,
    since an abort says less than the reason that was printed before it.
    """
    if returncode == 0:
        return None
    end = tail[-TAIL_CHARS:]
    if -returncode not in _ASKED_TO_END:
        for rule in RULES:
            found = re.search(rule.log, end, re.MULTILINE) if rule.log else None
            if found:
                return Diagnosis(rule, _plain(_line_around(end, found.start())))
    for rule in RULES:
        if returncode in rule.returncodes:
            return Diagnosis(rule, _ended_by(returncode))
    return None


def head_of(message: str) -> str:
    """What of a message may be matched: the beginning, without torch's advice and the driver's log."""
    return _ADVICE.sub("", _DRIVER_LOG.split(message[:HEAD_CHARS], maxsplit=1)[0])


def _line(cause: Cause, head: str) -> str:
    name = cause.name.rpartition(".")[2]
    first = next((line for line in head.splitlines() if line.strip()), "")
    return _plain(f"{name}: {first.strip()}" if first else name)


def _line_around(text: str, position: int) -> str:
    stop = text.find("\n", position)
    return text[text.rfind("\n", 0, position) + 1 : stop if stop >= 0 else None]


def _ended_by(returncode: int) -> str:
    return f"ended by {Signals(-returncode).name}" if returncode < 0 else f"ended with exit code {returncode}"


def _plain(line: str) -> str:
    plain = _CONTROL.sub(" ", line).strip()
    return plain if len(plain) <= LINE_CHARS else f"{plain[:LINE_CHARS]}…"
