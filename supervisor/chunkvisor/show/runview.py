"""What there is to see of a run now: its state, its workers' beats and the sensors, put together into a snapshot."""

from collections.abc import Mapping, Sequence

from chunkvisor.events.event import Severity
from chunkvisor.events.progress import ActiveWorker, AttemptKey, OutputProgress, Point
from chunkvisor.events.stages import COMPUTING, STARTING, STOPPING
from chunkvisor.events.state import RunState
from chunkvisor.show.readings import Readings
from chunkvisor.show.snapshot import DeviceState, OutputState, RunHealth, Snapshot, WorkerState
from chunkvisor.units import counted, human_time
from chunkvisor_worker.contract.messages import Phase

_SILENCE_S = 60.0
"""No batch of a sensible model takes as long."""
_PHASES = {
    Phase.START: "starting",
    Phase.IMPORT: "importing",
    Phase.MODEL_LOAD: "loading",
    Phase.TOKENIZE: "tokenising",
    Phase.READY: "ready",
    Phase.CUDA_INIT: "GPU start",
    Phase.WEIGHTS_COPY: "copying",
    Phase.FORWARD: "computing",
    Phase.WRITE: "writing",
    Phase.DONE: "writing",
}
_FIRST_STEPS = {
    Phase.START: STARTING,
    Phase.IMPORT: "importing the encoder's packages",
    Phase.MODEL_LOAD: "loading the model",
    Phase.TOKENIZE: "counting the tokens of the first chunk",
    Phase.READY: "waiting for the device",
    Phase.CUDA_INIT: "starting CUDA on the GPU",
    Phase.WEIGHTS_COPY: "copying the model to the GPU",
}
"""Of the worker that is nearest to its first batch, while none has begun one."""
_SURE = 0.1
"""Of the tokens under way, before a time is told of them."""


def snapshot_of(state: RunState, now_s: float, readings: Readings) -> Snapshot:
    """What there is to see at this moment; `now_s` is ignored once the run has ended."""
    live = state.ending is None
    now_s = max(state.told_s, now_s if live else 0.0)
    workers = {worker.key: _worker_state(worker, readings) for worker in state.workers.values()}
    under_way = dict.fromkeys(state.outputs, 0)
    tokens = 0
    doing, doing_s = _doing(state, readings, now_s)
    for key, worker in workers.items():
        if worker.computing:
            under_way[key.output] = under_way.get(key.output, 0) + worker.texts_done
            tokens += readings.beats[key][0].tokens_done if key in readings.beats else 0
    texts_per_s, tokens_per_s = _rates(state, now_s, sum(under_way.values()), tokens)
    ours = [output for output in state.outputs.values() if output.distinct]  # not complete before
    distinct = sum(output.distinct for output in ours)
    left = distinct - sum(output.texts_done + output.texts_saved for output in ours) - sum(under_way.values())
    # It takes no one knows how long, or ends before its work, or it is not known yet how much there is to do.
    endless = _searching(state) or state.doing == STOPPING
    eta_s = left / texts_per_s if texts_per_s and left > 0 else None
    by_tokens = not state.chunks_here  # the longest texts come first: their rate says little of the others
    if by_tokens:
        eta_s = _by_tokens(state, readings, left, tokens_per_s)
    return Snapshot(
        doing=doing,
        doing_s=doing_s,
        elapsed_s=max(0.0, now_s - state.began_s),
        health=health_of(state, list(workers.values()), now_s, live=live),
        outputs=tuple(_output_state(name, output, under_way[name]) for name, output in state.outputs.items()),
        devices=_device_states(state, workers, readings) if live else (),
        rows_per_s=texts_per_s and texts_per_s * rows_per_text(state),
        tokens_per_s=tokens_per_s or None,
        eta_s=eta_s if live and not endless else None,
        by_tokens=by_tokens,
        chunks_here=state.chunks_here,
        waits_for=state.waits_for if live else "",
    )


def rows_per_text(state: RunState) -> float:
    """In how many rows a text stands, on average, of the outputs that the run works on."""
    ours = [output for output in state.outputs.values() if output.distinct]
    return sum(output.rows for output in ours) / sum(output.distinct for output in ours) if ours else 1.0


