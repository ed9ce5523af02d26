"""What the events of a journal add up to: the one value from which all views are made.

`RunState.apply` adds one event; `show.snapshot` makes words and rates of the sums.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chunkvisor.events import event as events
from chunkvisor.units import human_bytes
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import merge_peaks

_WINDOW = 48
"""The rates of a live run are taken over this many commits: enough to be steady, few enough to
follow a change."""
_WELL_USED = 0.75
"""Of the memory that torch has reserved, more than this share is allocated at the peak. Less is a
sign of memory in pieces that are too small to be used."""


@dataclass(slots=True)
class Progress:
    """How far an output is.

    Each of its distinct texts is in one of four states: done (its chunk is committed, or its vector
    is reused), saved (its vector is on disk, but the chunk has others left), under way (a worker
    has encoded it, and not handed it over yet), or left to be encoded.
    """

    rows: int = 0
    distinct: int = 0
    chunks: int = 0
    chunks_done: int = 0
    texts_done: int = 0
    texts_saved: int = 0
    texts_under_way: int = 0  # only in a snapshot; journals do not know it
    complete: bool = False
    texts_here: int = 0  # encoded by this run and kept
    tokens_here: int = 0  # of these texts
    quarantined: int = 0  # texts quarantined by this run
    without: int = 0  # rows without a vector, found by this run or an earlier one

    @property
    def texts_encoded(self) -> int:
        """How many texts are done, saved or under way."""
        return self.texts_done + self.texts_saved + self.texts_under_way

    @property
    def share(self) -> float:
        """The share of its texts that are encoded, from 0 to 1."""
        return 1.0 if self.complete else min(1.0, self.texts_encoded / max(1, self.distinct))

    @property
    def rows_done(self) -> int:
        """How many rows have a text that is encoded, if texts repeat evenly."""
        return int(self.rows * self.share)

    @property
    def estimated(self) -> bool:
        """Whether `rows_done` is an estimate, since texts repeat."""
        return self.distinct != self.rows and 0 < self.share < 1


@dataclass(slots=True)
class ActiveWorker:
    """A worker that lives."""

    started: events.AttemptStarted
    computing: bool = False  # it may use the device; others are prepared ahead


@dataclass(slots=True)
class DeviceTimes:
    """Sums over the workers of one device that have ended; keys of `status --json`."""

    texts: int = 0
    """Distinct texts encoded."""
    tokens: int = 0
    """Tokens without padding; 0 if unknown."""
    padded_tokens: int = 0
    """Tokens with padding."""
    busy_s: float = 0.0
    """Time in which workers had the device."""
    idle_s: float = 0.0
    """Time between workers: what isolation costs."""
    startup_s: float = 0.0
    """Imports, loading and tokenizing of all workers."""
    memory: dict[str, int] = field(default_factory=dict)
    """Highest `resident_bytes` of a worker; on a GPU also `reserved_bytes` and `allocated_bytes` of
    torch."""
    batch_peaks: dict[str, int] = field(default_factory=dict)
    """Most bytes allocated during a batch, by its padded tokens, rounded up to a power of two."""

    def add_worker(self, ended: events.WorkerEnded) -> None:
        """Add a worker that has ended."""
        for name in ("texts", "tokens", "padded_tokens", "busy_s", "idle_s", "startup_s"):
            setattr(self, name, round(getattr(self, name) + getattr(ended, name), 4))
        self.memory = merge_peaks(self.memory, ended.memory)
        self.batch_peaks = merge_peaks(self.batch_peaks, ended.batch_peaks)

    @property
    def fragmented(self) -> str:
        """Say how much memory torch reserved and could not use; empty if that is little."""
        reserved = self.memory.get("reserved_bytes", 0)
        allocated = self.memory.get("allocated_bytes", 0)
        if allocated > _WELL_USED * reserved or not reserved:
            return ""
        return (
            f"torch reserved {human_bytes(reserved)} of the GPU's memory and allocated at most "
            f"{human_bytes(allocated)} of it: the rest is in pieces"
        )


@dataclass(slots=True)
class Point:
    """What a run had kept at a moment."""

    t: float
    texts: int
    tokens: int


@dataclass(slots=True)
class RunState:
    """What the events so far say of a workdir: of its last run, and a few sums over all runs.

    "Here" in a name means: by the last run. All values have a JSON form, so that `journal.Sums` can
    be written; for that reason a dictionary by chunk has keys like `titles chunk 4`.
    """

    # These stay when the next run begins (`Invoked`), so that they can be shown until it has
    # something to say. Their order is that of the call of `__init__` in `apply`.
    attempts_before: dict[str, int] = field(default_factory=dict)  # of earlier runs, by outcome
    wanted: tuple[str, ...] = ()  # outputs of the config, in its order
    device_times: dict[str, DeviceTimes] = field(default_factory=dict)
    outputs: dict[str, Progress] = field(default_factory=dict)
    last_commit: events.ChunkCommitted | None = None  # that knows a rate

    workdir: str = ""  # as the run sees it; empty before its first event
    command: str = ""
    began_s: float = 0.0
    last_event_s: float = 0.0  # time of the last event
    worked: bool = False  # the run has found something to do
    doing: str = "starting"
    ending: events.Halted | None = None  # without a message if the run has ended well
    attempts: dict[str, int] = field(default_factory=dict)  # ended attempts, by outcome
    workers: dict[str, ActiveWorker] = field(default_factory=dict)
    """By attempt, with keys like `titles chunk 4 attempt 1`."""
    devices: dict[str, str] = field(default_factory=dict)  # names by number
    gpus: tuple[str, ...] = ()  # their UUIDs
    on_cluster: bool = False  # the devices come and go with the nodes of a Ray cluster
    saved: dict[str, int] = field(default_factory=dict)
    """Texts that this run has saved, by chunk that is not committed."""
    searched: dict[str, int] = field(default_factory=dict)
    """Texts left to try, by chunk that is searched for a text that fails."""
    chunks_here: int = 0  # committed by this run
    first_go_s: float | None = None  # when a worker first got a device
    start_s: dict[str, float] = field(default_factory=dict)
    """Seconds before that, by what the run was doing."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the template process and of workers that committed a chunk, by phase."""
    kept_s: float = 0.0  # when texts of this run were last committed or saved
    points: tuple[Point, ...] = ()
    """At the first `go`, and after each of the last commits."""
    failed: int = 0  # attempts
    set_aside: int = 0  # chunks
    dropped: int = 0  # devices
    waits_until_s: float = 0.0
    waits_for: str = ""
    """What the run waits for; empty once it has got on."""

    def total(self, name: str) -> int:
        """Add up a count of all outputs."""
        return sum(getattr(each, name) for each in self.outputs.values())

    def apply(self, event: events.Event, t: float) -> None:
        """Add an event that happened at `t`, seconds since the epoch."""
        if isinstance(event, events.Invoked):
            # A new run: forget the one before, except for the first five fields. The observers
            # hold this object, so it is filled again instead of being replaced.
            _add(self.attempts_before, self.attempts)
            for output in self.outputs.values():
                output.texts_here = 0
                output.tokens_here = 0
                output.quarantined = 0
            self.__init__(  # type: ignore[misc]
                self.attempts_before,
                self.wanted,
                self.device_times,
                self.outputs,
                self.last_commit,
            )
            self.began_s = t
            self.last_event_s = t
            self.workdir = event.workdir
            self.command = event.command
        # Until a worker has a device, the time since the last event goes to what was done then.
        if self.first_go_s is None and self.ending is None:
            _add(self.start_s, {self.doing: t - self.last_event_s})
        self.last_event_s = t
        stage = event.stage and event.stage.format_map(vars(event))
        # A worker may still get its device while the run stops: it is shown as stopping even so.
        if stage and not (isinstance(event, events.Go) and self.doing == events.STOPPING):
            self.doing = stage
        if stage or isinstance(event, events.OutputOpened):
            self.waits_for = ""
        if isinstance(event, events.ChunkEvent):
            self._of_chunk(event, t)
        elif isinstance(event, events.OutputEvent):
            self._of_output(event)
        else:
            self._of_run(event, t)

    def _of_run(self, event: events.Event, t: float) -> None:
        match event:
            case events.RunStarted():
                self.wanted = event.outputs
                self.gpus = event.gpus
                self.device_times = {}
                self.on_cluster = event.engine == "ray"
                self.devices = {} if self.on_cluster else _labels_of(event.device)
                self.outputs = {
                    name: each for name, each in self.outputs.items() if name in event.outputs
                }
            case events.NodeJoined():
                self.devices |= _labels_of(event.device, f"{event.node} ", event.first)
            case events.NodeLost():
                self.devices = {
                    number: name
                    for number, name in self.devices.items()
                    if not name.startswith(f"{event.node} ")
                }
            case events.DeviceDropped():
                self.dropped += 1
            case events.TemplateReady():
                _add(self.phases_s, event.phase_s)
            case events.Waiting():
                self.waits_until_s = t + event.delay_s
                self.waits_for = events.plain(event.reason)
            case events.Halted():
                self.ending = event
            case events.RunEnded():
                self.ending = events.Halted(event.code)

    def _of_output(self, event: events.OutputEvent) -> None:
        output = self.outputs.setdefault(event.output, Progress())
        self.worked = self.worked or type(event) is not events.OutputAlreadyComplete
        match event:
            case events.OutputOpened():
                for name in (
                    "rows",
                    "distinct",
                    "chunks",
                    "chunks_done",
                    "texts_done",
                    "texts_saved",
                ):
                    setattr(output, name, getattr(event, name))
                output.without = event.quarantined
                output.complete = False
            case events.OutputAlreadyComplete():  # or OutputComplete, a subclass
                output.rows = event.rows
                output.complete = True
            case events.Quarantined():  # a quarantined text counts as done
                output.quarantined += 1
                output.without += event.rows
                output.texts_saved += 1
                _add(self.saved, {f"{event.output} chunk {event.chunk}": 1})

    def _of_chunk(self, event: events.ChunkEvent, t: float) -> None:
        output = self.outputs.setdefault(event.output, Progress())
        chunk = f"{event.output} chunk {event.chunk}"
        key = f"{chunk} attempt {getattr(event, 'attempt', 0)}"
        match event:
            case events.AttemptStarted():
                self.workers[key] = ActiveWorker(event)
            case events.Go():
                if key in self.workers:
                    self.workers[key].computing = True
                self.first_go_s = self.first_go_s or t
                if not self.points:
                    self._add_point(t)
            case events.WorkerEnded():
                self.workers.pop(key, None)
                self.device_times.setdefault(str(event.device), DeviceTimes()).add_worker(event)
            case events.FailureEvent() if event.attempt:  # else no worker could be started
                _add(self.attempts, {event.outcome: 1})
                self.failed += not isinstance(event, events.AttemptInterrupted)
            case events.ChunkSplit():
                self.searched[chunk] = event.texts
            case events.ChunkSetAside():
                self.set_aside += 1
                self.searched.pop(chunk, None)
            case events.PartCommitted() | events.BatchesKept():
                if isinstance(event, events.PartCommitted):
                    _add(self.attempts, {Outcome.COMMITTED: 1})
                output.texts_saved += event.texts
                # Before a worker computes, a run keeps what the run before it has left.
                if self.first_go_s is not None:
                    output.texts_here += event.texts
                    output.tokens_here += event.tokens
                    _add(self.saved, {chunk: event.texts})
                    self.kept_s = t
            case events.ChunkCommitted():
                self._commit(event, output, chunk, t)

    def _commit(self, event: events.ChunkCommitted, output: Progress, chunk: str, t: float) -> None:
        output.chunks_done = event.chunks_done
        output.texts_done = event.texts_done
        saved = self.saved.pop(chunk, 0) + event.texts_before
        output.texts_saved = max(0, output.texts_saved - saved)
        output.texts_here += max(0, event.texts - saved)
        output.tokens_here += event.tokens
        self.chunks_here += 1
        self.kept_s = t
        _add(self.phases_s, event.phase_s)
        self.searched.pop(chunk, None)
        if event.texts_per_s:
            self.last_commit = event
        # The attempts at parts of a chunk are counted when their parts are committed.
        if event.attempt_ok:
            _add(self.attempts, {Outcome.COMMITTED: 1})
        if self.points:
            self._add_point(t)

    def _add_point(self, t: float) -> None:
        point = Point(t, self.total("texts_here"), self.total("tokens_here"))
        self.points = (*self.points[1 - _WINDOW :], point)


def _add(sums: dict[str, Any], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0) + value


def _labels_of(devices: str, node: str = "", first: int = 0) -> dict[str, str]:
    """Return a short name for each device, by its number as text, which starts at `first`.

    `devices` are their long names with commas: two GPUs are `{"0": "GPU 0", "1": "GPU 1"}`, and
    those of the node `n2` after four others `{"4": "n2 GPU 0", "5": "n2 GPU 1"}`.
    """
    names = enumerate(devices.split(", "), first)
    return {
        str(number): f"{node}{'CPU' if name == 'cpu' else f'GPU {number - first}'}"
        for number, name in names
    }
