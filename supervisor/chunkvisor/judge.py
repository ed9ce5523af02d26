"""Judges attempts.

Whether a living worker still makes progress, and what became of one that has ended. Pure.
"""

import signal
from dataclasses import replace
from enum import Enum, StrEnum

from chunkvisor.config.model import RecoveryConfig
from chunkvisor_worker.contract.exits import Outcome, WorkerExit
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import Beat, Fault, Limits, Phase, Result
from chunkvisor_worker.contract.rules import BEFORE_WORK, CONFIG, DISK, NO_ROOM, ON_TEXTS
from chunkvisor_worker.contract.taxonomy import (
    Diagnosis,
    OomFigures,
    diagnose,
    diagnose_log,
    read_oom,
)

# pause before the second try; it doubles with each further one, up to the other
BACKOFF_S, BACKOFF_MAX_S = (
    0.5,
    60.0,
)
# return code of a worker whose exit status is not known; no process can have it
STATUS_LOST = 1 << 16
NODE_LOST = STATUS_LOST + 1  # return code of a worker whose machine, or the way to it, was lost
# with less free space, a SIGBUS means that a mapped write met a full disk
NEARLY_FULL_BYTES = 16 << 20
ONE_ROW = Limits(rows=1)


class OtherProcesses(Enum):
    """Who else holds memory of the attempt's device."""

    UNKNOWN = "unknown"  # it was not looked at, or it is not a GPU
    NONE = "none"
    NEW = "new"  # others, who were not there when the run began and hold what was missing
    SIBLING = "sibling"  # another worker of this run


def backoff_s(tries: int) -> float:
    """Say how long to pause after so many failures."""
    return float(min(BACKOFF_MAX_S, BACKOFF_S * 2 ** max(0, tries - 1)))


def pause_s(waited_s: float, limit_s: float) -> float:
    """Say how long to pause in a wait that has lasted so long.

    Seconds at first, a minute later, not past the limit.
    """
    return min(BACKOFF_MAX_S, 1 + waited_s / 10, max(0.1, limit_s - waited_s))


# --- a living worker

_WORKING = (Phase.FORWARD, Phase.WRITE, Phase.DONE)


@frozen
class Pulse:
    """A worker's signs of life, timed by the parent's own clock.

    The worker's may lie or stand still.
    """

    started_s: float  # when the start-up time began to count
    changed_s: float  # when the last new beat was seen
    beat: Beat | None = None

    def seen(self, beat: Beat | None, now_s: float) -> "Pulse":
        """The pulse after the beat file was read.

        None, or the beat seen before, is no sign of life.
        """
        if beat is None or (self.beat is not None and beat.seq == self.beat.seq):
            return self
        return replace(self, beat=beat, changed_s=now_s)

    def let_go(self, now_s: float, waited_s: float) -> "Pulse":
        """The pulse when the gate opens after `waited_s` at it.

        Start-up time continues from there.
        """
        return replace(self, started_s=self.started_s + waited_s, changed_s=now_s)

    @property
    def phase(self) -> Phase:
        """The phase last heard of."""
        return self.beat.phase if self.beat else Phase.START

    def overdue(self, now_s: float, recovery: RecoveryConfig) -> str:
        """Why the worker, which does not wait at the gate, is to be ended.

        Empty while there is no reason.
        """
        silent_s = now_s - self.changed_s
        age_s = now_s - self.started_s
        if self.phase in _WORKING:
            too_long = silent_s > recovery.stall_timeout
            return (
                f"no progress for {silent_s:.0f} s in phase {self.phase} (stall_timeout)"
                if too_long
                else ""
            )
        if age_s > recovery.startup_timeout:
            return (
                f"no batch begun {age_s:.0f} s after its start (phase {self.phase}, "
                f"startup_timeout)"
            )
        return ""


# --- one that has ended

# Outcomes that leave nothing behind on a GPU, and do not come from it.
_NOT_OF_GPU = (
    Outcome.COMMITTED,
    Outcome.BAD_INPUT,
    Outcome.BAD_OUTPUT,
    Outcome.DISK_FULL,
    Outcome.HUB,
    Outcome.LOST,
)


