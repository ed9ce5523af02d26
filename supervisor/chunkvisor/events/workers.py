"""What works on each device of a run, put together from events, beats and sensors.

Pure: it never reads a file; readings are handed in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chunkvisor.events.readings import AttemptKey, Readings
from chunkvisor.events.snapshot import DeviceState, WorkerState
from chunkvisor_worker.contract.messages import Phase

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


@dataclass(slots=True)
class Worker:
    """An attempt under way, as far as the events tell."""

    device: int
    pid: int
    gone: bool = False
    limit_rows: int = 0


def labels_of(names: Sequence[str], node: str = "", first: int = 0) -> dict[int, str]:
    """Short names of the devices of this machine or of a node, by their numbers, which begin with `first`."""
    short = ["CPU" if name == "cpu" else f"GPU {number}" for number, name in enumerate(names)]
    return {first + number: f"{node} {name}".lstrip() for number, name in enumerate(short)}


def worker_state(key: AttemptKey, worker: Worker, readings: Readings) -> WorkerState:
    """What the worker does."""
    beat, silent_s = readings.beats.get(key, (None, 0.0))
    processes = readings.sensors.get("workers")
    for process in map(_mapping, processes if isinstance(processes, list) else []):
        if process.get("pid") == worker.pid:
            rss_bytes = _whole(process.get("rss_bytes"))
            break
    else:
        rss_bytes = None
    phase = _PHASES[beat.phase] if beat else "starting"
    if worker.gone and phase == "ready":  # its beat has not told of the `go` yet
        phase = "computing"
    return WorkerState(
        *key,
        phase=phase,
        computing=worker.gone,
        texts=beat.rows_total if beat else 0,
        texts_done=min(beat.rows_done, beat.rows_total) if beat else 0,
        batch_rows=(beat.batch_rows if beat else 0) or worker.limit_rows,
        rss_bytes=rss_bytes,
        silent_s=silent_s if worker.gone else 0.0,
    )


def device_states(
    labels: Mapping[int, str],
    workers: Mapping[AttemptKey, Worker],
    states: Mapping[AttemptKey, WorkerState],
    readings: Readings,
) -> list[DeviceState]:
    """All devices in order, each with its workers, those that compute first."""
    gpus = readings.sensors.get("gpus")
    measured = {gpu.get("device"): gpu for gpu in map(_mapping, gpus if isinstance(gpus, list) else [])}
    found = []
    for number, label in labels.items():
        mine = [state for key, state in states.items() if workers[key].device == number]
        mine.sort(key=lambda state: not state.computing)
        gpu = measured.get(number, {})
        found.append(
            DeviceState(
                label,
                tuple(mine),
                _whole(gpu.get("memory_used_bytes")),
                _whole(gpu.get("memory_total_bytes")),
                _number(gpu.get("utilization")),
                _number(gpu.get("temperature_c")),
                _number(gpu.get("power_w")),
            )
        )
    return found


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
