"""What the loop reports to the scheduler (seven events), and what the scheduler wants done (six commands)."""

from dataclasses import dataclass

from chunkvisor.devices.health import Opinion
from chunkvisor.errors import ExitCode
from chunkvisor.heart.policy import How, Step
from chunkvisor.heart.work import Work
from chunkvisor.judge import Company, Verdict
from chunkvisor_worker.contract.messages import Limits


@dataclass(frozen=True, slots=True)
class Tick:
    """A turn of the loop."""


@dataclass(frozen=True, slots=True)
class DeviceSeen:
    """A device may be worked on, was looked at, or is gone."""

    number: int
    node: str = ""
    kind: str = ""
    """Devices of one kind share what is learnt about batches."""
    opinion: Opinion | None = None
    """Of a look; None = there is nothing to look with."""
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Called:
    """The worker waits at the gate, or (`freed`) has given its device back."""

    worker: int
    freed: bool = False


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """The worker is gone, or could not be started, and what it left is judged."""

    worker: int
    verdict: Verdict | None
    """None = its template would not begin it: that was no attempt."""
    company: Company = Company.UNTOLD
    began_s: float | None = None
    """When it was started; None where a failure before the first batch proves nothing."""
    done: frozenset[int] = frozenset()
    """Texts whose vectors it has left, verified, though it failed."""
    under_way: frozenset[int] = frozenset()
    """Texts of the batches that had begun and were not finished."""
    proven: bool = False
    """Whether any text, a canary too, got its vector in it."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What `StoreVectors` asked for is on the disk, or (`verdict`) could not be written."""

    work: Work
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """Something that was stored of the chunk is damaged, and was discarded."""

    output: int
    chunk: int


@dataclass(frozen=True, slots=True)
class StopBy:
    """Start nothing new; be done by then (None = as long as it takes, -inf = at once)."""

    until_s: float | None = None


Event = Tick | DeviceSeen | Called | AttemptEnded | Stored | Lost | StopBy


OWN = -1
"""In the place of a canary: the shortest of the work's own texts; one less = the second shortest, and so on."""


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a worker; only its failure is answered, with `AttemptEnded`."""

    worker: int
    device: int
    work: Work
    limits: Limits
    canary: int | None = None
    """The text that makes its first batch, or OWN and less; None = as they come."""


@dataclass(frozen=True, slots=True)
class OpenGate:
    """Let the worker have its device."""

    worker: int
    limits: Limits


@dataclass(frozen=True, slots=True)
class End:
    """End the worker, or (`gently`) ask it to end after the batch under way."""

    worker: int
    why: str
    gently: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """Look at the device; answered by `DeviceSeen`."""

    device: int


@dataclass(frozen=True, slots=True)
class StoreVectors:
    """Take over the vectors of these texts, or (`bad`) note that the text gets none; answered by `Stored`."""

    worker: int
    work: Work
    bad: Verdict | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt has failed, and this follows."""

    worker: int
    work: Work
    verdict: Verdict | None
    """None = its template would not begin it."""
    step: Step | None = None
    """None = nothing has to follow: all its texts are done."""
    under_way: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TakenApart:
    """The texts are tried in these pieces."""

    pieces: tuple[Work, ...]
    of: Work
    how: How


@dataclass(frozen=True, slots=True)
class RunWaits:
    """The run waits, for one device or (None) for all."""

    device: int | None
    delay_s: float
    waited_s: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Learnt:
    """Batches on devices of this kind are no larger from now on."""

    kind: str
    rows: int
    tokens: int | None
    lasting: bool
    """Whether later runs should know; not where others held memory."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """The run does without a device (its number) or a machine (its name)."""

    place: int | str
    code: ExitCode
    why: str
    worker: int = 0
    work: Work | None = None
    verdict: Verdict | None = None
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunHalts:
    """The run ends; `words` makes sentences of it."""

    code: ExitCode
    why: str
    """What ended it: "halted" (one more failure), "canary", "first", "too large", "broken", "busy", "bad rows" or
    "all bad"."""
    worker: int = 0
    work: Work | None = None
    verdict: Verdict | None = None
    place: int | None = None
    """The device whose end it is."""
    output: int = 0
    count: int = 0
    """Of rows without a vector."""
    waited_s: float = 0.0


News = Failed | TakenApart | RunWaits | Learnt | Dropped | RunHalts


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell people and the journal; `RunHalts` ends the run."""

    news: News


Command = StartWorker | OpenGate | End | Look | StoreVectors | Tell
