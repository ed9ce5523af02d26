"""What there is to see of a run at one moment: its state, its workers' beats and the sensors, put together.

Status, live view, lines, systemd and the report's head are all printed from this one value.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chunkvisor.events.event import Severity
from chunkvisor.events.state import (
    COMPUTING,
    STARTING,
    STOPPING,
    ActiveWorker,
    AttemptKey,
    OutputProgress,
    Point,
    RunState,
)
from chunkvisor.show.sensors import GpuReading, SensorLine, last_line
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor.units import counted, human_time
from chunkvisor_worker.contract.messages import Beat, Phase
from chunkvisor_worker.contract.wire import read_beat

_SILENCE_S = 60.0
"""No batch of a sensible model takes as long."""
_PHASES = {
    Phase.START: ("starting", STARTING),
    Phase.IMPORT: ("importing", "importing the encoder's packages"),
    Phase.MODEL_LOAD: ("loading", "loading the model"),
    Phase.TOKENIZE: ("tokenizing", "counting the tokens of the first chunk"),
    Phase.READY: ("ready", "waiting for the device"),
    Phase.CUDA_INIT: ("GPU start", "starting CUDA on the GPU"),
    Phase.WEIGHTS_COPY: ("copying", "copying the model to the GPU"),
    Phase.FORWARD: ("computing", ""),
    Phase.WRITE: ("writing", ""),
    Phase.DONE: ("writing", ""),
}
"""What a worker is at; and what the run is at, as long as no worker has begun its first batch."""
_SURE = 0.1
"""Share of the tokens under way that has to be done before a time is told from them."""


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker under way."""

    output: str
    chunk: int
    attempt: int
    phase: str
    """In plain words."""
    computing: bool
    """It has its `go`; the others are prepared ahead."""
    texts: int = 0
    texts_done: int = 0
    batch_rows: int = 0
    """Texts in the batch under way, or at most in one; 0 = not known yet."""
    rss_bytes: float | None = None
    silent_s: float = 0.0
    """Since its last sign of progress."""


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A device and what works on it."""

    label: str
    workers: tuple[WorkerState, ...] = ()
    gpu: GpuReading | None = None


@dataclass(frozen=True, slots=True)
class OutputState:
    """How far an output is."""

    name: str
    rows: int
    share: float
    """Of its texts that are encoded, from 0 to 1; what the workers have done of their chunks counts."""
    chunks: int
    chunks_done: int
    complete: bool = False
    """It has its final file."""
    repeats: bool = False
    """Texts stand in several rows."""

    @property
    def rows_done(self) -> int:
        """Rows whose text is encoded."""
        return int(self.rows * self.share)

    @property
    def estimated(self) -> bool:
        """Whether `rows_done` is an estimate: in how many rows the encoded texts stand is not counted."""
        return self.repeats and 0 < self.share < 1


@dataclass(frozen=True, slots=True)
class RunHealth:
    """Whether to worry."""

    severity: Severity
    words: str

    @property
    def marked(self) -> str:
        """The words, with a mark that needs no color."""
        return {Severity.NEWS: "", Severity.CARE: "note: ", Severity.LOSS: "attention: "}[self.severity] + self.words


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment."""

    doing: str
    """What happens, in words, such as "computing"."""
    elapsed_s: float
    health: RunHealth
    outputs: tuple[OutputState, ...] = ()
    devices: tuple[DeviceState, ...] = ()
    rows_per_s: float | None = None
    """Rows encoded, by the time from the first worker's `go` to the last of them; while the run lives, of its last
    chunks. So the first start of the workers is not in it, and what comes between chunks is."""
    tokens_per_s: float | None = None
    eta_s: float | None = None
    by_tokens: bool = False
    """`eta_s` is reckoned from tokens, and not from `rows_per_s`."""
    chunks_here: int = 0
    """Committed by this run."""
    doing_s: float = 0.0
    """For how long it does that, if a person waits for it to be over; 0 = not worth telling."""
    waits_for: str = ""
    """Why nothing is started for a while; empty if nothing is in the way."""

    @property
    def rows(self) -> int:
        """Of all outputs."""
        return sum(output.rows for output in self.outputs)

    @property
    def rows_done(self) -> int:
        """Of all outputs."""
        return sum(output.rows_done for output in self.outputs)

    @property
    def estimated(self) -> bool:
        """Whether `rows_done` is an estimate."""
        return any(output.estimated for output in self.outputs)

    @property
    def chunks(self) -> int:
        """Of all outputs."""
        return sum(output.chunks for output in self.outputs)

    @property
    def chunks_done(self) -> int:
        """Of all outputs."""
        return sum(output.chunks_done for output in self.outputs)

    @property
    def share(self) -> float:
        """Of all rows that are done, from 0 to 1."""
        return sum(output.rows * output.share for output in self.outputs) / self.rows if self.rows else 0.0


