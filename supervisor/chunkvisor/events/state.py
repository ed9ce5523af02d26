"""What the events of a journal add up to: the one value that all views are made from, through `show.snapshot`.

Events come with their time. All of it goes into JSON and back, so that a long journal need not be read whole.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from chunkvisor.events import event as of
from chunkvisor.events.event import Event, Severity, plain
from chunkvisor_worker.contract.exits import Outcome

STARTING, COMPUTING = "starting the first workers", "computing"
STOPPING = "stopping: the chunks under way are finished or saved first"
_STAGES: dict[type[Event], str] = {
    of.Doing: "{0.doing}",
    of.Resolving: "asking the model hub for {0.model}",
    of.WorkPlanned: STARTING,
    of.Staging: "reading the source of {0.output}",
    of.TemplateStarted: "loading the model, once for all workers",
    of.Go: COMPUTING,
    of.Assembling: "joining the chunks of {0.output}",
    of.OutputComplete: COMPUTING,
    of.Draining: STOPPING,
    of.RunEnded: "finished",
    of.Halted: "ended",
}
"""What a run is at from that event on."""
_NO_WORK = (
    of.Invoked,
    of.RunStarted,
    of.Resolving,
    of.Doing,
    of.Warned,
    of.OutputAlreadyComplete,
    of.RunEnded,
    of.Halted,
)
"""All that a run reports that finds everything done, or cannot begin."""
_WINDOW = 48
"""Commits over which the rates of a live run are taken: long enough to be calm, short enough to follow a change."""
_LAST_LINES = 5


class AttemptKey(NamedTuple):
    """Which attempt."""

    output: str
    chunk: int
    attempt: int


@dataclass(slots=True)
class OutputProgress:
    """How far an output is."""

    rows: int = 0
    distinct: int = 0  # texts; 0 if an earlier run has completed it
    chunks: int = 0
    chunks_done: int = 0
    texts_done: int = 0  # in these chunks, or reused
    texts_saved: int = 0  # of the chunks that are not done
    texts_under_way: int = 0  # that workers have encoded just now: only in a snapshot
    complete: bool = False
    texts_here: int = 0  # encoded by this run and kept, like its tokens
    tokens_here: int = 0
    quarantined: int = 0  # texts, by this run
    without: int = 0  # rows without a vector, found by this run or before it

    @property
    def share(self) -> float:
        """Of its texts that are encoded, from 0 to 1."""
        done = self.texts_done + self.texts_saved + self.texts_under_way
        return 1.0 if self.complete else min(1.0, done / max(1, self.distinct))

    @property
    def rows_done(self) -> int:
        """Rows whose text is encoded."""
        return int(self.rows * self.share)

    @property
    def estimated(self) -> bool:
        """Whether `rows_done` is an estimate: in how many rows the encoded texts are is not counted."""
        return self.distinct != self.rows and 0 < self.share < 1


@dataclass(slots=True)
class ActiveWorker:
    """An attempt under way."""

    key: AttemptKey
    device: int
    pid: int
    computing: bool = False  # it has its `go`; the others are prepared ahead
    limit_rows: int = 0


@dataclass(slots=True)
class DeviceTimes:
    """Of one device, in one run; the attribute names are keys of `status --json`."""

    texts: int = 0
    """Distinct texts that it has encoded."""
    tokens: int = 0
    """Without padding; 0 where the encoder cannot count them."""
    padded_tokens: int = 0
    """With it."""
    busy_s: float = 0.0
    """From the moment a worker gets the device to its end."""
    idle_s: float = 0.0
    """Between one worker's end and the moment when the next one gets the device: what isolation costs."""
    startup_s: float = 0.0
    """Imports, loading and tokenising of all workers; what of it is not in `idle_s` was hidden behind others' work."""
    texts_per_s: float | None = None
    """While busy."""
    tokens_per_s: float | None = None
    """While busy, without padding."""
    padding_share: float | None = None
    """Of the tokens that were computed."""

    def add(self, ended: of.WorkerEnded) -> None:
        """Take in the end of a worker."""
        for name in ("texts", "tokens", "padded_tokens", "busy_s", "idle_s", "startup_s"):
            setattr(self, name, round(getattr(self, name) + getattr(ended, name), 4))
        if self.padded_tokens:
            self.padding_share = round(1 - self.tokens / self.padded_tokens, 4)
        if self.busy_s:
            self.texts_per_s = round(self.texts / self.busy_s, 3)
            self.tokens_per_s = round(self.tokens / self.busy_s, 3) if self.tokens else None


