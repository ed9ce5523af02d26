"""Folds the events of a run into what there is to see of it.

It never reads a file or a clock: events come with their time, and what only files tell comes as `Readings`. The same
fold serves the run itself and whoever reads its journal.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chunkvisor.observe.concern import Troubles, concern_of
from chunkvisor.observe.readings import AttemptKey, Readings
from chunkvisor.observe.snapshot import DeviceState, OutputState, Snapshot, WorkerState
from chunkvisor_worker.contract.messages import Phase

_WINDOW = 48
"""Commits over which rates are taken: long enough to be calm, short enough to follow a change."""

_PHASES = {
    Phase.START: "starting",
    Phase.IMPORT: "importing",
    Phase.MODEL_LOAD: "loading",
    Phase.TOKENIZE: "tokenising",
    Phase.READY: "ready",
    Phase.CUDA_INIT: "opening",
    Phase.FORWARD: "computing",
    Phase.WRITE: "writing",
    Phase.DONE: "writing",
}

_STAGES = {
    "invoked": "starting",
    "resolving": "asking the hub for {model}",
    "staging": "reading the source of {output}",
    "template_started": "loading the model into the template process",
    "go": "computing",
    "assembling": "joining the chunks of {output}",
    "output_complete": "computing",
    "draining": "stopping: the chunks under way are finished first",
    "run_ended": "finished",
    "halted": "ended",
}


@dataclass(slots=True)
class _Output:
    rows: int
    distinct: int
    chunks: int
    chunks_done: int
    texts_done: int
    complete: bool = False


@dataclass(slots=True)
class _Worker:
    device: int
    pid: int
    gone: bool = False
    limit_rows: int = 0


@dataclass(slots=True)
class Fold:
    """What the events so far come to; a new run in the same journal starts it afresh."""

    workdir: Path | None = None
    invocation: str = ""
    ending: dict[str, Any] | None = None
    """Details of the event that ended the run."""
    workers: dict[AttemptKey, _Worker] = field(default_factory=dict)
    """Under way."""
    troubles: Troubles = field(default_factory=Troubles)
    wanted: list[str] = field(default_factory=list)
    """Outputs of the run's config."""
    _began_s: float = 0.0
    _told_s: float = 0.0
    _doing: str = "starting"
    _devices: list[str] = field(default_factory=list)
    _outputs: dict[str, _Output] = field(default_factory=dict)
    _texts_here: int = 0
    _tokens_here: int = 0
    _chunks_here: int = 0
    _points: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    """(time, texts, tokens) of this run after its first `go` and after each commit."""

    def feed(self, event: str, details: Mapping[str, Any], t: float) -> None:
        """Take in an event of time `t`, seconds since the epoch; what is not as expected is passed over."""
        try:
            self._feed(event, details, t)
        except (KeyError, ValueError, TypeError, AttributeError):  # from the journal of another version
            return

    def _feed(self, event: str, details: Mapping[str, Any], t: float) -> None:
        self._told_s = max(self._told_s, t)
        if event == "invoked" or (event == "run_started" and self.ending is not None):
            self.__init__()  # type: ignore[misc]  # every field to its default
            self._began_s = self._told_s = t
            self.workdir, self.invocation = Path(details["workdir"]), str(details.get("invocation", ""))
        if (stage := _STAGES.get(event)) is not None and (event != "go" or not self._stopping):
            self._doing = stage.format_map(details)
        self.troubles.feed(event, details, t)
        match event:
            case "run_started":
                self._devices = _labels(str(details["device"]).split(", "))
                self.wanted = list(map(str, details["outputs"]))
            case "output_opened":
                names = ("rows", "distinct", "chunks", "chunks_done", "texts_done")
                counts: dict[str, Any] = {name: int(details[name]) for name in names}
                self._outputs[details["output"]] = _Output(**counts)
            case "output_already_complete":
                self._outputs[details["output"]] = _Output(int(details["rows"]), 1, 0, 0, 1, complete=True)
            case "output_complete":
                self._outputs[details["output"]].complete = True
            case "attempt_started":
                self.workers[_key(details)] = _Worker(int(details["device"]), int(details["pid"]))
            case "go":
                worker = self.workers[_key(details)]
                worker.gone, worker.limit_rows = True, int(details["rows"])
                if not self._points:
                    self._points.append((t, 0, 0))
            case "worker_ended":
                self.workers.pop(_key(details), None)
            case "chunk_committed":
                self._commit(details, t)
            case "halted" | "run_ended":
                self.ending = dict(details)

    @property
    def _stopping(self) -> bool:
        return self._doing.startswith("stopping")

    def _commit(self, details: Mapping[str, Any], t: float) -> None:
        output = self._outputs[details["output"]]
        output.chunks_done, output.texts_done = int(details["chunks_done"]), int(details["texts_done"])
        self._chunks_here += 1
        self._texts_here += int(details["texts"])
        self._tokens_here += int(details["tokens"])
        if self._points:
            self._points.append((t, self._texts_here, self._tokens_here))

    def snapshot(self, now_s: float, readings: Readings) -> Snapshot:
        """What there is to see at this moment; `now_s` is ignored once the run has ended."""
        now_s = max(self._told_s, now_s if self.ending is None else 0.0)
        workers = {key: _worker_state(key, worker, readings) for key, worker in self.workers.items()}
        under_way = dict.fromkeys(self._outputs, 0)
        tokens = 0
        for key, state in workers.items():
            if state.computing:
                under_way[key.output] = under_way.get(key.output, 0) + state.texts_done
                tokens += readings.beats[key][0].tokens_done if key in readings.beats else 0
        outputs = tuple(_output_state(name, output, under_way[name]) for name, output in self._outputs.items())
        texts_per_s, tokens_per_s = self._rates(now_s, sum(under_way.values()), tokens)
        distinct = sum(output.distinct for output in self._outputs.values())
        left = distinct - sum(output.texts_done for output in self._outputs.values()) - sum(under_way.values())
        rows = sum(output.rows for output in self._outputs.values() if not output.complete)
        per_text = rows / max(1, sum(output.distinct for output in self._outputs.values() if not output.complete))
        live = self.ending is None
        return Snapshot(
            doing=self._doing,
            elapsed_s=max(0.0, now_s - self._began_s),
            concern=concern_of(self.troubles, list(workers.values()), now_s, live=live),
            outputs=outputs,
            devices=tuple(self._device_states(workers, readings)) if live else (),
            rows_per_s=texts_per_s and texts_per_s * (per_text or 1),
            tokens_per_s=tokens_per_s or None,
            eta_s=left / texts_per_s if texts_per_s and left > 0 and live else None,
            parent_rss_bytes=_whole(_mapping(readings.sensors.get("parent")).get("rss_bytes")),
            attempts_failed=self.troubles.failed,
            chunks_here=self._chunks_here,
        )

    def _rates(self, now_s: float, texts_under_way: int, tokens_under_way: int) -> tuple[float | None, float | None]:
        if not self._points:
            return None, None
        since_s, texts, tokens = self._points[0]
        end_s = now_s if self.ending is None and self.workers else self._points[-1][0]
        spent_s = end_s - since_s
        new_texts = self._texts_here + texts_under_way - texts
        if spent_s <= 0 or new_texts <= 0:
            return None, None
        return new_texts / spent_s, (self._tokens_here + tokens_under_way - tokens) / spent_s

    def _device_states(self, workers: Mapping[AttemptKey, WorkerState], readings: Readings) -> list[DeviceState]:
        gpus = readings.sensors.get("gpus")
        measured = {gpu.get("device"): gpu for gpu in map(_mapping, gpus if isinstance(gpus, list) else [])}
        states = []
        for number, label in enumerate(self._devices):
            mine = [state for key, state in workers.items() if self.workers[key].device == number]
            mine.sort(key=lambda state: not state.computing)
            gpu = measured.get(number, {})
            states.append(
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
        return states


def _labels(names: list[str]) -> list[str]:
    return ["CPU" if name == "cpu" else f"GPU {number}" for number, name in enumerate(names)]


def _key(details: Mapping[str, Any]) -> AttemptKey:
    return AttemptKey(str(details["output"]), int(details["chunk"]), int(details["attempt"]))


def _worker_state(key: AttemptKey, worker: _Worker, readings: Readings) -> WorkerState:
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


def _output_state(name: str, output: _Output, under_way: int) -> OutputState:
    share = 1.0 if output.complete else min(1.0, (output.texts_done + under_way) / max(1, output.distinct))
    return OutputState(name, output.rows, share, output.chunks, output.chunks_done)


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