@dataclass(frozen=True, slots=True)
class Readings:
    """What the journal does not tell of a live run: the workers' beats, and the last line of the sensors."""

    beats: dict[AttemptKey, tuple[Beat, float]] = field(default_factory=dict)
    """The last beat, and how many seconds it is old by the file's time."""
    sensors: SensorLine = field(default_factory=SensorLine)


def take_readings(layout: Layout, state: RunState, *, sensors: bool = True) -> Readings:
    """Read what is there of the attempts under way, and of the machine."""
    beats = {}
    for key in (worker.key for worker in state.workers.values()):
        path = layout.output(key.output).attempt(key.chunk, key.attempt).beat
        if (beat := read_beat(path)) is not None:
            try:
                beats[key] = (beat, max(0.0, time.time() - path.stat().st_mtime))
            except OSError:
                continue
    if not sensors or not state.invocation:
        return Readings(beats)
    return Readings(beats, last_line(InvocationFiles(layout.runs / state.invocation).sensors))


def look_at(state: RunState, *, sensors: bool = True) -> Snapshot | None:
    """Return what there is to see now of a run in this process; None until it has told its workdir."""
    if not state.workdir:
        return None
    return snapshot_of(state, time.time(), take_readings(Layout(Path(state.workdir)), state, sensors=sensors))


def snapshot_of(state: RunState, now_s: float, readings: Readings) -> Snapshot:
    """Return what there is to see at this moment; `now_s` is ignored once the run has ended."""
    live = state.ending is None
    now_s = max(state.told_s, now_s if live else 0.0)
    workers = {worker.key: _worker_state(worker, readings) for worker in state.workers.values()}
    under_way = dict.fromkeys(state.outputs, 0)
    tokens = 0
    for key, worker in workers.items():
        if worker.computing:
            under_way[key.output] = under_way.get(key.output, 0) + worker.texts_done
            tokens += readings.beats[key][0].tokens_done if key in readings.beats else 0
    texts_per_s, tokens_per_s = _rates(state, now_s, sum(under_way.values()), tokens)
    ours = [output for output in state.outputs.values() if output.distinct]  # not complete before
    distinct, rows = sum(output.distinct for output in ours), sum(output.rows for output in ours)
    left = distinct - sum(output.texts_done + output.texts_saved for output in ours) - sum(under_way.values())
    eta_s = left / texts_per_s if texts_per_s and left > 0 else None
    by_tokens = not state.chunks_here  # the longest texts come first: their rate says little of the others
    if by_tokens:
        eta_s = _by_tokens(state, readings, left, tokens_per_s)
    # How long a search takes is not known, and a run that is stopping ends before its work.
    endless = _searching(state) or state.doing == STOPPING
    doing, doing_s = _doing(state, readings, now_s)
    return Snapshot(
        doing=doing,
        doing_s=doing_s,
        elapsed_s=max(0.0, now_s - state.began_s),
        health=_health(state, list(workers.values()), now_s, live=live),
        outputs=tuple(_output_state(name, output, under_way[name]) for name, output in state.outputs.items()),
        devices=_device_states(state, workers, readings) if live else (),
        rows_per_s=texts_per_s and texts_per_s * (rows / distinct if distinct else 1.0),
        tokens_per_s=tokens_per_s or None,
        eta_s=eta_s if live and not endless else None,
        by_tokens=by_tokens,
        chunks_here=state.chunks_here,
        waits_for=state.waits_for if live else "",
    )


def _doing(state: RunState, readings: Readings, now_s: float) -> tuple[str, float]:
    """Return what the run is at, and for how many seconds if that is worth telling."""
    if state.doing == COMPUTING and _searching(state):
        return "looking for the texts that fail", 0.0
    if state.doing in (STARTING, COMPUTING) and state.on_cluster and not state.nodes:
        return "waiting for a node of the Ray cluster", 0.0
    if state.doing in (STARTING, COMPUTING) and not state.chunks_here and readings.beats:
        steps = list(Phase)
        beat, silent_s = max(readings.beats.values(), key=lambda each: steps.index(each[0].phase))
        words = _PHASES[beat.phase][1]
        if words and not (state.doing == COMPUTING and beat.phase is Phase.READY):
            return words, silent_s
    if state.doing in (COMPUTING, STOPPING) or state.ending is not None:
        return state.doing, 0.0
    return state.doing, now_s - state.doing_since_s if state.doing_since_s else 0.0


