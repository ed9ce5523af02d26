"""Events of a run as a whole: its beginning, what it waits for, what it has learnt, its end."""

from chunkvisor.errors import lines_of_end
from chunkvisor.events.event import Event, Severity, event


@event()
class Invoked(Event):
    """The first event of a run, which holds the workdir from now on."""

    workdir: str
    invocation: str = ""
    """Name of its folder; empty where the disk did not let it have one."""
    slice: str = ""
    """Such as 3/8; empty for a run of the whole."""
    pid: int = 0
    journal_version: int = 0
    """Of the lines of this run; 0 in journals from before there were versions."""


@event("ended {count} processes that an earlier run had left behind")
class OrphansEnded(Event):
    count: int
    pids: tuple[int, ...] = ()


@event("working in {workdir} on {device}")
class RunStarted(Event):
    """The run has found its devices and begins to work."""

    workdir: str
    device: str
    """All of them, with commas."""
    run: str = ""
    gpus: tuple[str, ...] = ()
    """UUID of each device; empty for a CPU."""
    engine: str = ""
    model: str = ""
    outputs: tuple[str, ...] = ()
    """That the config asks for."""
    slice: str = ""


@event("{text}")
class Note(Event):
    """Something that only people need to know."""

    text: str


@event("asking the hub for {model}")
class Resolving(Event):
    model: str


@event()
class CheckingModel(Event):
    """The files of a local model are read."""

    model: str


@event("waiting for {who}, which prepares or joins what belongs to all slices")
class WaitingForTurn(Event):
    who: str


@event("the run stood still for {gap_s:.0f} s, as after a frozen container or a suspended machine", Severity.CARE)
class StoodStill(Event):
    """The loop was not run for a while; what waits for workers is not charged with it."""

    gap_s: float


@event("nothing is started for {delay_s:.0f} s: {reason}", Severity.CARE)
class Waiting(Event):
    delay_s: float
    reason: str
    outcome: str = ""


@event()
class LimitsEvent(Event):
    """Batches have other limits from now on."""

    rows: int
    tokens: int | None = None
    min_length: int = 0
    """Tokens of the texts that it is about, at least."""
    of_length: str = ""
    """The same in words."""


@event("batches{of_length}: from now on at most {rows:,} rows", Severity.CARE)
class LimitsLowered(LimitsEvent):
    """After a batch that did not fit."""


@event("batches{of_length}: {rows:,} rows are tried again, after a streak without a fault")
class LimitsWidened(LimitsEvent):
    """After a time without a fault."""


@event("{signal}: {how}; once more stops at once")
class Draining(Event):
    """Nothing new is started."""

    signal: str = ""
    """Or the option that ends the run."""
    how: str = "finishing the chunks under way"


@event(
    "slice {slice} is done, and with it {done:,} of all {chunks:,} chunks; "
    "the last slice joins them, or a run without --slice"
)
class SliceDone(Event):
    slice: str
    done: int
    chunks: int


@event()
class Halted(Event):
    """The last event of a run that did not end well, with its exit code and its last words."""

    code: int
    what: str = ""
    why: str = ""
    remedy: str = ""
    log: str = ""
    see: str = ""

    @property
    def last_words(self) -> list[str]:
        """The message, one part a line; nothing for an end without one."""
        return lines_of_end(self.details())


@event()
class RunEnded(Event):
    """The last event of a run that has ended well."""

    code: int
