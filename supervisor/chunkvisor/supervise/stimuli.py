"""What can happen to a run, as the scheduler hears of it.

Each stimulus is a fact: the driver has already looked, read and judged. Workers are named by the number that the
scheduler gave them with `Start`, devices by the number that they joined with.
"""

from dataclasses import dataclass

from chunkvisor.decide.history import Company
from chunkvisor.decide.verdict import Verdict
from chunkvisor.devices.health import Opinion
from chunkvisor.errors import Halt
from chunkvisor.supervise.task import Task


@dataclass(frozen=True, slots=True)
class TimePassed:
    """A turn of the loop: what is due may be started."""


@dataclass(frozen=True, slots=True)
class DeviceJoined:
    """A device may be worked on from now on."""

    device: int
    name: str = "cpu"
    """For people."""
    node: str = ""
    """Its machine in a cluster; empty = the supervisor's own."""
    kind: str = "cpu"
    """Devices of one kind share what out-of-memory faults teach: name and memory of the card, or "cpu"."""
    opinion: Opinion | None = None
    """What a first look at it said; None = nobody can look at it."""


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """A machine of the cluster is gone, or set itself aside."""

    node: str


@dataclass(frozen=True, slots=True)
class Started:
    """The worker's process runs."""

    worker: int
    warm: bool = False


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The worker could not be started."""

    worker: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker waits at the gate."""

    worker: int


@dataclass(frozen=True, slots=True)
class Freed:
    """The worker needs its device no longer."""

    worker: int


@dataclass(frozen=True, slots=True)
class Overdue:
    """The worker has made no progress for too long."""

    worker: int
    why: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The worker's process is gone, and what it left is judged."""

    worker: int
    verdict: Verdict
    company: Company = Company.UNTOLD
    """Who else held memory of its device."""
    began_s: float | None = None
    """When it was started; None where a failure before its first batch proves nothing."""
    saved: frozenset[int] = frozenset()
    """Texts whose vectors it has left, verified, though it failed."""
    under_way: frozenset[int] = frozenset()
    """Texts of the batches that had begun, and of which it has left no vectors."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A warm worker would not run from its template, or was lost with it, before it had its device: no attempt."""

    worker: int


@dataclass(frozen=True, slots=True)
class Stored:
    """The vectors that `Keep` or `Compose` asked for are on the disk."""

    task: Task
    whole: bool
    """Whether the chunk is committed by it."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """That the one text of the task has no vector is on the disk."""

    task: Task


@dataclass(frozen=True, slots=True)
class NotStored:
    """It could not be written."""

    task: Task
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class PartsDamaged:
    """A part of a chunk is not what was stored any more: its texts are missing again."""

    output: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look at the device said."""

    device: int
    opinion: Opinion


@dataclass(frozen=True, slots=True)
class Joined:
    """The output's final file is published."""

    output: int


@dataclass(frozen=True, slots=True)
class ChunkDamaged:
    """A committed chunk is not what was committed any more, and was discarded."""

    output: int
    chunk: int


@dataclass(frozen=True, slots=True)
class JoinWaits:
    """The output could not be joined for lack of disk space."""

    output: int
    halt: Halt
    """The words with which the run ends if that lasts too long."""


@dataclass(frozen=True, slots=True)
class JoinStopped:
    """The join was given up because the run is to end at once."""

    output: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Start nothing new; what is under way may finish. A second one may bring the end nearer."""

    until_s: float | None = None
    """When all has to be over, by the scheduler's clock; None = what is under way may take as long as it takes."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End everything at once."""


DeviceStimulus = DeviceJoined | NodeLeft | Looked
WorkerStimulus = Started | NotStarted | Ready | Freed | Overdue | Refused | Ended
StorageStimulus = Stored | Quarantined | NotStored | PartsDamaged
JoinStimulus = Joined | ChunkDamaged | JoinWaits | JoinStopped
Stimulus = TimePassed | DeviceStimulus | WorkerStimulus | StorageStimulus | JoinStimulus | Drain | Stop
