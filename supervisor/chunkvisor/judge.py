"""Judges whether a worker still makes progress, and what became of one that has ended. Pure."""

import re
import signal
from dataclasses import replace
from enum import Enum, StrEnum

from chunkvisor.config.model import RecoveryConfig
from chunkvisor_worker.contract.exits import Outcome, WorkerExit
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import Beat, Fault, Limits, Phase, Result
from chunkvisor_worker.contract.rules import AT_WORK, BEFORE_WORK, CONFIG, DISK, ON_TEXTS
from chunkvisor_worker.contract.taxonomy import (
    Diagnosis,
    Known,
    OomFigures,
    diagnose,
    diagnose_log,
    read_oom,
)

BACKOFF_S = 0.5  # pause before the second try; it doubles with each further one
BACKOFF_MAX_S = 60.0
# Return codes that no process can have. The exit status of the worker is not known:
STATUS_LOST = 1 << 16
# Its machine was lost, or the connection to it:
NODE_LOST = STATUS_LOST + 1
# With less free space, a SIGBUS means that a write to a mapped file met a full disk.
NEARLY_FULL_BYTES = 16 << 20
ONE_ROW = Limits(rows=1)


class OtherProcesses(Enum):
    """Who else holds memory of the attempt's device."""

    UNKNOWN = "unknown"  # the device was not read, or is no GPU
    NONE = "none"
    NEW = "new"  # processes that were not there when the run began hold what was missing
    SIBLING = "sibling"  # another worker of this run


def backoff_s(tries: int) -> float:
    """Return how many seconds to pause after this many failures."""
    return float(min(BACKOFF_MAX_S, BACKOFF_S * 2 ** max(0, tries - 1)))


def pause_s(waited_s: float, limit_s: float) -> float:
    """Return how many seconds to pause before the next try in a wait that has lasted `waited_s`.

    From one second at first to a minute later, and not past `limit_s`, the limit of the wait.
    """
    return min(BACKOFF_MAX_S, 1 + waited_s / 10, max(0.1, limit_s - waited_s))


# --- a living worker


@frozen
class Pulse:
    """A worker's signs of life, timed by the parent's clock: a worker's clock may be wrong."""

    started_s: float  # from here on the start-up time counts
    changed_s: float  # when the last new beat was seen
    beat: Beat | None = None

    def with_beat(self, beat: Beat | None, now_s: float) -> "Pulse":
        """Return the pulse after the beat file was read.

        None, or the same beat as before, is no sign of life.
        """
        if not beat or (self.beat and beat.seq == self.beat.seq):
            return self
        return replace(self, beat=beat, changed_s=now_s)

    def after_pause(self, now_s: float, waited_s: float) -> "Pulse":
        """Return the pulse after a wait that does not count: at the gate, or in a suspended run."""
        return replace(self, started_s=self.started_s + waited_s, changed_s=now_s)

    @property
    def phase(self) -> Phase:
        """The phase in the last beat."""
        return self.beat.phase if self.beat else Phase.START

    def overdue(self, now_s: float, recovery: RecoveryConfig) -> str:
        """Say why the worker is to be ended; empty if it is not. It does not wait at the gate."""
        silent_s = now_s - self.changed_s
        age_s = now_s - self.started_s
        phase = self.phase
        if phase in AT_WORK:
            if silent_s > recovery.stall_timeout:
                return f"no progress for {silent_s:.0f} s in phase {phase} (stall_timeout)"
        elif age_s > recovery.startup_timeout:
            return f"no batch begun {age_s:.0f} s after its start (phase {phase}, startup_timeout)"
        return ""


# --- an ended worker

