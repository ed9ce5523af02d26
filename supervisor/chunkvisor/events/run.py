"""Events of a run as a whole: its beginning, what it waits for, what it has learnt, its end."""

from chunkvisor.errors import lines_of_end
from chunkvisor.events.event import Event, Severity, event
from chunkvisor.units import counted, human_time, listed

_MOST_IDS = 4
"""Of GPUs, in a line."""


@event()
class Invoked(Event):
    """The first event of a run, which holds the workdir from now on."""

    workdir: str
    invocation: str = ""
    """Name of its folder; empty where the disk did not let it have one."""
    pid: int = 0
    command: str = ""
    """As it was typed, and where, without secrets; empty for a call from Python."""


@event("ended {count:worker} left behind by an earlier run")
class OrphansEnded(Event):
    count: int
    pids: tuple[int, ...] = ()


@event("{sentence}")
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

    @property
    def sentence(self) -> str:
        """What is to be done, with what, and where."""
        what = f"encoding {listed(self.outputs, 3)}" if self.outputs else "working"
        model = f" with {self.model}" if self.model else ""
        return f"{what}{model} on {_devices_in_words(self.device)}, in {self.workdir}"


@event("{sentence}")
class WorkPlanned(Event):
    """All sources are read, and it is known what is left to do."""

    rows: int
    """Of all outputs that are not complete."""
    texts: int
    """Distinct ones."""
    texts_left: int
    chunks: int
    chunks_left: int
    texts_per_s: float | None = None
    """Of the last run here, or of a trial; None = there was none."""
    taken: int = 0
    """Distinct texts beside these, whose vectors are taken over."""

    @property
    def sentence(self) -> str:
        """How much is left to do, and how long that may take."""
        left = f"{self.rows:,} rows" if self.rows != 1 else "1 row"
        todo = f"to do: {left} in {counted(self.chunks, 'chunk')}"
        if self.taken:
            whole = self.texts + self.taken
            in_chunks = f"{self.chunks_left:,} of " * (self.chunks_left < self.chunks) + counted(self.chunks, "chunk")
            todo = f"to do: {self.texts_left:,} of {whole:,} {'rows' if whole == self.rows else 'texts'} in {in_chunks}"
        elif self.chunks_left < self.chunks:
            todo = f"to do: {self.chunks_left:,} of {counted(self.chunks, 'chunk')}, of {left} in all"
        if not self.chunks_left:
            joined = f"{counted(self.chunks, 'chunk')} to join" if self.chunks else "every text has a vector"
            return f"nothing left to compute: {joined}"
        if not self.texts_per_s:
            return todo
        return (
            f"{todo}; about {human_time(self.texts_left / self.texts_per_s)} of computing at the speed of the last run"
        )


@event("{text}")
class Note(Event):
    """Something that only people need to know."""

    text: str


@event("the run stood still for {gap_s:.0f} s: the machine was suspended, or its container was frozen", Severity.CARE)
class StoodStill(Event):
    """The loop was not run for a while; what waits for workers is not charged with it."""

    gap_s: float


@event("{sentence}", Severity.CARE)
class Waiting(Event):
    """Nothing is started for a while, on one device or on all."""

    delay_s: float
    """Until the next try."""
    reason: str
    outcome: str = ""
    waited_s: float = 0.0
    """So far; 0 = the wait begins."""
    limit_s: float = 0.0
    """How long the run waits at most; 0 = not told."""
    again: bool = False
    """It was told less than a minute ago: people need not hear of it again."""

    @property
    def sentence(self) -> str:
        """For people; empty where they know."""
        if self.again:
            return ""
        most = f", for up to {human_time(self.limit_s)}" if self.limit_s else ""
        if self.waited_s:
            return f"still waiting, {human_time(self.waited_s)} by now{most}: {self.reason}"
        return f"waiting{most}: {self.reason}"


@event("batches{where}: from now on at most {most}", Severity.CARE)
class LimitsLowered(Event):
    """A batch did not fit: from now on they are smaller."""

    rows: int
    tokens: int | None = None
    """Padded; None where tokens cannot be counted."""
    where: str = ""
    """The kind of device, where there are several."""

    @property
    def most(self) -> str:
        """What a batch has, at most."""
        return counted(self.rows, "row") if self.tokens is None else counted(self.tokens, "token")


@event("{signal}: {how}; a second signal stops at once")
class Draining(Event):
    """Nothing new is started."""

    signal: str = ""
    """Or the option that ends the run."""
    how: str = "finishing the chunks under way"


@event()
class Halted(Event):
    """The last event of a run that did not end well, with its exit code and its last words."""

    code: int
    what: str = ""
    why: str = ""
    remedy: str = ""
    log: str = ""
    see: str = ""
    outcome: str = ""
    """What became of the attempt that ended the run; empty where no attempt did."""

    @property
    def last_words(self) -> list[str]:
        """The message, one part a line; nothing for an end without one."""
        return lines_of_end(self.details())


@event()
class RunEnded(Event):
    """The last event of a run that has ended well."""

    code: int


def _devices_in_words(devices: str) -> str:
    """Such as `the CPU`, `2 x NVIDIA H100 (GPU-1, GPU-2)` and `8 x NVIDIA H100`; the journal has all ids."""
    if devices == "cpu":
        return "the CPU"
    ids: dict[str, list[str]] = {}
    for device in devices.split(", "):
        name, _, rest = device.partition(" (")
        ids.setdefault(name, []).append(rest.rstrip(")"))
    return ", ".join(_kind_in_words(*each) for each in ids.items())


def _kind_in_words(name: str, ids: list[str]) -> str:
    kind = name if len(ids) == 1 else f"{len(ids)} x {name}"
    return f"{kind} ({', '.join(ids)})" if all(ids) and len(ids) <= _MOST_IDS else kind
