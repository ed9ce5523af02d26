"""What the events of a journal come to: the one fold of them, of which every view is made.

Pure: events come with their time. All goes into JSON and back, so that nobody has to read a long journal whole.
"""

from dataclasses import dataclass, field

from chunkvisor.events import attempt as of_attempt
from chunkvisor.events import device as of_device
from chunkvisor.events import model as of_model
from chunkvisor.events import output as of_output
from chunkvisor.events import run as of_run
from chunkvisor.events.event import Event, plain
from chunkvisor.events.progress import ActiveWorker, DeviceTimes, NewsLine, OutputProgress, Point, labels_of
from chunkvisor.events.stages import NO_WORK, STAGES, STOPPING
from chunkvisor_worker.contract.exits import Outcome

_WINDOW = 48
"""Commits over which the rates of a live run are taken: long enough to be calm, short enough to follow a change."""
_LAST_LINES = 5


@dataclass(slots=True)
class RunState:
    """What is known of a workdir after some events: of its last run, and in sums of all."""

    # Of all runs.
    attempts_before: dict[str, int] = field(default_factory=dict)
    """Ended attempts of earlier runs, by outcome."""

    # Of the last run that has begun to work.
    wanted: tuple[str, ...] = ()
    """Outputs of its config."""
    """By output."""
    device_times: dict[str, DeviceTimes] = field(default_factory=dict)
    """By number."""
    texts_per_s: float | None = None
    """As its last commit told."""

    # Of the last run.
    workdir: str = ""
    """As the run sees it; empty until it has told."""
    """Such as 3/8; empty for a run of the whole."""
    invocation: str = ""
    command: str = ""
    began_s: float = 0.0
    told_s: float = 0.0
    """Time of the last event."""
    started: bool = False
    """It has begun to work."""
    worked: bool = False
    """It has found something to do."""
    doing: str = "starting"
    doing_since_s: float = 0.0
    """0 = since it began."""
    ending: of_run.Halted | None = None
    """Its last event; one that has ended well has a code and no words."""
    attempts: dict[str, int] = field(default_factory=dict)
    """That have ended, by outcome."""
    eta_s: float | None = None
    outputs: dict[str, OutputProgress] = field(default_factory=dict)
    workers: dict[str, ActiveWorker] = field(default_factory=dict)
    devices: dict[str, str] = field(default_factory=dict)
    """Names by number."""
    on_cluster: bool = False
    """Its devices come with the nodes of a cluster."""
    nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Numbers of each node's devices."""
    split: dict[str, bool] = field(default_factory=dict)
    """The chunks that are being taken apart."""
    saved: dict[str, int] = field(default_factory=dict)
    """Texts that this run has kept, by the chunk, until that is committed."""
    chunks_here: int = 0
    """Committed by this run."""
    batch_rows: int = 0
    """Texts in a batch, at most, as of the last `go`."""
    first_go_s: float | None = None
    kept_s: float = 0.0
    """When texts of this run were last committed or saved."""
    points: tuple[Point, ...] = ()
    """After its first `go` and after each of the last commits."""
    failed: int = 0
    """Attempts."""
    set_aside: int = 0
    """Chunks."""
    dropped: int = 0
    """Devices."""
    waits_until_s: float = 0.0
    waits_for: str = ""
    """Empty again once the run has got on: between two waits for the same thing it has not."""
    last_lines: tuple[NewsLine, ...] = ()
    """The last lines for people."""

    @property
    def texts_here(self) -> int:
        """Encoded by this run and kept."""
        return sum(output.texts_here for output in self.outputs.values())

    @property
    def tokens_here(self) -> int:
        """Encoded by this run and kept."""
        return sum(output.tokens_here for output in self.outputs.values())

    @property
    def quarantined(self) -> int:
        """Texts, by this run."""
        return sum(output.quarantined for output in self.outputs.values())

    @property
    def without(self) -> int:
        """Rows without a vector, as far as they have been found."""
        return sum(output.without for output in self.outputs.values())

    def apply(self, event: Event, t: float) -> None:
        """Take in an event of time `t`, seconds since the epoch."""
        if isinstance(event, of_run.Invoked) or (isinstance(event, of_run.RunStarted) and self.ending is not None):
            self._begin(event, t)
        self.told_s = t
        self.worked = self.worked or not isinstance(event, NO_WORK)
        if (stage := STAGES.get(type(event))) and not (isinstance(event, of_attempt.Go) and self.doing == STOPPING):
            self._do(stage.format(event), t)
        self._apply_to_run(event, t)
        self._apply_to_output(event, t)
        self._apply_to_workers(event, t)
        if line := event.line:
            kept = self.last_lines[-_LAST_LINES + 1 :]
            self.last_lines = (*kept, NewsLine(event.severity, t, line))

    def _begin(self, event: of_run.Invoked | of_run.RunStarted, t: float) -> None:
        """Forget the run before, but for what stands until this one begins to work."""
        before = dict(self.attempts_before)
        for outcome, count in self.attempts.items():
            before[outcome] = before.get(outcome, 0) + count
        kept = (before, self.wanted, self.device_times, self.texts_per_s)
        self.__init__(*kept)  # type: ignore[misc]  # every other field to its default
        self.began_s, self.workdir = t, event.workdir
        self.invocation, self.command = getattr(event, "invocation", ""), getattr(event, "command", "")

    def _do(self, doing: str, t: float) -> None:
        if doing != self.doing:
            self.doing, self.doing_since_s = doing, t

    def _apply_to_run(self, event: Event, t: float) -> None:
        match event:
            case of_run.RunStarted():
                self.started, self.wanted = True, event.outputs
                self.device_times, self.texts_per_s, self.eta_s = {}, None, None
                self.on_cluster = event.engine == "ray"
                self.devices = {} if self.on_cluster else labels_of(event.device)
            case of_device.NodeJoined():
                joined = labels_of(event.device, event.node, event.first)
                self.devices |= joined
                self.nodes[event.node] = tuple(joined)
            case of_device.NodeLost() | of_device.NodeSetAside():
                for number in self.nodes.pop(event.node, ()):
                    self.devices.pop(number, None)
            case of_device.DeviceDropped():
                self.dropped += 1
            case of_run.Waiting():
                self.waits_until_s, self.waits_for = t + event.delay_s, plain(event.reason)
            case of_model.CheckingModel() | of_output.Staging() | of_output.OutputOpened() | of_output.Assembling():
                self.waits_for = ""
            case of_run.Halted():
                self.ending = event
            case of_run.RunEnded():
                self.ending = of_run.Halted(event.code)

    def _apply_to_output(self, event: Event, t: float) -> None:
        match event:
            case of_output.OutputOpened():
                output = self._output(event.output)
                output.begin(event)
            case of_output.OutputAlreadyComplete() | of_output.OutputComplete():
                output = self._output(event.output)
                output.rows, output.complete = event.rows, True
            case of_attempt.ChunkCommitted():
                self._commit(event, t)
            case of_attempt.PartCommitted() | of_attempt.BatchesKept():
                self._save(event)
            case of_attempt.ChunkSplit():
                self.split[_key(event)] = True
            case of_attempt.Quarantined():
                self._output(event.output).give_up(event.rows)
                key = f"{event.output}/{event.chunk}"
                self.saved[key] = self.saved.get(key, 0) + bool(event.rows)
            case of_attempt.ChunkSetAside():
                self.set_aside += 1

    def _apply_to_workers(self, event: Event, t: float) -> None:
        match event:
            case of_attempt.AttemptStarted():
                worker = ActiveWorker(event.output, event.chunk, event.attempt, event.device, event.pid)
                self.workers[_key(event)] = worker
            case of_attempt.Go():
                self.waits_for, self.batch_rows = "", event.rows
                if (found := self.workers.get(_key(event))) is not None:
                    found.computing, found.limit_rows = True, event.rows
                self.first_go_s = self.first_go_s or t
                self.points = self.points or (Point(t, self.texts_here, self.tokens_here),)
            case of_attempt.WorkerEnded():
                self.workers.pop(_key(event), None)
                self.device_times.setdefault(str(event.device), DeviceTimes()).add(event)
            case of_attempt.PartCommitted():
                self._count(Outcome.COMMITTED)
            case of_attempt.FailureEvent():
                self._count(event.outcome)
                self.failed += not isinstance(event, of_attempt.AttemptInterrupted)

    def _save(self, event: of_attempt.PartCommitted | of_attempt.BatchesKept) -> None:
        output = self._output(event.output)
        output.texts_saved += event.texts
        if self.first_go_s is not None:  # what was taken over before is not this run's
            output.texts_here += event.texts
            output.tokens_here += event.tokens
            self.kept_s = self.told_s
            self.saved[_key(event)] = self.saved.get(_key(event), 0) + event.texts

    def _commit(self, event: of_attempt.ChunkCommitted, t: float) -> None:
        output = self._output(event.output)
        output.chunks_done, output.texts_done = event.chunks_done, event.texts_done
        saved = self.saved.pop(_key(event), 0) + event.texts_before
        output.texts_saved = max(0, output.texts_saved - saved)
        output.texts_here += max(0, event.texts - saved)
        output.tokens_here += event.tokens
        self.split.pop(_key(event), None)
        self.chunks_here, self.kept_s = self.chunks_here + 1, t
        self.texts_per_s, self.eta_s = event.texts_per_s, event.eta_s
        if event.attempt_ok:  # one that was taken apart was put together by no attempt of its own
            self._count(Outcome.COMMITTED)
        if self.points:
            self.points = (*self.points[1 - _WINDOW :], Point(t, self.texts_here, self.tokens_here))

    def _output(self, name: str) -> OutputProgress:
        return self.outputs.setdefault(name, OutputProgress())

    def _count(self, outcome: str) -> None:
        self.attempts[str(outcome)] = self.attempts.get(str(outcome), 0) + 1


def _key(event: of_attempt.ChunkEvent) -> str:
    """Of the attempt; of the chunk, where it is about no attempt."""
    key = f"{event.output}/{event.chunk}"
    return f"{key}/{event.attempt}" if isinstance(event, of_attempt.AttemptEvent) else key