# Outcomes that do not come from the GPU, and leave nothing on it.
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
    """What became of an attempt, and why."""

    outcome: Outcome
    reason: str  # one sentence for people
    remedy: str = ""
    rule: str = ""
    """Name of the rule that recognized the fault, if any; docs/reference/failures.md has each."""
    exit_code: int | None = None
    """Exit code of the run if this fault ends it; None = the policy chooses one by the outcome."""
    smaller_batch_helps: bool = True
    """False if the memory that ran out was not needed for a batch."""
    row_can_cause: bool = False  # a text can be the cause
    bad_rows: tuple[int, ...] = ()
    """Positions, in the attempt, of rows with bad vectors, if all others are good."""
    asked_for: bool = False  # the run itself ended it, for another reason than a hang
    limits: Limits = ONE_ROW  # batch limits that the attempt ran under
    batch_rows: int = 0  # of the batch in progress
    batch_tokens: int = 0  # padded tokens of it; 0 = not known
    phase: Phase | None = None
    wait_s: float = 0.0  # how long a server, or the encoder, asked to wait before the next try
    figures: OomFigures | None = None
    """Those of the GPU's memory that torch's out-of-memory message has."""
    on_cpu: bool = False  # the worker was given no GPU

    @property
    def others_hold_memory(self) -> bool:
        """Whether torch's figures show that others held more of the memory than this worker."""
        figures = self.figures
        return (
            figures is not None
            and figures.others_named
            and figures.others_bytes > figures.ours_bytes
        )

    @property
    def has_no_space(self) -> bool:
        """Whether a full disk did not take something, which can be written once there is space."""
        return self.rule in ("disk-full", "disk-quota", "disk-read-only")

    @property
    def see(self) -> str:
        """What to give `chunkvisor explain`: the rule, or the outcome if there is no rule."""
        return self.rule or str(self.outcome)

    @property
    def before_first_batch(self) -> bool:
        """Whether no text had been read, so that none can be the cause.

        A tokenizer reads texts, and one of them may end it.
        """
        return self.phase in BEFORE_WORK and self.phase is not Phase.TOKENIZE

    @property
    def can_touch_gpu(self) -> bool:
        """Whether a worker that had a GPU may have failed because of it, or left memory on it."""
        return self.outcome not in _NOT_OF_GPU and not self.asked_for

    @property
    def blameless(self) -> bool:
        """Whether it shows nothing about texts, config or devices, however often it happens."""
        return self.asked_for or self.outcome is Outcome.LOST


class EndedBy(StrEnum):
    """Who ended a worker, and why."""

    ITSELF = "itself"  # not the run
    STOP = "stop"  # the run, since it no longer needed the worker or was asked to stop
    HANG = "hang"  # the run, since the worker made no progress


@frozen
class Evidence:
    """All that is known of an ended attempt."""

    returncode: int | None
    """As subprocess gives it (-9 = SIGKILL), STATUS_LOST or NODE_LOST; None = not known, since the
    run that started the worker was killed."""
    ended_by: EndedBy = EndedBy.ITSELF
    ended_why: str = ""  # if the parent ended it, or its machine was lost
    result: Result | None = None  # only one that belongs to the attempt's spec
    vectors_problem: str | None = None
    """What is wrong with the vectors of the result; None = they are verified."""
    bad_rows: tuple[int, ...] = ()  # positions of the bad vectors, if nothing else is wrong
    other_dimension: bool = False
    """They have another dimension than those before; one text or all may be the cause."""
    fault: Fault | None = None
    beat: Beat | None = None
    log_tail: str = ""
    oom_kills: int = 0  # rise of the cgroup's oom_kill counter while the attempt lived
    disk_free_bytes: int | None = None  # on that of its folder or of TMPDIR, which has less
    limits: Limits = ONE_ROW  # batch limits that the attempt ran under
    on_cpu: bool = False  # the worker was given no GPU


_OTHER_DIMENSION = (
    "One model gives vectors of one dimension: correct the encoder. If the chunks that are done "
    "are the wrong ones, start over with --from-scratch."
)


def judge(evidence: Evidence) -> Verdict:
    """Return the verdict that the evidence leads to; there is one for any evidence."""
    beat = evidence.beat
    fault = evidence.fault
    base = Verdict(
        Outcome.COMMITTED,
        "done",
        limits=evidence.limits,
        batch_rows=(fault and fault.batch_rows) or (beat.batch_rows if beat else 0),
        batch_tokens=(fault and fault.batch_tokens) or (beat.batch_tokens if beat else 0),
        phase=fault.phase if fault else beat.phase if beat else None,
        wait_s=fault.wait_s if fault else 0.0,
        on_cpu=evidence.on_cpu,
    )
    verdict = _judge(evidence, base)
    return replace(verdict, row_can_cause=verdict.row_can_cause and not verdict.before_first_batch)