@frozen
class Verdict:
    """What became of an attempt, and what that means for the next."""

    outcome: Outcome
    reason: str  # one sentence for the person
    remedy: str = ""
    rule: str = ""
    """Which row of the taxonomy, if one matched; docs/reference/failures.md has an entry for
    each."""
    exit_code: int | None = None
    """The run's, if this fault ends it; None = the policy's own for the outcome."""
    smaller_batch_helps: bool = True
    """False if the memory that ran out has nothing to do with batches."""
    row_can_cause: bool = False
    bad_rows: tuple[int, ...] = ()
    """Positions, in the attempt, of rows with bad vectors, if all others are good."""
    asked_for: bool = False  # an interruption that the parent itself brought about
    limits: Limits = ONE_ROW
    batch_rows: int = 0
    batch_tokens: int = 0
    phase: Phase | None = None
    rows_done: int = 0  # texts that had their vectors before it happened
    wait_s: float = 0.0  # what a server, or the encoder, asked to wait before the next try
    figures: OomFigures | None = None
    """Of the GPU's memory, if torch's message of running out of it has them."""
    on_cpu: bool = False  # the worker was given no GPU

    @property
    def others_hold_memory(self) -> bool:
        """Whether others are seen to hold more of the GPU's memory than this worker did."""
        figures = self.figures
        return (
            figures is not None
            and figures.others_named
            and figures.others_bytes > figures.ours_bytes
        )

    @property
    def see(self) -> str:
        """The handbook's entry about it.

        Its rule, or what became of the attempt if no rule knew it.
        """
        return self.rule or str(self.outcome)

    @property
    def before_first_batch(self) -> bool:
        """Whether no batch had begun, so that no text can be the cause.

        Tokenizing touches texts: a tokenizer that dies may do so over one of them.
        """
        return self.phase in BEFORE_WORK and self.phase is not Phase.TOKENIZE

    @property
    def weights_did_not_fit(self) -> bool:
        """Whether the GPU had no room for the model, whoever held it."""
        return self.rule == NO_ROOM

    @property
    def can_touch_gpu(self) -> bool:
        """Whether a worker that had a GPU may have left something behind on it, or failed by it."""
        return self.outcome not in _NOT_OF_GPU and not self.asked_for

    @property
    def blameless(self) -> bool:
        """Whether it says nothing of texts, config or devices, however often it comes."""
        return self.asked_for or self.outcome is Outcome.LOST


class EndedBy(StrEnum):
    """What the parent itself had to do with the end of a worker."""

    ITSELF = "itself"
    STOP = "stop"  # the run was asked to stop
    HANG = "hang"  # it made no progress


@frozen
class Evidence:
    """All that is known of an ended attempt."""

    returncode: int | None
    """As subprocess gives it; STATUS_LOST or NODE_LOST; None = found at a resume."""
    ended_by: EndedBy = EndedBy.ITSELF
    ended_why: str = ""  # in words, if the parent ended it, or its machine was lost
    result: Result | None = None  # only if it answers the attempt's own spec
    vectors_problem: str | None = None
    """Of the vectors that the result speaks of; None = they are verified."""
    bad_rows: tuple[int, ...] = ()  # positions of the rows that are wrong, if nothing else is
    other_dimension: bool = False
    """They have not the dimension of those before: one text's doing, or all of theirs."""
    fault: Fault | None = None
    beat: Beat | None = None
    log_tail: str = ""
    oom_kills: int = 0  # rise of the cgroup's oom_kill counter while the attempt lived
    disk_free_bytes: int | None = None
    limits: Limits = ONE_ROW  # batch limits that the attempt ran under
    on_cpu: bool = False  # the worker was given no GPU


_OTHER_DIMENSION = (
    "One model gives vectors of one dimension: correct the encoder. If the chunks that are done "
    "are the wrong ones, "
    "start over with --from-scratch."
)


def judge(evidence: Evidence) -> Verdict:
    """The verdict; total: every evidence has one."""
    beat = evidence.beat
    fault = evidence.fault
    base = Verdict(
        Outcome.COMMITTED,
        "done",
        limits=evidence.limits,
        batch_rows=(fault and fault.batch_rows) or (beat.batch_rows if beat else 0),
        batch_tokens=(fault and fault.batch_tokens) or (beat.batch_tokens if beat else 0),
        phase=fault.phase if fault else beat.phase if beat else None,
        rows_done=(fault.rows_done if fault else 0) or (beat.rows_done if beat else 0),
        wait_s=fault.wait_s if fault else 0.0,
        on_cpu=evidence.on_cpu,
    )
    verdict = _judge(evidence, base, at_texts=beat is not None and beat.phase in ON_TEXTS)
    return replace(verdict, row_can_cause=verdict.row_can_cause and not verdict.before_first_batch)


