"""Folds the events of a run into what there is to see of it.

It never reads a file or a clock: events come with their time, and what only files tell comes as `Readings`. The same
fold serves the run itself and whoever reads its journal.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chunkvisor.events.concern import Troubles, concern_of
from chunkvisor.events.foldrecord import FoldRecord, Named, OutputCounts, UnderWay
from chunkvisor.events.readings import AttemptKey, Readings
from chunkvisor.events.snapshot import OutputState, Snapshot
from chunkvisor.events.workers import Worker, device_states, labels_of, worker_state
from chunkvisor.store.layout import Layout
from chunkvisor.store.slices import Slice

_WINDOW = 48
"""Commits over which rates are taken: long enough to be calm, short enough to follow a change."""

_COMPUTING = "computing"

_STAGES = {
    "invoked": "starting",
    "looking_for_gpus": "asking nvidia-smi for the GPUs",
    "checking_device": "asking nvidia-smi how {device} is",
    "devices_checked": "starting the first workers",
    "resolving": "asking the hub for {model}",
    "checking_model": "reading the files of the model",
    "waiting_for_turn": "waiting for {who}",
    "staging": "reading the source of {output}",
    "template_started": "loading the model, once for all workers",
    "go": _COMPUTING,
    "assembling": "joining the chunks of {output}",
    "output_complete": _COMPUTING,
    "draining": "stopping: the chunks under way are finished first",
    "run_ended": "finished",
    "halted": "ended",
}


@dataclass(slots=True)
class Fold:
    """What the events so far come to; a new run in the same journal starts it afresh."""

    workdir: Path | None = None
    slice: str = ""
    """Such as 3/8; empty for a run of the whole."""
    invocation: str = ""
    ending: dict[str, Any] | None = None
    """Details of the event that ended the run."""
    workers: dict[AttemptKey, Worker] = field(default_factory=dict)
    """Under way."""
    troubles: Troubles = field(default_factory=Troubles)
    _began_s: float = 0.0
    _told_s: float = 0.0
    _doing: str = "starting"
    _devices: dict[int, str] = field(default_factory=dict)
    """Names by number."""
    _nodes: dict[str, set[int]] = field(default_factory=dict)
    """Numbers of each node's devices."""
    _outputs: dict[str, OutputCounts] = field(default_factory=dict)
    _apart: set[tuple[str, int]] = field(default_factory=set)
    """(output, chunk) of chunks that are being taken apart."""
    _first_go_s: float | None = None
    _texts_here: int = 0
    _tokens_here: int = 0
    _chunks_here: int = 0
    _points: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    """(time, texts, tokens) of this run after its first `go` and after each commit."""

    def record(self) -> FoldRecord:
        """All that it holds."""
        apart: dict[str, list[int]] = {}
        for output, chunk in sorted(self._apart):
            apart.setdefault(output, []).append(chunk)
        return FoldRecord(
            workdir=None if self.workdir is None else str(self.workdir),
            invocation=self.invocation,
            slice=self.slice,
            ending=self.ending,
            workers=tuple(UnderWay(*key, worker) for key, worker in self.workers.items()),
            troubles=self.troubles,
            began_s=self._began_s,
            told_s=self._told_s,
            doing=self._doing,
            devices=tuple(Named(number, name) for number, name in self._devices.items()),
            nodes={node: tuple(sorted(numbers)) for node, numbers in self._nodes.items()},
            outputs=self._outputs,
            apart={output: tuple(chunks) for output, chunks in apart.items()},
            first_go_s=self._first_go_s,
            texts_here=self._texts_here,
            tokens_here=self._tokens_here,
            chunks_here=self._chunks_here,
            points=tuple(self._points),
        )

    @classmethod
    def restored(cls, record: FoldRecord) -> "Fold":
        """The fold that the record is of. Raises ValueError where it is of none."""
        return cls(
            workdir=None if record.workdir is None else Path(record.workdir),
            invocation=record.invocation,
            slice=record.slice,
            ending=record.ending,
            workers={AttemptKey(each.output, each.chunk, each.attempt): each.worker for each in record.workers},
            troubles=record.troubles,
            _began_s=record.began_s,
            _told_s=record.told_s,
            _doing=record.doing,
            _devices={each.number: each.name for each in record.devices},
            _nodes={node: set(numbers) for node, numbers in record.nodes.items()},
            _outputs=record.outputs,
            _apart={(output, chunk) for output, chunks in record.apart.items() for chunk in chunks},
            _first_go_s=record.first_go_s,
            _texts_here=record.texts_here,
            _tokens_here=record.tokens_here,
            _chunks_here=record.chunks_here,
            _points=deque(((t, int(texts), int(tokens)) for t, texts, tokens in record.points), maxlen=_WINDOW),
        )

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
            self.slice = str(details.get("slice", ""))
        if (stage := _STAGES.get(event)) is not None and (event != "go" or not self._stopping):
            self._doing = stage.format_map(details)
        self.troubles.feed(event, details, t)
        match event:
            case "run_started":
                self._devices = {} if details.get("engine") == "ray" else labels_of(str(details["device"]).split(", "))
            case "node_joined":
                joined = labels_of(str(details["device"]).split(", "), str(details["node"]), int(details["first"]))
                self._devices |= joined
                self._nodes[details["node"]] = set(joined)
            case "node_lost" | "node_set_aside":
                for number in self._nodes.pop(details["node"], set()):
                    del self._devices[number]
            case "output_opened":
                names = ("rows", "distinct", "chunks", "chunks_done", "texts_done")
                counts: dict[str, Any] = {name: int(details[name]) for name in names}
                self._outputs[details["output"]] = OutputCounts(**counts)
            case "output_already_complete":
                self._outputs[details["output"]] = OutputCounts(int(details["rows"]), 0, 0, 0, 0, complete=True)
            case "output_complete":
                self._outputs[details["output"]].complete = True
            case "attempt_started":
                self.workers[AttemptKey.of(details)] = Worker(int(details["device"]), int(details["pid"]))
            case "go":
                worker = self.workers[AttemptKey.of(details)]
                worker.gone, worker.limit_rows = True, int(details["rows"])
                if self._first_go_s is None:
                    self._first_go_s = t
                    self._points.append((t, 0, 0))
            case "worker_ended":
                self.workers.pop(AttemptKey.of(details), None)
            case "chunk_committed":
                self._commit(details, t)
            case "chunk_split":
                self._apart.add((str(details["output"]), int(details["chunk"])))
            case "halted" | "run_ended":
                self.ending = dict(details)

    @property
    def layout(self) -> Layout | None:
        """The workdir, as the run sees it; None until it has told. Raises ValueError where it told of no slice."""
        return Layout(self.workdir, Slice.parse(self.slice) if self.slice else None) if self.workdir else None

    @property
    def _stopping(self) -> bool:
        return self._doing.startswith("stopping")

    def _commit(self, details: Mapping[str, Any], t: float) -> None:
        output = self._outputs[details["output"]]
        output.chunks_done, output.texts_done = int(details["chunks_done"]), int(details["texts_done"])
        self._apart.discard((details["output"], details["chunk"]))
        self._chunks_here += 1
        self._texts_here += int(details["texts"])
        self._tokens_here += int(details["tokens"])
        if self._points:
            self._points.append((t, self._texts_here, self._tokens_here))

    @property
    def _searching(self) -> bool:
        """Whether nothing is left but chunks that are being taken apart; how long that takes cannot be told."""
        left = sum(output.chunks - output.chunks_done for output in self._outputs.values())
        return bool(self._apart) and left <= len(self._apart)

    def snapshot(self, now_s: float, readings: Readings) -> Snapshot:
        """What there is to see at this moment; `now_s` is ignored once the run has ended."""
        now_s = max(self._told_s, now_s if self.ending is None else 0.0)
        workers = {key: worker_state(key, worker, readings) for key, worker in self.workers.items()}
        under_way = dict.fromkeys(self._outputs, 0)
        tokens = 0
        for key, state in workers.items():
            if state.computing:
                under_way[key.output] = under_way.get(key.output, 0) + state.texts_done
                tokens += readings.beats[key][0].tokens_done if key in readings.beats else 0
        outputs = tuple(_output_state(name, output, under_way[name]) for name, output in self._outputs.items())
        texts_per_s, tokens_per_s = self._rates(now_s, sum(under_way.values()), tokens)
        ours = [output for output in self._outputs.values() if output.distinct]  # not complete before
        distinct = sum(output.distinct for output in ours)
        left = distinct - sum(output.texts_done for output in ours) - sum(under_way.values())
        rows_per_text = sum(output.rows for output in ours) / max(1, distinct)
        live = self.ending is None
        endless = self._searching or self._stopping  # it takes no one knows how long, or ends before its work does
        return Snapshot(
            doing="looking for the texts that fail" if self._searching and self._doing == _COMPUTING else self._doing,
            elapsed_s=max(0.0, now_s - self._began_s),
            concern=concern_of(self.troubles, list(workers.values()), now_s, live=live),
            outputs=outputs,
            devices=tuple(device_states(self._devices, self.workers, workers, readings)) if live else (),
            rows_per_s=texts_per_s and texts_per_s * rows_per_text,
            tokens_per_s=tokens_per_s or None,
            eta_s=left / texts_per_s if texts_per_s and left > 0 and live and not endless else None,
            chunks_here=self._chunks_here,
        )

    def _rates(self, now_s: float, texts_under_way: int, tokens_under_way: int) -> tuple[float | None, float | None]:
        if not self._points:
            return None, None
        since_s, texts, tokens = self._points[0]
        end_s = now_s if self.ending is None and self.workers else self._points[-1][0]
        if self.ending is not None and self._first_go_s is not None:  # of the whole run
            since_s, end_s, texts, tokens = self._first_go_s, self._told_s, 0, 0
        spent_s = end_s - since_s
        new_texts = self._texts_here + texts_under_way - texts
        if spent_s <= 0 or new_texts <= 0:
            return None, None
        return new_texts / spent_s, (self._tokens_here + tokens_under_way - tokens) / spent_s


def _output_state(name: str, output: OutputCounts, under_way: int) -> OutputState:
    share = 1.0 if output.complete else min(1.0, (output.texts_done + under_way) / max(1, output.distinct))
    return OutputState(name, output.rows, share, output.chunks, output.chunks_done, output.complete)
