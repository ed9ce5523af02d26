"""Events of attempts and of the chunks that they are for."""

from dataclasses import field

from chunkvisor.events.event import Event, Severity, Signed, event
from chunkvisor.units import counted


@event()
class ChunkEvent(Event):
    """About a chunk."""

    output: str
    chunk: int


@event()
class AttemptEvent(ChunkEvent):
    """About an attempt at a chunk."""

    attempt: int


@event()
class AttemptStarted(AttemptEvent):
    """A worker was started."""

    pid: int = 0
    """0 = on another machine."""
    device: int = 0
    """Its number."""
    start: str = ""
    """fresh or warm."""


@event()
class Go(AttemptEvent):
    """The worker has its device, and the batch limits of the moment."""

    rows: int
    tokens: int | None = None
    padding: int | None = None
    measured: bool = False


@event()
class WorkerEnded(AttemptEvent):
    """The worker's process has ended; the verdict comes in a separate event."""

    returncode: Signed = 0
    device: int = 0
    startup_s: float = 0.0
    """Imports, loading and tokenising."""
    idle_s: float = 0.0
    """How long the device had nothing to compute before the first batch; `opening_s` is part of it."""
    busy_s: float = 0.0
    """From its first batch until it needed the device no longer; without an `opening_s`, from its `go`."""
    opening_s: float = 0.0
    """From its `go` to its first batch: a context is made, and weights are copied."""
    texts: int = 0
    tokens: int = 0
    """Without padding; 0 where the encoder cannot count them."""
    padded_tokens: int = 0
    """With it."""


@event(
    "{output} chunk {chunk} cannot finish in time: it stops after the current batch, and its finished texts are saved"
)
class WorkerLeaving(AttemptEvent):
    """The worker was asked to end early."""


@event()
class AttemptRefused(AttemptEvent):
    """A worker would not run from its template: a fresh one makes the attempt."""


@event()
class FailureEvent(AttemptEvent):
    """An attempt without vectors."""

    outcome: str
    reason: str = ""
    start: int = 0
    """The texts that it was for, from `start` up to `stop`."""
    stop: int = 0
    rule: str = ""
    """Name of the rule that knows the fault; empty where none does."""
    phase: str = ""
    log: str = ""
    then: str = ""
    """What the run does about it, in words; empty where the next event says so."""
    rows: str = ""
    """Which rows it was at when it failed, in words: the first that has each text; empty where that is not known."""

    @property
    def which(self) -> str:
        """Which attempt; 0 was none: no worker could be started, or its vectors could not be stored."""
        return f", attempt {self.attempt}" if self.attempt else ""

    @property
    def at(self) -> str:
        """Which rows it was at."""
        return f"; it was computing {self.rows}" if self.rows else ""

    @property
    def next(self) -> str:
        """What follows, at the end of a line."""
        return f"; {self.then}" if self.then else ""


@event("{output} chunk {chunk}{which}: {outcome}: {reason}{at}{next}", Severity.CARE)
class AttemptFailed(FailureEvent):
    """At a whole chunk."""


@event()
class PartFailed(FailureEvent):
    """At a part of a chunk that was taken apart."""


@event()
class AttemptInterrupted(FailureEvent):
    """It was stopped, or its machine was lost; it counts for nothing."""


@event("{output} chunk {chunk}: the worker crashed after it had saved its vectors; they are kept", Severity.CARE)
class LateCrash(ChunkEvent):
    returncode: Signed = 0


@event()
class ChunkCommitted(ChunkEvent):
    """All texts of the chunk have their vector, or are in quarantine."""

    texts: int
    texts_done: int
    """Of the whole output, like `chunks_done` and `chunks`."""
    chunks_done: int
    chunks: int
    attempt_ok: bool = False
    """False where it was put together from parts."""
    texts_per_s: float | None = None
    """Since the run began to compute, over all devices."""
    eta_s: float | None = None
    tokens: int = 0
    """Of the attempt; those of parts are told by their own events."""
    padded_tokens: int = 0
    phase_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the worker by phase."""
    texts_before: int = 0
    """Of `texts`, those that were done before this run began to work."""


@event()
class PartCommitted(ChunkEvent):
    """Some texts of a chunk have their vectors: one that was taken apart, or of which an attempt had finished some."""

    start: int = 0
    stop: int = 0
    texts: int = 0
    """Of those from `start` up to `stop`, the ones that it was for."""
    tokens: int = 0
    padded_tokens: int = 0
    phase_s: dict[str, float] = field(default_factory=dict)


@event("{output} chunk {chunk}: kept {texts:text} that the {which} attempt had finished")
class BatchesKept(ChunkEvent):
    """What an attempt without a result had encoded was taken over."""

    texts: int = 0
    tokens: int = 0
    """By its last beat, about."""
    padded_tokens: int = 0
    interrupted: bool = False
    """It did not fail: it was stopped, or lost with its run or its machine."""

    @property
    def which(self) -> str:
        """What became of it."""
        return "interrupted" if self.interrupted else "failed"


@event("{output} chunk {chunk}: {search}", Severity.CARE)
class ChunkSplit(ChunkEvent):
    texts: int = 0
    """That are left to try."""
    parts: int = 0
    of: int = 0
    """Texts of the chunk."""
    alone: int = 0
    """Of those that are left, how many are tried one by one; 0 = they are tried in halves."""
    rows: str = ""
    """Which rows these are, or those of all that are left."""

    @property
    def search(self) -> str:
        """What is left of the chunk, and how the text that fails is looked for."""
        if not self.rows:
            return f"looking for what fails among {counted(self.texts, 'text')}"
        how = f"trying {self.rows} in two halves"
        if self.alone:
            how = f"trying {self.rows} {'one by one' if self.alone > 1 else 'alone'}"
            how += ", the others without " + ("them" if self.alone > 1 else "it") if self.alone < self.texts else ""
        left = f"{self.texts:,} of its {counted(self.of, 'text')}"
        return f"looking for the text that fails; {left} {'are' if self.texts > 1 else 'is'} left; {how}"


@event("{output} row {row} ({place}) cannot be encoded and gets no vector: {outcome}: {reason}", Severity.LOSS)
class Quarantined(Event):
    output: str
    row: int
    """The first that has the text."""
    place: str = ""
    outcome: str = ""
    reason: str = ""
    chunk: int = 0
    rows: int = 0
    """That have the text; 0 in journals from before this was told, and then `chunk` says nothing."""


@event("{output} chunk {chunk} is set aside; the next run tries it again: {reason}", Severity.LOSS)
class ChunkSetAside(ChunkEvent):
    reason: str = ""


@event("{output} chunk {chunk}: the disk reported an error, and the chunk is stored again: {why}", Severity.LOSS)
class DiskFault(ChunkEvent):
    """An error of the disk itself: the chunk is stored again, but whoever owns the disk has to know."""

    why: str


@event("{output} chunk {chunk} is damaged and will be computed again: {why}", Severity.CARE)
class ChunkDamaged(ChunkEvent):
    why: str = ""