def _judge(evidence: Evidence, base: Verdict, *, at_texts: bool) -> Verdict:
    code = evidence.returncode
    if evidence.result is not None and evidence.vectors_problem is None:
        # torch can crash at interpreter exit with the work done (pytorch#84756): the result beats
        # the status.
        return base
    # Before any cause: what the parent has ended says nothing of texts or devices, whatever it
    # left.
    if evidence.ended_by is EndedBy.STOP:
        return replace(
            base, outcome=Outcome.INTERRUPTED, reason="stopped with the run", asked_for=True
        )
    if evidence.ended_by is EndedBy.HANG:
        reason = f"the run ended it: {evidence.ended_why}{_stack_head(evidence.log_tail)}"
        return replace(base, outcome=Outcome.HUNG, reason=reason, row_can_cause=at_texts)
    if code == NODE_LOST:
        return replace(
            base, outcome=Outcome.LOST, reason=evidence.ended_why or "its machine was lost"
        )
    if evidence.result is not None:
        other = evidence.other_dimension
        return replace(
            base,
            outcome=Outcome.BAD_OUTPUT,
            reason=f"its vectors {evidence.vectors_problem}",
            remedy=_OTHER_DIMENSION if other else "",
            exit_code=CONFIG if other else None,
            # Else the file as a whole is wrong (count, type, digest): that is no text's doing.
            row_can_cause=bool(evidence.bad_rows) or other,
            bad_rows=evidence.bad_rows,
        )
    # Its own record knows the exception and the phase; a log and an exit code are guesses next to
    # it.
    if evidence.fault is not None:
        return _diagnosed(base, diagnose(evidence.fault))
    return _without_record(evidence, base, code, at_texts=at_texts)


def _without_record(
    evidence: Evidence, base: Verdict, code: int | None, *, at_texts: bool
) -> Verdict:
    """Judge one that died too hard to write a record."""
    if code is None:  # found at a resume: it was in progress when the earlier run died
        return replace(
            base,
            outcome=Outcome.INTERRUPTED,
            reason="left behind by an earlier run",
            asked_for=True,
        )
    if code == WorkerExit.ORPHANED or -code in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        reason = f"was asked to stop, not by the run ({describe_exit(code)})"
        return replace(base, outcome=Outcome.INTERRUPTED, reason=reason, row_can_cause=at_texts)
    if code == -signal.SIGKILL and evidence.oom_kills > 0:
        reason = (
            "was killed by the kernel because the machine, or its memory limit, ran out of memory"
        )
        return replace(
            base,
            outcome=Outcome.HOST_OOM,
            reason=reason,
            remedy="Give it more memory, or smaller batches and chunks.",
            row_can_cause=True,
        )
    free_bytes = evidence.disk_free_bytes
    if code == -signal.SIGBUS and free_bytes is not None and free_bytes < NEARLY_FULL_BYTES:
        reason = "a write met a full disk (SIGBUS)"
        return replace(base, outcome=Outcome.DISK_FULL, reason=reason, remedy="Free some space.")
    # Its last words may still be in the log.
    diagnosis = diagnose_log(evidence.log_tail, code, base.phase)
    if diagnosis is not None:
        return _diagnosed(base, diagnosis)
    if code == 0 and not at_texts:
        return replace(
            base, outcome=Outcome.BAD_OUTPUT, reason="ended with exit code 0 but left no result"
        )
    is_disk = code == WorkerExit.DISK_FULL
    return replace(
        base,
        outcome=Outcome.DISK_FULL if is_disk else Outcome.CRASHED,
        reason=f"ended with {describe_exit(code)} and left no "
        f"record{': the disk is full or failing' * is_disk}",
        exit_code=DISK if is_disk else None,
        row_can_cause=code < 0 or at_texts,
    )


def _diagnosed(base: Verdict, diagnosis: Diagnosis) -> Verdict:
    rule = diagnosis.rule
    return replace(
        base,
        outcome=rule.outcome,
        reason=f"{rule.cause.rstrip('.')}: {diagnosis.headline}"
        if diagnosis.headline
        else rule.cause,
        remedy=rule.remedy,
        rule=rule.name,
        exit_code=rule.exit_code,
        smaller_batch_helps=rule.smaller_batch_helps,
        row_can_cause=rule.row_can_cause,
        figures=read_oom(diagnosis.cause.message) if diagnosis.cause is not None else None,
    )


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
    """Say where a hung worker was, by the stack that faulthandler wrote when SIGABRT came."""
    _, found, stack = log_tail.rpartition("(most recent call first):\n")
    frames = [
        line.strip()
        for line in stack.splitlines()[:3]
        if found and line.strip().startswith("File ")
    ]
    # The worker's own frames say nothing about the place, unless there is no other.
    frames = [line for line in frames if "/chunkvisor_worker/" not in line] or frames[:1]
    return "; it was at " + ", called from ".join(frames) if frames else ""