def _doing(state: RunState, readings: Readings, now_s: float) -> tuple[str, float]:
    """(what the run is at, for how many seconds where that is worth telling)."""
    if state.doing == COMPUTING and _searching(state):
        return "looking for the texts that fail", 0.0
    if state.doing in (STARTING, COMPUTING) and state.on_cluster and not state.nodes:
        return "waiting for a node of the Ray cluster", 0.0
    if state.doing in (STARTING, COMPUTING) and not state.chunks_here and readings.beats:
        steps = list(Phase)
        beat, silent_s = max(readings.beats.values(), key=lambda each: steps.index(each[0].phase))
        known = beat.phase in _FIRST_STEPS and not (state.doing == COMPUTING and beat.phase is Phase.READY)
        if known:
            return _FIRST_STEPS[beat.phase], silent_s
    if state.doing in (COMPUTING, STOPPING) or state.ending is not None:
        return state.doing, 0.0
    return state.doing, now_s - state.doing_since_s if state.doing_since_s else 0.0


def _by_tokens(state: RunState, readings: Readings, texts_left: int, tokens_per_s: float | None) -> float | None:
    """Seconds that are left, by the tokens of the chunks under way; None while they say too little, or are unknown."""
    beats = [readings.beats[worker.key][0] for worker in state.workers.values() if worker.key in readings.beats]
    telling = [beat for beat in beats if beat.tokens_total and beat.rows_total]
    done, total = sum(beat.tokens_done for beat in telling), sum(beat.tokens_total for beat in telling)
    if not tokens_per_s or not total or done < _SURE * total:
        return None
    rows, rows_done = sum(beat.rows_total for beat in telling), sum(beat.rows_done for beat in telling)
    elsewhere = max(0, texts_left - (rows - rows_done))
    return (total - done + elsewhere * total / rows) / tokens_per_s


def _searching(state: RunState) -> bool:
    """Whether nothing is left but chunks that are being taken apart; how long that takes cannot be told."""
    left = sum(output.chunks - output.chunks_done for output in state.outputs.values())
    return bool(state.split) and left <= len(state.split)


def _rates(
    state: RunState, now_s: float, texts_under_way: int, tokens_under_way: int
) -> tuple[float | None, float | None]:
    if not state.points:
        return None, None
    first = state.points[0]
    end_s = now_s if state.ending is None and state.workers else state.kept_s
    if state.ending is not None and state.first_go_s is not None:  # of the whole run
        first = Point(state.first_go_s, 0, 0)
    spent_s = end_s - first.t
    new_texts = state.texts_here + texts_under_way - first.texts
    if spent_s <= 0 or new_texts <= 0:
        return None, None
    return new_texts / spent_s, (state.tokens_here + tokens_under_way - first.tokens) / spent_s


def _output_state(name: str, output: OutputProgress, under_way: int) -> OutputState:
    done = output.texts_done + output.texts_saved + under_way
    share = 1.0 if output.complete else min(1.0, done / max(1, output.distinct))
    repeats = output.distinct != output.rows
    return OutputState(name, output.rows, share, output.chunks, output.chunks_done, output.complete, repeats)


def _worker_state(worker: ActiveWorker, readings: Readings) -> WorkerState:
    beat, silent_s = readings.beats.get(worker.key, (None, 0.0))
    held = (each.rss_bytes for each in readings.sensors.workers if each.pid == worker.pid)
    phase = _PHASES[beat.phase] if beat else "starting"
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
    """All devices in order, each with its workers, those that compute first."""
    gpus = {str(gpu.device): gpu for gpu in readings.sensors.gpus}
    working: dict[str, list[WorkerState]] = {}
    for worker in sorted(state.workers.values(), key=lambda worker: not worker.computing):
        working.setdefault(str(worker.device), []).append(workers[worker.key])
    return tuple(
        DeviceState(label, tuple(working.get(number, ())), gpus.get(number)) for number, label in state.devices.items()
    )


def health_of(state: RunState, workers: Sequence[WorkerState], now_s: float, *, live: bool) -> RunHealth:
    """Whether to worry: the gravest matter of the moment."""
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
    if state.without:
        lost.append(f"{counted(state.without, 'row')} without a vector")
    if state.set_aside:
        again = "it" if state.set_aside == 1 else "them"
        lost.append(f"{counted(state.set_aside, 'chunk')} set aside; the next run tries {again} again")
    if state.dropped:
        lost.append(f"{counted(state.dropped, 'device')} left out")
    if lost:
        return RunHealth(Severity.LOSS, "; ".join(lost))
    if state.failed:
        # Of a run that has ended nobody knows here whether it came to another try.
        tried = f" and {'are' if state.failed > 1 else 'is'} tried again" * live
        return RunHealth(Severity.CARE, f"{counted(state.failed, 'attempt')} failed{tried}; nothing is lost")
    return RunHealth(Severity.NEWS, "all is well" if live else "without a fault")
