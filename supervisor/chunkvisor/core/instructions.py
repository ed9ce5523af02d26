"""What the scheduler and the loop say to each other.

Texts to encode, what became of an attempt, and instructions.

All are values: they are compared, printed and matched. The scheduler returns instructions, in
order; the loop executes them, and what follows from one (vectors that are stored, a worker that
cannot be started) it reports back.
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
    """Texts of one chunk, to be encoded by one worker; what failed so far travels with them."""

    output: int
    chunk: int
    texts: Sequence[int]  # in order; a range for a whole chunk, else a tuple
    due_s: float = 0.0  # when they may be started
    charged_failures: tuple[Outcome, ...] = ()
    """How they failed so far, as far as that counts against them."""
    avoid_device: int | None = None  # the device on which they failed last: others are asked first
    needs_canary: bool = False
    """They may be what made an attempt fail: the next one begins with a canary."""
    bisecting: bool = False
    """The chunk is searched for texts that fail: they are taken apart at the first failure."""
    singly: bool = False
    """Each text is a batch by itself, so that the next end tells which one it is."""
    cold_start: bool = False  # it does not start from a template: something has failed before

    def subset(self, texts: Collection[int], **changes: Any) -> "Task":
        """Take some of the texts, of which nothing is known yet."""
        return replace(self, texts=tuple(texts), **{"charged_failures": (), **changes})


@frozen
class AttemptEnded:
    """The worker is gone, or could not be started, and what it left is judged."""

    worker: int
    verdict: Verdict | None  # None = its template would not begin it: that was no attempt
    others: OtherProcesses = OtherProcesses.UNKNOWN
    began_s: float | None = None
    """When it was started; None = a failure before the first batch proves nothing."""
    done: frozenset[int] = frozenset()
    """Texts whose vectors it has left, verified, though it failed."""
    in_flight: frozenset[int] = frozenset()
    """Texts of the batches that had begun and were not finished."""
    any_text_succeeded: bool = False  # any text, a canary too, got its vector in it


@frozen
class Ending:
    """Why the run ends, or continues without a device; `words` makes sentences of it."""

    code: ExitCode
    why: StopReason
    worker: int = 0
    task: Task | None = None
    verdict: Verdict | None = None
    device: int | None = None  # whose end it is


# --- workers


@frozen
class StartWorker:
    """`canary` makes its first batch; None = the batches as they come."""

    worker: int
    device: int
    task: Task
    limits: Limits
    canary: policy.Canary | None


@frozen
class OpenGate:
    """Let the worker have its device."""

    worker: int
    limits: Limits


@frozen
class AskToLeave:
    """It ends after the current batch."""

    worker: int


@frozen
class EndWorker:
    """Now."""

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
    """The outputs that it waits for are settled: fix which of its texts are encoded."""

    output: int


# --- devices, and the run


@frozen
class LookAtDevice:
    """The scheduler hears what that shows."""

    device: int


@frozen
class DropDevice:
    """Do without it."""

    ending: Ending


@frozen
class EndRun:
    """Nothing is executed after it."""

    ending: Ending


@frozen
class LowerLimits:
    """Batches on devices of this kind are no larger from now on.

    `lasting`: in later runs as well.
    """

    kind: str
    limit: policy.BatchLimit
    lasting: bool


# --- what is only told to people


@frozen
class TellFailure:
    """An attempt has failed, and this follows.

    No step: nothing has to, as all its texts are done.
    """

    worker: int
    task: Task
    verdict: Verdict
    step: policy.Step | None
    in_flight: tuple[int, ...]


@frozen
class TellSplit:
    """The texts are tried in these pieces."""

    task: Task
    pieces: tuple[Task, ...]
    how: policy.How


@frozen
class TellWait:
    """The run waits, for one device or (None) for all."""

    device: int | None
    delay_s: float
    waited_s: float
    verdict: Verdict


Instruction = (
    StartWorker | OpenGate | AskToLeave | EndWorker | KeepVectors | QuarantineTexts | PlanOutput
    | LookAtDevice | DropDevice | EndRun | LowerLimits | TellFailure | TellSplit | TellWait
)  # fmt: skip
