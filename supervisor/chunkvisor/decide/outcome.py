"""Turns the evidence of an ended attempt into a verdict.

Pure. The same judgement serves a worker that has just ended and an
attempt that is found at a resume.
"""

import re
import signal
from dataclasses import dataclass
from enum import StrEnum

from chunkvisor.decide.verdict import ONE_ROW, Verdict
from chunkvisor_worker.contract.exits import OUTCOME_OF_EXIT, Outcome, WorkerExit
from chunkvisor_worker.contract.messages import Beat, Fault, Limits, Phase, Result
from chunkvisor_worker.contract.rule import BEFORE_WORK, CONFIG, DISK, ON_TEXTS, OomFigures, read_oom
from chunkvisor_worker.contract.taxonomy import Diagnosis, diagnose, diagnose_log


class EndedBy(StrEnum):
    """What the supervisor itself had to do with the end of a worker."""

    ITSELF = "itself"
    STOP = "stop"
    """The run was asked to stop."""
    HANG = "hang"
    """It made no progress."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of an ended attempt."""

    returncode: int | None
    """As subprocess gives it: negative for a signal; STATUS_LOST or NODE_LOST. None = found at a resume."""
    ended_by: EndedBy = EndedBy.ITSELF
    ended_why: str = ""
    """In words, where the supervisor ended it, or its machine was lost."""
    result: Result | None = None
    """Only if it answers the attempt's own spec."""
    vectors_problem: str | None = None
    """What is wrong with the vectors that the result speaks of; None = they are verified."""
    bad_rows: tuple[int, ...] = ()
    """Positions of the rows that are wrong, where nothing else is."""
    other_dimension: bool = False
    """Whether what is wrong is that they have not the dimension of those before: one text's doing, or all of theirs."""
    fault: Fault | None = None
    beat: Beat | None = None
    log_tail: str = ""
    oom_kills: int = 0
    """Rise of the cgroup's oom_kill counter while the attempt lived."""
    disk_free_bytes: int | None = None
    limits: Limits = ONE_ROW
    """Batch limits that the attempt ran under."""
    on_cpu: bool = False
    """The worker was given no GPU."""


STATUS_LOST = 1 << 16
"""Return code of a worker whose exit status nobody knows, its parent having died first; no process can have it."""

NODE_LOST = STATUS_LOST + 1
"""Return code of a worker whose machine, or the way to it, was lost."""

_LEAVES_A_RECORD = frozenset({Outcome.SETUP, Outcome.GPU_BUSY, Outcome.HARDWARE_FAULT, Outcome.HUB})
"""Outcomes that end a run or hold it up, and never keep a worker from writing its record; a full disk may."""

_OTHER_DIMENSION = (
    "One model gives vectors of one dimension: correct the encoder. If the chunks that are done are the wrong ones, "
    "begin anew with --from-scratch."
)

NEARLY_FULL_BYTES = 16 << 20
"""Less free space than this beside a SIGBUS means that a mapped write met a full disk."""


def judge(evidence: Evidence) -> Verdict:
    """The verdict; total: every evidence has one."""
    code = evidence.returncode
    phase = evidence.beat.phase if evidence.beat is not None else None
    at_texts = phase in ON_TEXTS
    if evidence.result is not None and evidence.vectors_problem is None:
        # torch can crash at interpreter exit with the work done (pytorch#84756): the result beats the status.
        return _verdict(evidence, Outcome.COMMITTED, "done")
    if evidence.ended_by is EndedBy.STOP:
        return _verdict(evidence, Outcome.INTERRUPTED, "stopped with the run", asked_for=True)
    if evidence.ended_by is EndedBy.HANG:
        stack = _stack_head(evidence.log_tail)
        reason = f"the run ended it: {evidence.ended_why}{stack}"
        return _verdict(evidence, Outcome.HUNG, reason, row_can_cause=at_texts)
    if code == NODE_LOST:
        return _verdict(evidence, Outcome.LOST, evidence.ended_why or "its machine was lost")
    if evidence.result is not None:
        reason = f"its vectors {evidence.vectors_problem}"
        # Else the file as a whole is wrong (count, type, digest): that is no text's doing.
        of_texts = bool(evidence.bad_rows) or evidence.other_dimension
        remedy, code_if_ended = ("", None) if not evidence.other_dimension else (_OTHER_DIMENSION, CONFIG)
        return _verdict(
            evidence, Outcome.BAD_OUTPUT, reason, remedy=remedy, exit_code=code_if_ended, row_can_cause=of_texts
        )
    if evidence.fault is not None:
        # A drill on the CPU plays the faults of a GPU: they are seen as a GPU's.
        return _diagnosed(evidence, diagnose(evidence.fault, on_cpu=evidence.on_cpu and not evidence.fault.provoked))
    if code is None:
        return _verdict(evidence, Outcome.INTERRUPTED, "left behind by an earlier run", asked_for=True)
    if code == WorkerExit.ORPHANED or -code in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        reason = f"was asked to stop, not by the run ({describe_exit(code)})"
        return _verdict(evidence, Outcome.INTERRUPTED, reason, row_can_cause=at_texts)
    if code == -signal.SIGKILL and evidence.oom_kills > 0:
        reason = "was killed by the kernel because the machine, or its memory limit, ran out of memory"
        return _verdict(
            evidence,
            Outcome.HOST_OOM,
            reason,
            remedy="give it more memory, or smaller batches and chunks",
            row_can_cause=True,
        )
    free_bytes = evidence.disk_free_bytes
    if code == -signal.SIGBUS and free_bytes is not None and free_bytes < NEARLY_FULL_BYTES:
        return _verdict(evidence, Outcome.DISK_FULL, "a write met a full disk (SIGBUS)", remedy="free some space")
    diagnosis = diagnose_log(evidence.log_tail, code, phase=phase, on_cpu=evidence.on_cpu)
    if diagnosis is not None:
        return _diagnosed(evidence, diagnosis)
    if code == 0 and not at_texts:
        return _verdict(evidence, Outcome.BAD_OUTPUT, "ended with exit code 0 but left no result")
    outcome = OUTCOME_OF_EXIT.get(code, Outcome.CRASHED)
    if at_texts and outcome in _LEAVES_A_RECORD:
        outcome = Outcome.CRASHED  # such a worker has written why: whoever ended this one did not ask it
    means = f" (a worker's own: {outcome})" if code in OUTCOME_OF_EXIT and outcome is not Outcome.CRASHED else ""
    ends_with = DISK if outcome is Outcome.DISK_FULL else None  # its record did not fit there
    reason = f"ended with {describe_exit(code)}{means} and left no record"
    return _verdict(evidence, outcome, reason, exit_code=ends_with, row_can_cause=code < 0 or at_texts)


