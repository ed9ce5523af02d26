"""What there is to see of a run now: its state, its workers' beats and the sensors, put together into a snapshot."""

from collections.abc import Mapping, Sequence

from chunkvisor.events.event import Severity
from chunkvisor.events.progress import ActiveWorker, AttemptKey, OutputProgress, Point
from chunkvisor.events.state import COMPUTING, STOPPING, RunState
from chunkvisor.observe.readings import Readings
from chunkvisor.observe.snapshot import DeviceState, OutputState, RunHealth, Snapshot, WorkerState
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
    Phase.CUDA_INIT: "opening",
    Phase.WEIGHTS_COPY: "copying",
    Phase.FORWARD: "computing",
    Phase.WRITE: "writing",
    Phase.DONE: "writing",
}


def snapshot_of(state: RunState, now_s: float, readings: Readings) -> Snapshot:
    """What there is to see at this moment; `now_s` is ignored once the run has ended."""
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
    distinct = sum(output.distinct for output in ours)
    left = distinct - sum(output.texts_done for output in ours) - sum(under_way.values())
    rows_per_text = sum(output.rows for output in ours) / max(1, distinct)
    searching = _searching(state)
    endless = searching or state.doing == STOPPING  # it takes no one knows how long, or ends before its work does
    return Snapshot(
        doing="looking for the texts that fail" if searching and state.doing == COMPUTING else state.doing,
        elapsed_s=max(0.0, now_s - state.began_s),
        health=health_of(state, list(workers.values()), now_s, live=live),
        outputs=tuple(_output_state(name, output, under_way[name]) for name, output in state.outputs.items()),
        devices=_device_states(state, workers, readings) if live else (),
        rows_per_s=texts_per_s and texts_per_s * rows_per_text,
        tokens_per_s=tokens_per_s or None,
        eta_s=left / texts_per_s if texts_per_s and left > 0 and live and not endless else None,
        chunks_here=state.chunks_here,
    )


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
    end_s = now_s if state.ending is None and state.workers else state.points[-1].t
    if state.ending is not None and state.first_go_s is not None:  # of the whole run
        first, end_s = Point(state.first_go_s, 0, 0), state.told_s
    spent_s = end_s - first.t
    new_texts = state.texts_here + texts_under_way - first.texts
    if spent_s <= 0 or new_texts <= 0:
        return None, None
    return new_texts / spent_s, (state.tokens_here + tokens_under_way - first.tokens) / spent_s


def _output_state(name: str, output: OutputProgress, under_way: int) -> OutputState:
    share = 1.0 if output.complete else min(1.0, (output.texts_done + under_way) / max(1, output.distinct))
    return OutputState(name, output.rows, share, output.chunks, output.chunks_done, output.complete)


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
        doing = f"waiting for {human_time(left_s)}, then it goes on by itself" if left_s > 0 else "trying again"
        return RunHealth(Severity.CARE, f"{doing}: {state.waits_for}")
    silent = max((worker for worker in workers if live), key=lambda worker: worker.silent_s, default=None)
    if silent is not None and silent.silent_s > _SILENCE_S:
        for_long = human_time(silent.silent_s)
        words = f"no progress in chunk {silent.chunk} for {for_long}; if that lasts, it is tried anew by itself"
        return RunHealth(Severity.CARE, words)
    lost = []
    if state.quarantined:
        none = f"{counted(state.quarantined, 'text')} could not be encoded"
        lost.append(f"{none} and {'will be NaN' if live else 'got no vector'}")
    if state.set_aside:
        lost.append(f"{counted(state.set_aside, 'chunk')} given up for now, running again tries them anew")
    if state.dropped:
        lost.append(f"{counted(state.dropped, 'device')} left out")
    if lost:
        return RunHealth(Severity.LOSS, "; ".join(lost))
    if state.failed:
        # Of a run that has ended nobody knows here whether it came to another try.
        tried = f" and {'are' if state.failed > 1 else 'is'} tried again" * live
        return RunHealth(Severity.CARE, f"{counted(state.failed, 'attempt')} failed{tried}; nothing is lost")
    return RunHealth(Severity.NEWS, "all is well" if live else "without a fault")
