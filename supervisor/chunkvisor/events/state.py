"""What the events of a journal add up to.

The one value that all views are made from, through `show.snapshot`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from chunkvisor.events import event as events
from chunkvisor.events.event import STOPPING, Event, plain
from chunkvisor_worker.contract.exits import Outcome

_WINDOW = 48
"""Commits over which the rates of a live run are taken: long enough to be calm, short enough to
follow a change."""


class AttemptKey(NamedTuple):
    """Which attempt."""

    output: str
    chunk: int
    attempt: int


@dataclass(slots=True)
class Progress:
    """How far an output is."""

    rows: int = 0
    distinct: int = 0  # texts
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
        """Whether `rows_done` is an estimate.

        In how many rows the encoded texts are is not counted.
        """
        return self.distinct != self.rows and 0 < self.share < 1


@dataclass(slots=True)
class ActiveWorker:
    """An attempt under way."""

    device: str
    pid: int
    computing: bool = False  # it has its `go`; the others are prepared ahead


@dataclass(slots=True)
class DeviceTimes:
    """Of one device, in one run; the attribute names are keys of `status --json`."""

    texts: int = 0
    """Distinct texts encoded."""
    tokens: int = 0
    """Without padding; 0 if unknown."""
    padded_tokens: int = 0
    """With it."""
    busy_s: float = 0.0
    """Time in which workers had the device."""
    idle_s: float = 0.0
    """Time between workers: what isolation costs."""
    startup_s: float = 0.0
    """Imports, loading and tokenizing of all workers; most of it is hidden behind the work of
    others."""

    def add_worker(self, ended: events.WorkerEnded) -> None:
        """Take in the end of a worker."""
        for name in ("texts", "tokens", "padded_tokens", "busy_s", "idle_s", "startup_s"):
            setattr(self, name, round(getattr(self, name) + getattr(ended, name), 4))


@dataclass(slots=True)
class RunState:
    """What is known of a workdir after some events: of its last run, and in sums of all."""

    # These stand until a run has begun to work, whatever is invoked before.
    attempts_before: Counter[str] = field(default_factory=Counter)  # of earlier runs, by outcome
    wanted: tuple[str, ...] = ()  # outputs of the config
    device_times: dict[str, DeviceTimes] = field(default_factory=dict)
    texts_per_s: float | None = None  # by the last commit
    outputs: dict[str, Progress] = field(default_factory=dict)
    """Until this run tells of them, as the one before did."""

    workdir: str = ""  # as the run sees it; empty until it has reported it
    command: str = ""
    began_s: float = 0.0
    last_event_s: float = 0.0  # time of the last event
    worked: bool = False  # it has found something to do
    doing: str = "starting"
    ending: events.Halted | None = None  # one that has ended well has a code and no words
    attempts: Counter[str] = field(default_factory=Counter)  # that have ended, by outcome
    workers: dict[AttemptKey, ActiveWorker] = field(default_factory=dict)
    devices: dict[str, str] = field(default_factory=dict)  # names by number
    gpus: tuple[str, ...] = ()  # their UUIDs
    on_cluster: bool = False  # its devices come with the nodes of a cluster
    saved: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Texts that this run has kept, by open chunk."""
    searched: dict[tuple[str, int], int] = field(default_factory=dict)
    """Texts left, by chunk with one that fails."""
    chunks_here: int = 0  # committed by this run
    first_go_s: float | None = None
    start_s: dict[str, float] = field(default_factory=dict)
    """Seconds before that, by what the run was at."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """Of the template and of workers that committed a chunk."""
    kept_s: float = 0.0  # when texts of this run were last committed or saved
    points: list[tuple[float, int, int]] = field(default_factory=list)
    """(when, texts, tokens) that it had committed, after its first `go` and after each of the last
    commits."""
    failed: int = 0  # attempts
    set_aside: int = 0  # chunks
    dropped: int = 0  # devices
    waits_until_s: float = 0.0
    waits_for: str = ""
    """Empty again once the run has got on: between two waits for the same thing it has not."""

    def total(self, name: str) -> int:
        """Add up a count of all outputs."""
        return sum(getattr(each, name) for each in self.outputs.values())

    def apply(self, event: Event, t: float) -> None:
        """Take in an event of time `t`, seconds since the epoch."""
        if isinstance(
            event, events.Invoked
        ):  # forget the run before, but for what stands until this one begins to work
            before = self.attempts_before + self.attempts
            outputs = {
                n: replace(each, texts_here=0, tokens_here=0, quarantined=0)
                for n, each in self.outputs.items()
            }
            self.__init__(before, self.wanted, self.device_times, self.texts_per_s, outputs)  # type: ignore[misc]  # anew
            self.began_s = t
            self.last_event_s = t
            self.workdir = event.workdir
            self.command = event.command
        if self.first_go_s is None and self.ending is None:
            _add(self.start_s, {self.doing: t - self.last_event_s})
        self.last_event_s = t
        stage = event.stage and event.stage.format_map(vars(event))
        # A worker that gets its device while the run stops does not make it compute again.
        if stage and not (isinstance(event, events.Go) and self.doing == STOPPING):
            self.doing = stage
        if stage or isinstance(event, events.OutputOpened):
            self.waits_for = ""
        if isinstance(event, events.ChunkEvent):
            self._of_chunk(event, t)
        elif isinstance(event, events.OutputEvent):
            self._of_output(event)
        else:
            self._of_run(event, t)

    def _of_run(self, event: Event, t: float) -> None:
        match event:
            case events.RunStarted():
                self.wanted = event.outputs
                self.gpus = event.gpus
                self.device_times = {}
                self.texts_per_s = None
                self.on_cluster = event.engine == "ray"
                self.devices = {} if self.on_cluster else _labels_of(event.device)
                self.outputs = {
                    name: each for name, each in self.outputs.items() if name in event.outputs
                }
            case events.NodeJoined():
                self.devices |= _labels_of(event.device, f"{event.node} ", event.first)
            case events.NodeLost():
                self.devices = {
                    n: name
                    for n, name in self.devices.items()
                    if not name.startswith(f"{event.node} ")
                }
            case events.DeviceDropped():
                self.dropped += 1
            case events.TemplateReady():
                _add(self.phases_s, event.phase_s)
            case events.Waiting():
                self.waits_until_s, self.waits_for = t + event.delay_s, plain(event.reason)
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
            case events.OutputAlreadyComplete():  # or complete now
                output.rows = event.rows
                output.complete = True
            case events.Quarantined():  # nothing more is done about the text, so it counts as done
                output.quarantined += 1
                output.without += event.rows
                output.texts_saved += 1
                self.saved[event.output, event.chunk] += 1

    def _of_chunk(self, event: events.ChunkEvent, t: float) -> None:
        key = AttemptKey(event.output, event.chunk, getattr(event, "attempt", 0))
        match event:
            case events.AttemptStarted():
                self.workers[key] = ActiveWorker(str(event.device), event.pid)
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
                self.attempts[event.outcome] += 1
                self.failed += not isinstance(event, events.AttemptInterrupted)
            case events.ChunkSplit():
                self.searched[event.output, event.chunk] = event.texts
            case events.ChunkSetAside():
                self.set_aside += 1
                self.searched.pop((event.output, event.chunk), None)
            case events.PartCommitted() | events.BatchesKept():
                self.attempts[str(Outcome.COMMITTED)] += isinstance(event, events.PartCommitted)
                output = self.outputs.setdefault(event.output, Progress())
                output.texts_saved += event.texts
                if self.first_go_s is not None:  # what was kept before is not this run's
                    output.texts_here += event.texts
                    output.tokens_here += event.tokens
                    self.saved[event.output, event.chunk] += event.texts
                    self.kept_s = t
            case events.ChunkCommitted():
                self._commit(event, t)

    def _commit(self, event: events.ChunkCommitted, t: float) -> None:
        output = self.outputs.setdefault(event.output, Progress())
        output.chunks_done = event.chunks_done
        output.texts_done = event.texts_done
        saved = self.saved.pop((event.output, event.chunk), 0) + event.texts_before
        output.texts_saved = max(0, output.texts_saved - saved)
        output.texts_here += max(0, event.texts - saved)
        output.tokens_here += event.tokens
        self.chunks_here += 1
        self.kept_s = t
        _add(self.phases_s, event.phase_s)
        self.searched.pop((event.output, event.chunk), None)
        self.texts_per_s = event.texts_per_s
        self.attempts[str(Outcome.COMMITTED)] += (
            event.attempt_ok
        )  # no single attempt has made one of parts
        if self.points:
            self._add_point(t)

    def _add_point(self, t: float) -> None:
        self.points = [
            *self.points[1 - _WINDOW :],
            (t, self.total("texts_here"), self.total("tokens_here")),
        ]


def _add(sums: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0.0) + value


def _labels_of(devices: str, node: str = "", first: int = 0) -> dict[str, str]:
    """Name the devices of a machine shortly, by their numbers, which begin with `first`."""
    names = enumerate(devices.split(", "), first)
    return {
        str(number): f"{node}{'CPU' if name == 'cpu' else f'GPU {number - first}'}"
        for number, name in names
    }
