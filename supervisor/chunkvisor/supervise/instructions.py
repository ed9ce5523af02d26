"""What the scheduler wants done, in order; the driver does it, and says what came of it where that can differ."""

from dataclasses import dataclass

from chunkvisor.decide.lessons import Lesson
from chunkvisor.decide.outcome import EndedBy
from chunkvisor.decide.verdict import Verdict
from chunkvisor.errors import Halt
from chunkvisor.supervise.task import Task
from chunkvisor_worker.contract.messages import Limits, Tier


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker on the device; answered by `Started` or `NotStarted`."""

    worker: int
    device: int
    task: Task
    limits: Limits


@dataclass(frozen=True, slots=True)
class Go:
    """Let the worker use its device, with the batch limits of the moment."""

    worker: int
    limits: Limits


@dataclass(frozen=True, slots=True)
class End:
    """Begin to end the worker; its end is heard of as `Ended`."""

    worker: int
    by: EndedBy
    why: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Have the worker end after the batch under way; its end is heard of as `Ended`."""

    worker: int
    why: str


@dataclass(frozen=True, slots=True)
class Look:
    """Have the device looked at; answered by `Looked`."""

    device: int


@dataclass(frozen=True, slots=True)
class GetUsedTo:
    """Others hold so much of the device's memory and stay: they are not waited for any more."""

    device: int
    others_bytes: int


@dataclass(frozen=True, slots=True)
class Record:
    """Write down how the ended worker's attempt failed, and tell of it."""

    worker: int
    """0 where none could be started, or what failed was to store."""
    task: Task
    verdict: Verdict
    then: str = ""
    """What follows, in words."""
    under_way: tuple[int, ...] = ()
    """Texts of the batches that it was at, as far as that is known."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Remove the attempt of a worker that would not begin it, and tell of it."""

    worker: int
    task: Task


@dataclass(frozen=True, slots=True)
class Discard:
    """Remove the attempt of a control: it has shown what it was to show."""

    worker: int
    task: Task
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Keep:
    """Take over the ended worker's verified vectors, but for the rows at these positions; answered by `Stored`."""

    worker: int
    task: Task
    holes: tuple[int, ...] = ()
    failed: bool = False
    """Whether they are what a worker without a result has left."""
    interrupted: bool = False
    """Whether that one was stopped or lost, and did not fail."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Note that the chunk is taken apart at this text, so that a later run goes on from there."""

    task: Task
    at: int


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Note that the one text of the task has no vector; answered by `Quarantined`."""

    task: Task
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Compose:
    """Put a chunk together whose texts all have a vector or a verdict; answered by `Stored`."""

    task: Task


@dataclass(frozen=True, slots=True)
class Join:
    """Put the output's final file together; answered by `Joined`, `ChunkDamaged`, `JoinWaits` or `JoinStopped`."""

    output: int


@dataclass(frozen=True, slots=True)
class StopJoins:
    """Give up what is being joined: the next run begins it anew; answered by `JoinStopped` where there was anything."""


@dataclass(frozen=True, slots=True)
class SaveLessons:
    """Keep what out-of-memory faults have taught about devices of this kind, for later runs."""

    kind: str
    lessons: tuple[Lesson, ...]
    changed: Tier | None = None
    """The limit that is new; None = one was forgotten, or only counts have changed."""
    doubted: bool = False
    """Whether it is wider than before."""


@dataclass(frozen=True, slots=True)
class TellWaiting:
    """The world is not ready: nothing is started for a while, on one device or (None) on all."""

    device: int | None
    delay_s: float
    verdict: Verdict
    waited_s: float = 0.0
    """So far; 0 = the wait begins."""


@dataclass(frozen=True, slots=True)
class TellSplit:
    """A chunk, or a part of one, is taken apart."""

    task: Task
    parts: int
    texts: int
    """In all of these."""
    alone: tuple[int, ...] = ()
    """Those of them that are tried one by one; none = the parts are halves."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """The chunk is given up in this run."""

    worker: int
    task: Task
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class DropDevice:
    """Do without the device from now on."""

    device: int
    halt: Halt


@dataclass(frozen=True, slots=True)
class DropNode:
    """Do without the machine of the cluster from now on."""

    node: str
    halt: Halt


@dataclass(frozen=True, slots=True)
class HaltByBadRows:
    """End the run: so many texts fail alone that it is hardly their fault, or the config wants none to."""

    worker: int
    task: Task
    verdict: Verdict
    count: int


@dataclass(frozen=True, slots=True)
class HaltRun:
    """End the run with these words."""

    halt: Halt
    worker: int = 0
    """The ended worker whose log is to be opened; 0 = none."""
    of_device: bool = False
    """Whether it is the end of the last device."""


Instruction = (
    Start
    | Go
    | End
    | Leave
    | Look
    | GetUsedTo
    | Record
    | Refuse
    | Discard
    | Keep
    | Cut
    | Quarantine
    | Compose
    | Join
    | StopJoins
    | SaveLessons
    | TellWaiting
    | TellSplit
    | SetAside
    | DropDevice
    | DropNode
    | HaltByBadRows
    | HaltRun
)