class Point(NamedTuple):
    """What a run had committed at a time."""

    t: float
    texts: int
    tokens: int


class NewsLine(NamedTuple):
    """A line for people, with its time in seconds since the epoch."""

    severity: Severity
    t: float
    words: str


@dataclass(slots=True)
class RunState:
    """What is known of a workdir after some events: of its last run, and in sums of all."""

    # These stand until a run has begun to work, whatever is invoked before.
    attempts_before: dict[str, int] = field(default_factory=dict)  # of earlier runs, by outcome
    wanted: tuple[str, ...] = ()  # outputs of the config
    device_times: dict[str, DeviceTimes] = field(default_factory=dict)
    texts_per_s: float | None = None  # by the last commit

    workdir: str = ""  # as the run sees it; empty until it has reported it
    invocation: str = ""
    command: str = ""
    began_s: float = 0.0
    told_s: float = 0.0  # time of the last event
    started: bool = False  # it has begun to work
    worked: bool = False  # it has found something to do
    doing: str = "starting"
    doing_since_s: float = 0.0  # 0 = since it began
    ending: of.Halted | None = None  # one that has ended well has a code and no words
    attempts: dict[str, int] = field(default_factory=dict)  # that have ended, by outcome
    eta_s: float | None = None
    outputs: dict[str, OutputProgress] = field(default_factory=dict)
    workers: dict[str, ActiveWorker] = field(default_factory=dict)
    devices: dict[str, str] = field(default_factory=dict)  # names by number
    on_cluster: bool = False  # its devices come with the nodes of a cluster
    nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # numbers of each node's devices
    split: dict[str, bool] = field(default_factory=dict)  # chunks that are being taken apart
    saved: dict[str, int] = field(default_factory=dict)  # texts that this run has kept, until their chunk is committed
    chunks_here: int = 0  # committed by this run
    batch_rows: int = 0  # texts in a batch, at most, as of the last `go`
    first_go_s: float | None = None
    kept_s: float = 0.0  # when texts of this run were last committed or saved
    points: tuple[Point, ...] = ()  # after its first `go` and after each of the last commits
    failed: int = 0  # attempts
    set_aside: int = 0  # chunks
    dropped: int = 0  # devices
    waits_until_s: float = 0.0
    waits_for: str = ""  # empty again once the run has got on: between two waits for the same thing it has not
    last_lines: tuple[NewsLine, ...] = ()  # for people

    def total(self, name: str) -> int:
        """Add up a count of all outputs."""
        return sum(getattr(each, name) for each in self.outputs.values())

    def apply(self, event: Event, t: float) -> None:
        """Take in an event of time `t`, seconds since the epoch."""
        if isinstance(event, of.Invoked) or (isinstance(event, of.RunStarted) and self.ending is not None):
            self._begin(event, t)
        self.told_s = t
        self.worked = self.worked or not isinstance(event, _NO_WORK)
        # A worker that gets its device while the run stops does not make it compute again.
        doing = _STAGES.get(type(event), self.doing).format(event)
        if doing != self.doing and not (isinstance(event, of.Go) and self.doing == STOPPING):
            self.doing, self.doing_since_s = doing, t
        if isinstance(event, of.ChunkEvent):
            self._of_chunk(event, t)
        else:
            self._of_run(event, t)
        if line := event.line:
            self.last_lines = (*self.last_lines[1 - _LAST_LINES :], NewsLine(event.severity, t, line))

    def _begin(self, event: of.Invoked | of.RunStarted, t: float) -> None:
        """Forget the run before, but for what stands until this one begins to work."""
        before = {each: self.attempts_before.get(each, 0) for each in self.attempts_before | self.attempts}
        for outcome, count in self.attempts.items():
            before[outcome] += count
        self.__init__(before, self.wanted, self.device_times, self.texts_per_s)  # type: ignore[misc]  # a fresh one
        self.began_s, self.workdir = t, event.workdir
        self.invocation, self.command = getattr(event, "invocation", ""), getattr(event, "command", "")

    def _of_run(self, event: Event, t: float) -> None:
        match event:
            case of.RunStarted():
                self.started, self.wanted = True, event.outputs
                self.device_times, self.texts_per_s, self.eta_s = {}, None, None
                self.on_cluster = event.engine == "ray"
                self.devices = {} if self.on_cluster else _labels_of(event.device)
            case of.NodeJoined():
                joined = _labels_of(event.device, event.node, event.first)
                self.devices |= joined
                self.nodes[event.node] = tuple(joined)
            case of.NodeLost() | of.NodeSetAside():
                for number in self.nodes.pop(event.node, ()):
                    self.devices.pop(number, None)
            case of.DeviceDropped():
                self.dropped += 1
            case of.Waiting():
                self.waits_until_s, self.waits_for = t + event.delay_s, plain(event.reason)
            case of.Halted():
                self.ending = event
            case of.RunEnded():
                self.ending = of.Halted(event.code)
            case of.OutputOpened():
                output = self._output(event.output)
                for name in ("rows", "distinct", "chunks", "chunks_done", "texts_done", "texts_saved"):
                    setattr(output, name, getattr(event, name))
                output.without, self.waits_for = event.quarantined, ""
            case of.OutputAlreadyComplete() | of.OutputComplete():
                output = self._output(event.output)
                output.rows, output.complete = event.rows, True
            case of.Quarantined():  # nothing more is done about the text, so it counts as done
                output, chunk = self._output(event.output), f"{event.output}/{event.chunk}"
                output.quarantined, output.without = output.quarantined + 1, output.without + event.rows
                output.texts_saved, self.saved[chunk] = output.texts_saved + 1, self.saved.get(chunk, 0) + 1
            case of.Doing() | of.Staging() | of.Assembling():
                self.waits_for = ""

    def _of_chunk(self, event: of.ChunkEvent, t: float) -> None:
        chunk = f"{event.output}/{event.chunk}"
        key = f"{chunk}/{getattr(event, 'attempt', 0)}"
        match event:
            case of.AttemptStarted():
                which = AttemptKey(event.output, event.chunk, event.attempt)
                self.workers[key] = ActiveWorker(which, event.device, event.pid)
            case of.Go():
                self.waits_for, self.batch_rows = "", event.rows
                if (found := self.workers.get(key)) is not None:
                    found.computing, found.limit_rows = True, event.rows
                self.first_go_s = self.first_go_s or t
                self.points = self.points or (self._point(t),)
            case of.WorkerEnded():
                self.workers.pop(key, None)
                self.device_times.setdefault(str(event.device), DeviceTimes()).add(event)
            case of.FailureEvent():
                self._count(event.outcome)
                self.failed += not isinstance(event, of.AttemptInterrupted)
            case of.ChunkSplit():
                self.split[chunk] = True
            case of.ChunkSetAside():
                self.set_aside += 1
            case of.PartCommitted() | of.BatchesKept():
                if isinstance(event, of.PartCommitted):
                    self._count(Outcome.COMMITTED)
                output = self._output(event.output)
                output.texts_saved += event.texts
                if self.first_go_s is not None:  # what was kept before is not this run's
                    output.texts_here += event.texts
                    output.tokens_here += event.tokens
                    self.kept_s, self.saved[chunk] = t, self.saved.get(chunk, 0) + event.texts
            case of.ChunkCommitted():
                self._commit(event, chunk, t)

    def _commit(self, event: of.ChunkCommitted, chunk: str, t: float) -> None:
        output = self._output(event.output)
        output.chunks_done, output.texts_done = event.chunks_done, event.texts_done
        saved = self.saved.pop(chunk, 0) + event.texts_before
        output.texts_saved = max(0, output.texts_saved - saved)
        output.texts_here += max(0, event.texts - saved)
        output.tokens_here += event.tokens
        self.split.pop(chunk, None)
        self.chunks_here, self.kept_s = self.chunks_here + 1, t
        self.texts_per_s, self.eta_s = event.texts_per_s, event.eta_s
        if event.attempt_ok:  # no single attempt has made one that was taken apart
            self._count(Outcome.COMMITTED)
        if self.points:
            self.points = (*self.points[1 - _WINDOW :], self._point(t))

    def _output(self, name: str) -> OutputProgress:
        return self.outputs.setdefault(name, OutputProgress())

    def _point(self, t: float) -> Point:
        return Point(t, self.total("texts_here"), self.total("tokens_here"))

    def _count(self, outcome: str) -> None:
        self.attempts[str(outcome)] = self.attempts.get(str(outcome), 0) + 1


def _labels_of(devices: str, node: str = "", first: int = 0) -> dict[str, str]:
    """Name the devices of this machine or of a node shortly, by their numbers, which begin with `first`."""
    short = ["CPU" if name == "cpu" else f"GPU {number}" for number, name in enumerate(devices.split(", "))]
    return {str(first + number): f"{node} {name}".lstrip() for number, name in enumerate(short)}
