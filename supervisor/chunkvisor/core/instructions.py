"""What scheduler and loop exchange: tasks, ends of attempts, and instructions.

All are values: they are compared, printed and matched. The scheduler returns instructions in order.
The loop does them, and tells the scheduler what came of one: vectors are stored, or a worker cannot
be started.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from chunkvisor.core import policy
from chunkvisor.errors import ExitCode, StopReason
from chunkvisor.judge import OtherProcesses, Verdict
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import Limits


@frozen
class Task:
    """Texts of one chunk, to be encoded by one worker, with what is known of their failures.

    Example: the texts of a chunk that were in progress when a worker was killed for the second
    time, each to be encoded in a batch by itself, after a canary:

        Task(0, 4, (4032, 4033, 4034), needs_canary=True, bisecting=True, singly=True)
    """

    output: int
    chunk: int
    texts: Sequence[int]  # in order; a range for a whole chunk, else a tuple
    due_s: float = 0.0  # not to be started before
    charged_failures: tuple[Outcome, ...] = ()
    """How they failed so far, as far as that counts against them."""
    avoid_device: int | None = None  # on which they failed last: other devices try them first
    needs_canary: bool = False
    """They may be what made an attempt fail: the next one begins with a canary."""
    bisecting: bool = False
    """Texts that fail are being looked for: these are taken apart at the first failure."""
    singly: bool = False
    """Each text is a batch by itself, so that a failure shows which one it is."""
    cold_start: bool = False  # not from a template, since something has failed before

    def subset(self, texts: Collection[int], **changes: Any) -> "Task":
        """Return a task of some of its texts; the failures so far are not charged to them."""
        return replace(self, texts=tuple(texts), **{"charged_failures": (), **changes})


@frozen
class AttemptEnded:
    """A worker has ended, or could not be started, and its attempt is judged."""

    worker: int
    verdict: Verdict | None  # None = its template did not let it begin: that was no attempt
    others: OtherProcesses = OtherProcesses.UNKNOWN
    began_s: float | None = None
    """When it was started; None = nothing follows from a failure before its first batch."""
    done: frozenset[int] = frozenset()
    """Texts whose vectors it has left, verified, although it failed."""
    in_flight: frozenset[int] = frozenset()
    """Texts of the batches that had begun and were not finished."""
    any_text_succeeded: bool = False  # any text, a canary too, got its vector in the attempt


@frozen
class Ending:
    """Why the run ends, or continues without a device; `messages` puts it into words."""

    code: ExitCode
    why: StopReason
    worker: int = 0  # whose attempt it was, if any
    task: Task | None = None
    verdict: Verdict | None = None
    device: int | None = None  # without which the run continues, or which was the last


# --- workers


@frozen
class StartWorker:
    """Start a worker on the task. A `canary` is its first batch."""

    worker: int
    device: int
    task: Task
    limits: Limits
    canary: policy.Canary | None


@frozen
class OpenGate:
    """Let the worker use its device."""

    worker: int
    limits: Limits


@frozen
class AskToLeave:
    """Ask the worker to end after the current batch."""

    worker: int


@frozen
class EndWorker:
    """End the worker now."""

    worker: int


# --- what it left


@frozen
class KeepVectors:
    """Store the vectors of these texts, which the worker has left."""

    worker: int
    task: Task


@frozen
class QuarantineTexts:
    """Note that these texts get no vector."""

    task: Task
    verdict: Verdict


@frozen
class PlanOutput:
    """Fix which texts of the output are encoded, now that those are settled that it waits for."""

    output: int


# --- devices, and the run


@frozen
class LookAtDevice:
    """Have nvidia-smi look at the device; the scheduler hears what it shows."""

    device: int


@frozen
class DropDevice:
    """Continue without `ending.device`."""

    ending: Ending


@frozen
class EndRun:
    """End the run. Nothing is done after it."""

    ending: Ending


@frozen
class LowerLimits:
    """Report that batches on devices of this kind are no larger from now on.

    `lasting`: later runs are to know it as well.
    """

    kind: str
    limit: policy.BatchLimit
    lasting: bool


# --- reports for people


@frozen
class ReportFailure:
    """Report that an attempt has failed, and what follows; no step if all its texts are done."""

    worker: int
    task: Task
    verdict: Verdict
    step: policy.Step | None
    in_flight: tuple[int, ...]


@frozen
class ReportSplit:
    """Report that the texts are tried in these pieces."""

    task: Task
    pieces: tuple[Task, ...]
    how: policy.How


@frozen
class ReportWait:
    """Report that the run waits, with one device or (None) with all."""

    device: int | None
    delay_s: float
    waited_s: float
    verdict: Verdict


Instruction = (
    StartWorker | OpenGate | AskToLeave | EndWorker | KeepVectors | QuarantineTexts | PlanOutput
    | LookAtDevice | DropDevice | EndRun | LowerLimits | ReportFailure | ReportSplit | ReportWait
)  # fmt: skip
