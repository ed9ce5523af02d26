"""What there is to see of a run at one moment: its state, its workers' beats and the sensors, put together.

Status, live view, lines, metrics, notices, systemd and the report's head are all printed from this one value.
"""

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from chunkvisor.events.event import Severity, read_json
from chunkvisor.events.state import COMPUTING, STARTING, STOPPING, AttemptKey, OutputProgress, Point, RunState
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor.units import counted, human_time
from chunkvisor_worker.contract.messages import Beat, Phase
from chunkvisor_worker.contract.wire import read_beat

_SILENCE_S = 60.0
"""No batch of a sensible model takes as long."""
_TAIL_BYTES = 16 << 10
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


@dataclass(frozen=True, slots=True)
class SensorLine:
    """A line of `sensors.jsonl`, as far as anything is made of it."""

    t: float = 0.0
    gpus: tuple[dict[str, float], ...] = ()
    workers: tuple[dict[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Readings:
    """What the journal does not say of a live run."""

    beats: dict[AttemptKey, tuple[Beat, float]] = field(default_factory=dict)
    """The last beat of each worker, and how many seconds old it is."""
    sensors: SensorLine = field(default_factory=SensorLine)


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker under way."""

    key: AttemptKey
    phase: str
    computing: bool  # it has its `go`; the others are prepared ahead
    texts: int = 0
    texts_done: int = 0
    batch_rows: int = 0  # texts in the batch under way, or at most in one; 0 = not known yet
    rss_bytes: float | None = None
    silent_s: float = 0.0  # since its last sign of progress


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device, what works on it (what computes comes first), and its last reading."""

    label: str
    workers: tuple[WorkerView, ...] = ()
    gpu: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment."""

    state: RunState
    doing: str
    elapsed_s: float
    health: str
    severity: Severity = Severity.NEWS
    outputs: dict[str, OutputProgress] = field(default_factory=dict)
    devices: tuple[DeviceView, ...] = ()
    # By the time from the first worker's `go` to the last row; while the run lives, of its last chunks. So the first
    # start of the workers is not in it, and what comes between chunks is.
    rows_per_s: float | None = None
    tokens_per_s: float | None = None
    eta_s: float | None = None
    doing_s: float = 0.0  # for how long it does that; 0 = not worth saying

    def total(self, name: str) -> int:
        """Add up a count of all outputs."""
        return sum(getattr(each, name) for each in self.outputs.values())

    @property
    def share(self) -> float:
        """Of all rows that are done, from 0 to 1."""
        return sum(each.rows * each.share for each in self.outputs.values()) / max(1, self.total("rows"))

    @property
    def estimated(self) -> bool:
        """Whether the number of rows that are done is an estimate."""
        return any(each.estimated for each in self.outputs.values())


def look_at(state: RunState, layout: Layout | None = None, *, sensors: bool = True) -> Snapshot | None:
    """Return what there is to see now of a live run; None until it has reported its workdir.

    `layout` is the workdir as it is mounted here, if that may differ from where the run sees it.
    """
    if not state.workdir:
        return None
    layout, beats, sensed = layout or Layout(Path(state.workdir)), {}, SensorLine()
    for key in (worker.key for worker in state.workers.values()):
        path = layout.output(key.output).attempt(key.chunk, key.attempt).beat
        with contextlib.suppress(OSError):
            if (beat := read_beat(path)) is not None:
                beats[key] = beat, max(0.0, time.time() - path.stat().st_mtime)
    if sensors and state.invocation:
        sensed = last_line(InvocationFiles(layout.runs / state.invocation).sensors)
    return snapshot_of(state, time.time(), Readings(beats, sensed))


def last_line(path: Path) -> SensorLine:
    """Read the last whole line of the sensors; an empty one if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            whole, ended, _ = file.read(_TAIL_BYTES).rpartition(b"\n")
    except OSError:
        return SensorLine()
    return (read_json(SensorLine, whole.rpartition(b"\n")[2]) if ended else None) or SensorLine()


def snapshot_of(state: RunState, now_s: float, readings: Readings | None = None) -> Snapshot:
    """Return what there is to see at this moment; `now_s` is ignored once the run has ended."""
    readings = readings or Readings()
    live = state.ending is None
    now_s = max(state.told_s, now_s if live else 0.0)
    devices = _device_views(state, readings)
    computing = [worker for device in devices for worker in device.workers if worker.computing]
    outputs = {
        name: replace(each, texts_under_way=sum(worker.texts_done for worker in computing if worker.key.output == name))
        for name, each in state.outputs.items()
    }
    under_way = sum(each.texts_under_way for each in outputs.values())
    tokens = sum(readings.beats[each.key][0].tokens_done for each in computing if each.key in readings.beats)
    texts_per_s, tokens_per_s = _rates(state, now_s, under_way, tokens)
    ours = [each for each in outputs.values() if each.distinct]  # no earlier run had completed them
    distinct, rows = sum(each.distinct for each in ours), sum(each.rows for each in ours)
    left = distinct - under_way - sum(each.texts_done + each.texts_saved for each in ours)
    # The longest texts come first, and their rate says little of the others; how long a search takes is not known, and
    # a run that is stopping ends before its work.
    endless = not live or not state.chunks_here or _searching(state) or state.doing == STOPPING
    doing, doing_s = _doing(state, readings, now_s)
    severity, health = _health(state, computing, now_s)
    return Snapshot(
        state,
        doing,
        max(0.0, now_s - state.began_s),
        health,
        severity,
        outputs,
        devices if live else (),
        texts_per_s and texts_per_s * (rows / distinct if distinct else 1.0),
        tokens_per_s or None,
        left / texts_per_s if texts_per_s and left > 0 and not endless else None,
        doing_s,
    )


def _device_views(state: RunState, readings: Readings) -> tuple[DeviceView, ...]:
    found = []
    for number in dict.fromkeys([*state.devices, *(str(each.device) for each in state.workers.values())]):
        workers = []
        for worker in (each for each in state.workers.values() if str(each.device) == number):
            beat, silent_s = readings.beats.get(worker.key, (Beat(0, worker.pid, Phase.START), 0.0))
            phase = _PHASES[beat.phase][0]
            view = WorkerView(
                worker.key,
                "computing" if worker.computing and phase == "ready" else phase,  # the beat lags behind the `go`
                worker.computing,
                beat.rows_total,
                min(beat.rows_done, beat.rows_total),
                beat.batch_rows or worker.limit_rows,
                next(
                    (each.get("rss_bytes") for each in readings.sensors.workers if each.get("pid") == worker.pid), None
                ),
                silent_s if worker.computing else 0.0,
            )
            workers.append(view)
        gpu = next((each for each in readings.sensors.gpus if each.get("device") == int(number)), {})
        workers.sort(key=lambda worker: not worker.computing)
        found.append(DeviceView(state.devices.get(number, f"device {number}"), tuple(workers), gpu))
    return tuple(found)


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


def _searching(state: RunState) -> bool:
    """Whether nothing is left but chunks that are being taken apart."""
    left = sum(output.chunks - output.chunks_done for output in state.outputs.values())
    return bool(state.split) and left <= len(state.split)


def _doing(state: RunState, readings: Readings, now_s: float) -> tuple[str, float]:
    """Return what the run is at, and for how many seconds if that is worth saying."""
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


def _health(state: RunState, workers: Sequence[WorkerView], now_s: float) -> tuple[Severity, str]:
    """Return the gravest matter of the moment."""
    live = state.ending is None
    if live and state.waits_for:
        left_s = state.waits_until_s - now_s
        doing = f"waiting, next try in {human_time(left_s)}" if left_s > 0 else "trying again"
        return Severity.CARE, f"{doing}: {state.waits_for}"
    silent = max(workers, key=lambda worker: worker.silent_s, default=None)
    if live and silent is not None and silent.silent_s > _SILENCE_S:
        for_long = human_time(silent.silent_s)
        words = f"no progress in chunk {silent.key.chunk} for {for_long}; if that lasts, a new worker tries it"
        return Severity.CARE, words
    lost = []
    if without := state.total("without"):
        lost.append(f"{counted(without, 'row')} without a vector")
    if state.set_aside:
        again = "it" if state.set_aside == 1 else "them"
        lost.append(f"{counted(state.set_aside, 'chunk')} set aside; the next run tries {again} again")
    if state.dropped:
        lost.append(f"{counted(state.dropped, 'device')} left out")
    if lost:
        return Severity.LOSS, "; ".join(lost)
    if state.failed:
        # Of a run that has ended it is not known here whether it came to another try.
        tried = f" and {'are' if state.failed > 1 else 'is'} tried again" * live
        return Severity.CARE, f"{counted(state.failed, 'attempt')} failed{tried}; nothing is lost"
    return Severity.NEWS, "all is well" if live else "without a fault"
