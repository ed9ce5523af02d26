"""What scheduler and loop exchange: tasks, ends of attempts, and instructions.

All are values: they are compared, printed and matched. The scheduler returns instructions in order;
the loop does them in that order. Of two it tells the scheduler what came of them, which may give
further instructions: vectors were stored, or a worker could not be started.
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
    due_s: float = 0.0  # by the run's clock; they are not started before
    charged_failures: tuple[Outcome, ...] = ()
    """Their failures so far that count against them; others were of the device, say."""
    avoid_device: int | None = None  # on which they failed last: other devices try them first
    needs_canary: bool = False
    """They may be what made an attempt fail: the next one begins with a canary."""
    bisecting: bool = False
    """They are a piece of a chunk that was taken apart to find texts that fail. At the first
    failure they are taken apart in turn."""
    singly: bool = False
    """Each text is a batch by itself, so that a failure shows which one it is."""
    cold_start: bool = False  # not from a template, since something has failed before

    def subset(self, texts: Collection[int], **changes: Any) -> "Task":
        """Return a task of some of its texts, with these changes and no charged failures."""
        return replace(self, texts=tuple(texts), **{"charged_failures": (), **changes})


@frozen
class AttemptEnded:
    """A worker has ended and its attempt is judged, or it could not be started."""

    worker: int
    verdict: Verdict | None
    """None: its template ended it before it could begin, which does not count as an attempt."""
    others: OtherProcesses = OtherProcesses.UNKNOWN
    began_s: float | None = None
    """When it was started. None: it came from a template, which may be why it failed before its
    first batch, so that such a failure is not counted."""
    done: frozenset[int] = frozenset()
    """Texts with a verified vector, although the attempt failed."""
    in_flight: frozenset[int] = frozenset()
    """Texts of the batches that had begun and were not finished."""
    any_text_succeeded: bool = False
    """Any text, also a canary, got its vector in the attempt."""


@frozen
class Ending:
    """Why the run ends, or continues without a device; `messages` puts it into words."""

    code: ExitCode
    why: StopReason
    worker: int = 0  # whose attempt it was, if any
    task: Task | None = None
    verdict: Verdict | None = None
    device: int | None = None  # the one that is left out, if it is about one


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
class AskToStop:
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
    """Store that these texts get no vector."""

    task: Task
    verdict: Verdict


@frozen
class PlanOutput:
    """Fix which texts of the output are encoded: the outputs that it waited for are settled."""

    output: int


# --- devices, and the run


@frozen
class ReadDevice:
    """Have nvidia-smi read the device; what it shows comes by `Scheduler.device_changed`."""

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
    """Report that an attempt has failed, and what follows.

    No step if all its texts have vectors. `in_flight`: texts of batches that were not finished.
    """

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
    StartWorker | OpenGate | AskToStop | EndWorker | KeepVectors | QuarantineTexts | PlanOutput
    | ReadDevice | DropDevice | EndRun | LowerLimits | ReportFailure | ReportSplit | ReportWait
)  # fmt: skip