def _by_tokens(state: RunState, readings: Readings, texts_left: int, tokens_per_s: float | None) -> float | None:
    """Return the seconds that are left, by the tokens of the chunks under way; None while they say too little."""
    beats = [readings.beats[worker.key][0] for worker in state.workers.values() if worker.key in readings.beats]
    telling = [beat for beat in beats if beat.tokens_total and beat.rows_total]
    done, total = sum(beat.tokens_done for beat in telling), sum(beat.tokens_total for beat in telling)
    if not tokens_per_s or not total or done < _SURE * total:
        return None
    rows, rows_done = sum(beat.rows_total for beat in telling), sum(beat.rows_done for beat in telling)
    elsewhere = max(0, texts_left - (rows - rows_done))
    return (total - done + elsewhere * total / rows) / tokens_per_s


def _searching(state: RunState) -> bool:
    """Whether nothing is left but chunks that are being taken apart."""
    left = sum(output.chunks - output.chunks_done for output in state.outputs.values())
    return bool(state.split) and left <= len(state.split)


def _rates(state: RunState, now_s: float, texts: int, tokens: int) -> tuple[float | None, float | None]:
    """Return texts and tokens a second; `texts` and `tokens` are those under way."""
    if not state.points:
        return None, None
    first = state.points[0]
    end_s = now_s if state.ending is None and state.workers else state.kept_s
    if state.ending is not None and state.first_go_s is not None:  # of the whole run
        first = Point(state.first_go_s, 0, 0)
    spent_s = end_s - first.t
    new_texts = state.total("texts_here") + texts - first.texts
    if spent_s <= 0 or new_texts <= 0:
        return None, None
    return new_texts / spent_s, (state.total("tokens_here") + tokens - first.tokens) / spent_s


def _output_state(name: str, output: OutputProgress, under_way: int) -> OutputState:
    done = output.texts_done + output.texts_saved + under_way
    share = 1.0 if output.complete else min(1.0, done / max(1, output.distinct))
    repeats = output.distinct != output.rows
    return OutputState(name, output.rows, share, output.chunks, output.chunks_done, output.complete, repeats)


def _worker_state(worker: ActiveWorker, readings: Readings) -> WorkerState:
    beat, silent_s = readings.beats.get(worker.key, (None, 0.0))
    held = (each.rss_bytes for each in readings.sensors.workers if each.pid == worker.pid)
    phase = _PHASES[beat.phase if beat else Phase.START][0]
    if worker.computing and phase == "ready":  # its beat has not told of the `go` yet
        phase = "computing"
    return WorkerState(
        *worker.key,
        phase=phase,
        computing=worker.computing,
        texts=beat.rows_total if beat else 0,
        texts_done=min(beat.rows_done, beat.rows_total) if beat else 0,
        batch_rows=(beat.batch_rows if beat else 0) or worker.limit_rows,
        rss_bytes=next(held, None),
        silent_s=silent_s if worker.computing else 0.0,
    )


def _device_states(
    state: RunState, workers: Mapping[AttemptKey, WorkerState], readings: Readings
) -> tuple[DeviceState, ...]:
    """Return all devices in order, each with its workers, those that compute first."""
    gpus = {str(gpu.device): gpu for gpu in readings.sensors.gpus}
    working: dict[str, list[WorkerState]] = {}
    for worker in sorted(state.workers.values(), key=lambda worker: not worker.computing):
        working.setdefault(str(worker.device), []).append(workers[worker.key])
    return tuple(
        DeviceState(label, tuple(working.get(number, ())), gpus.get(number)) for number, label in state.devices.items()
    )


def _health(state: RunState, workers: Sequence[WorkerState], now_s: float, *, live: bool) -> RunHealth:
    """Return the gravest matter of the moment."""
    if live and state.waits_for:
        left_s = state.waits_until_s - now_s
        doing = f"waiting, next try in {human_time(left_s)}" if left_s > 0 else "trying again"
        return RunHealth(Severity.CARE, f"{doing}: {state.waits_for}")
    silent = max((worker for worker in workers if live), key=lambda worker: worker.silent_s, default=None)
    if silent is not None and silent.silent_s > _SILENCE_S:
        for_long = human_time(silent.silent_s)
        words = f"no progress in chunk {silent.chunk} for {for_long}; if that lasts, a new worker tries it"
        return RunHealth(Severity.CARE, words)
    lost = []
    if state.total("without"):
        lost.append(f"{counted(state.total('without'), 'row')} without a vector")
    if state.set_aside:
        again = "it" if state.set_aside == 1 else "them"
        lost.append(f"{counted(state.set_aside, 'chunk')} set aside; the next run tries {again} again")
    if state.dropped:
        lost.append(f"{counted(state.dropped, 'device')} left out")
    if lost:
        return RunHealth(Severity.LOSS, "; ".join(lost))
    if state.failed:
        # Of a run that has ended it is not known here whether it came to another try.
        tried = f" and {'are' if state.failed > 1 else 'is'} tried again" * live
        return RunHealth(Severity.CARE, f"{counted(state.failed, 'attempt')} failed{tried}; nothing is lost")
    return RunHealth(Severity.NEWS, "all is well" if live else "without a fault")