def _judge(evidence: Evidence, base: Verdict) -> Verdict:
    if evidence.result and evidence.vectors_problem is None:
        # torch can crash at interpreter exit with the work done (pytorch#84756): the result counts
        # more than the exit status.
        return base
    # Before any recorded fault, which may come from the signal by which the run ended the worker.
    if evidence.ended_by is EndedBy.STOP:
        return replace(
            base, outcome=Outcome.INTERRUPTED, reason="stopped with the run", asked_for=True
        )
    if evidence.ended_by is EndedBy.HANG:
        reason = f"the run ended it: {evidence.ended_why}{_stack_head(evidence.log_tail)}"
        at_texts = evidence.beat is not None and evidence.beat.phase in ON_TEXTS
        return replace(base, outcome=Outcome.HUNG, reason=reason, row_can_cause=at_texts)
    if evidence.returncode == NODE_LOST:
        return replace(
            base, outcome=Outcome.LOST, reason=evidence.ended_why or "its machine was lost"
        )
    if evidence.result:
        other = evidence.other_dimension
        return replace(
            base,
            outcome=Outcome.BAD_OUTPUT,
            reason=f"its vectors {evidence.vectors_problem}",
            remedy=_OTHER_DIMENSION if other else "",
            exit_code=CONFIG if other else None,
            # Else the file as a whole is wrong (count, type, digest), and no text is the cause.
            row_can_cause=bool(evidence.bad_rows) or other,
            bad_rows=evidence.bad_rows,
        )
    # A recorded fault has the exception and the phase: log and exit code show less.
    if evidence.fault:
        return _diagnosed(base, diagnose(evidence.fault, _known(evidence)))
    return _without_record(evidence, base)


def _known(evidence: Evidence) -> Known:
    free_bytes = evidence.disk_free_bytes
    has_space = free_bytes is not None and free_bytes >= NEARLY_FULL_BYTES
    return Known(evidence.on_cpu, has_space)


def _without_record(evidence: Evidence, base: Verdict) -> Verdict:
    """Judge a worker that died without recording a fault."""
    code = evidence.returncode
    at_texts = base.phase in ON_TEXTS
    if code is None:  # it was in progress when an earlier run was killed
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
        return replace(
            base,
            outcome=Outcome.HOST_OOM,
            reason="was killed by the kernel because the machine, or its memory limit, ran out of "
            "memory",
            remedy="Give it more memory, or smaller batches and chunks.",
            row_can_cause=True,
        )
    known = _known(evidence)
    is_full = evidence.disk_free_bytes is not None and not known.has_space
    if code == -signal.SIGBUS and is_full:
        reason = "a write met a full disk (SIGBUS)"
        return replace(base, outcome=Outcome.DISK_FULL, reason=reason, remedy="Free some space.")
    # What ended it may still be in its log.
    diagnosis = diagnose_log(evidence.log_tail, code, base.phase, known)
    if diagnosis:
        return _diagnosed(base, diagnosis)
    if code == 0 and not at_texts:
        return replace(
            base, outcome=Outcome.BAD_OUTPUT, reason="ended with exit code 0 but left no result"
        )
    reason = f"ended with {describe_exit(code)} and left no record"
    # Where no record could be written, the machine is short of something.
    may_be_text = (code < 0 or at_texts) and code != WorkerExit.NO_RECORD
    verdict = replace(base, reason=reason, row_can_cause=may_be_text)
    if code == WorkerExit.DISK_FULL:
        reason = f"{reason}: the disk is full or failing"
        return replace(verdict, outcome=Outcome.DISK_FULL, reason=reason, exit_code=DISK)
    return replace(verdict, outcome=Outcome.CRASHED)


def _diagnosed(base: Verdict, diagnosis: Diagnosis) -> Verdict:
    rule = diagnosis.rule
    headline = diagnosis.headline
    return replace(
        base,
        outcome=rule.outcome,
        reason=f"{rule.cause.rstrip('.')}: {headline}" if headline else rule.cause,
        remedy=rule.remedy,
        rule=rule.name,
        exit_code=rule.exit_code,
        smaller_batch_helps=rule.smaller_batch_helps,
        row_can_cause=rule.row_can_cause,
        figures=read_oom(diagnosis.cause.message) if diagnosis.cause else None,
    )


def describe_exit(code: int) -> str:
    """Put an exit status into words: `exit code 3`, `signal 9 (SIGKILL)`."""
    if code == STATUS_LOST:
        return "an exit status that was lost with its template process"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def _stack_head(log_tail: str) -> str:
    """Say where a hung worker was, from the stack that faulthandler wrote at SIGABRT."""
    # The last is the main thread's. Behind it Python 3.14 writes the stack of C, of `Binary file`s.
    stacks = re.findall(r"recent call first\):\n((?:  File .*\n?){1,3})", log_tail)
    frames = re.findall("File .*", stacks[-1]) if stacks else []
    # Frames of the worker's own package are left out if there are others, which say more.
    frames = [line for line in frames if "/chunkvisor_worker/" not in line] or frames[:1]
    return "; it was at " + ", called from ".join(frames) if frames else ""