def describe_exit(code: int) -> str:
    """An exit status in words: `exit code 3`, `signal 9 (SIGKILL)`."""
    if code == STATUS_LOST:
        return "an exit status that was lost with its template process"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def _stack_head(log_tail: str) -> str:
    """Where a hung worker was, from the stack that faulthandler wrote when SIGABRT came."""
    _, found, stack = log_tail.rpartition("(most recent call first):\n")
    lines = [line.strip() for line in stack.splitlines()[:3]]
    # The worker's own frames say nothing about the place, unless there is no other.
    frames = [line for line in lines if line.startswith("File ")]
    frames = [line for line in frames if "/chunkvisor_worker/" not in line] or frames[:1]
    return "; it was at " + ", called from ".join(frames) if found and frames else ""


_FRAME = re.compile(r'^ *(File "([^"\n]+)", line \d+, in [^\n]+)', re.MULTILINE)
_NOT_THEIRS = re.compile(r"/(?:site-packages|dist-packages|chunkvisor_worker|python3\.\d+)/|^<")


def _raised_at(traceback: str) -> str:
    """The last frame of a traceback that is neither a package's nor our worker's: where a person looks first."""
    theirs = [found[1] for found in _FRAME.finditer(traceback) if not _NOT_THEIRS.search(found[2])]
    return theirs[-1] if theirs else ""


def _diagnosed(evidence: Evidence, diagnosis: Diagnosis) -> Verdict:
    rule = diagnosis.rule
    return _verdict(
        evidence,
        rule.outcome,
        f"{rule.cause.rstrip('.')}: {diagnosis.headline}" if diagnosis.headline else rule.cause,
        remedy=rule.remedy,
        rule=rule.name,
        exit_code=rule.exit_code,
        smaller_batch_helps=rule.smaller_batch_helps,
        row_can_cause=rule.row_can_cause,
        figures=read_oom(diagnosis.cause.message) if diagnosis.cause is not None else None,
    )


def _verdict(
    evidence: Evidence,
    outcome: Outcome,
    reason: str,
    *,
    remedy: str = "",
    rule: str = "",
    exit_code: int | None = None,
    smaller_batch_helps: bool = True,
    row_can_cause: bool = False,
    asked_for: bool = False,
    figures: OomFigures | None = None,
) -> Verdict:
    beat, fault = evidence.beat, evidence.fault
    phase = fault.phase if fault else beat.phase if beat else None
    if phase in BEFORE_WORK and phase is not Phase.TOKENIZE:
        row_can_cause = False
    return Verdict(
        outcome,
        reason,
        remedy,
        rule,
        exit_code,
        smaller_batch_helps,
        row_can_cause,
        evidence.bad_rows if outcome is Outcome.BAD_OUTPUT else (),
        asked_for,
        evidence.limits,
        (fault and fault.batch_rows) or (beat.batch_rows if beat else 0),
        (fault and fault.batch_tokens) or (beat.batch_tokens if beat else 0),
        phase,
        (fault.rows_done if fault else 0) or (beat.rows_done if beat else 0),
        figures,
        evidence.on_cpu,
        _raised_at(fault.traceback) if fault else "",
    )
