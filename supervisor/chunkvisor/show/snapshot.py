"""What there is to see of a run at one moment, in figures and in words.

It is made from the state of the run and the beats of its workers. Status, live view, lines,
metrics, notices and the head of the report are all printed from it.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

from chunkvisor.events.event import COMPUTING, STARTING, STOPPING, Weight
from chunkvisor.events.state import Point, Progress, RunState
from chunkvisor.store.layout import Layout
from chunkvisor.units import counted, human_time
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import Beat, Phase
from chunkvisor_worker.contract.wire import read_beat

_SILENCE_S = 60.0  # hardly a batch of a sensible model takes as long
PHASES: Mapping[str, str] = {
    Phase.START: STARTING,
    Phase.IMPORT: "importing the encoder's packages",
    Phase.MODEL_LOAD: "loading the model",
    Phase.TOKENIZE: "counting the tokens of the first chunk",
    Phase.READY: "waiting for the device",
    Phase.CUDA_INIT: "starting CUDA on the GPU",
    Phase.WEIGHTS_COPY: "copying the model to the GPU",
    Phase.FORWARD: COMPUTING,
    Phase.WRITE: "writing",
    Phase.DONE: "writing",
}
Beats = Mapping[str, tuple[Beat, float]]
"""The last beat of each worker, and its age in seconds."""


@frozen
class Snapshot:
    """A run at one moment."""

    state: RunState
    doing: str
    elapsed_s: float
    health: str
    weight: Weight = Weight.NEWS
    outputs: dict[str, Progress] = field(default_factory=dict)
    workers: tuple[str, ...] = ()
    """What each is doing, such as `GPU 0: titles chunk 4, computing, 7 of 100 texts`."""
    # While the run lives, the mean over its last chunks. After it, the mean from the first `go` of
    # a worker to the last row: the first start of the workers does not count, later gaps do.
    rows_per_s: float | None = None
    tokens_per_s: float | None = None
    eta_s: float | None = None

    def total(self, name: str) -> int:
        """Add up a count of all outputs."""
        return sum(getattr(each, name) for each in self.outputs.values())

    @property
    def share(self) -> float:
        """The share of all rows that is done, from 0 to 1."""
        done = sum(each.rows * each.share for each in self.outputs.values())
        return done / max(1, self.total("rows"))

    @property
    def stage(self) -> str:
        """What the run is doing, and how long it has been running."""
        return f"{self.doing}, {human_time(self.elapsed_s)} so far"

    @property
    def progress(self) -> str:
        """Say how far it is: `about 4 of 8 rows, 2 of 4 chunks`."""
        about = any(each.estimated for each in self.outputs.values())
        rows = rows_in_words(self.total("rows_done"), self.total("rows"), about=about)
        return f"{rows}, {self.total('chunks_done'):,} of {counted(self.total('chunks'), 'chunk')}"

    @property
    def rates(self) -> list[str]:
        """Rows and tokens a second, and the time left, if they are known."""
        found = list[str]()
        if self.rows_per_s:
            found.append(f"{figure(self.rows_per_s)} rows/s")
        if self.tokens_per_s:
            found.append(f"{figure(self.tokens_per_s)} tokens/s")
        if self.eta_s is not None:
            found.append(f"about {human_time(self.eta_s)} left")
        return found

    @property
    def line(self) -> str:
        """How far the run is, and what it waits for."""
        parts = [self.stage]
        if self.total("chunks"):
            parts += [percent(self.share), self.progress]
        line = ", ".join([*parts, *self.rates])
        if self.state.ending is None and self.state.waits_for:
            # The event of the wait has said the rest of the reason.
            line += f"; waiting: {self.state.waits_for.partition('. ')[0]}"
        return line

    @property
    def closing_line(self) -> str:
        """What the run has done, and how far all is if work is left; empty if it did nothing."""
        parts = list[str]()
        if self.state.chunks_here:
            encoded = f"{counted(self.state.chunks_here, 'chunk')} encoded"
            parts.append(f"{encoded} in {human_time(self.elapsed_s)}, start-up included")
        if self.rates:
            parts.append(f"{', '.join(self.rates)} (start-up not counted)")
        if self.total("chunks") and self.share < 1:
            parts.append(f"done and kept: {percent(self.share)}, {self.progress}")
        return "; ".join([*parts, self.health]) if parts else ""


def rows_in_words(done: int, rows: int, *, about: bool) -> str:
    """Say `2,997 of 3,010 rows`, with `about` before it if it is an estimate."""
    return f"{'about ' if about else ''}{done:,} of {counted(rows, 'row')}"


def figure(value: float) -> str:
    """Say `0.012`, `1.3` or `12,346`: a rate with at least two significant digits."""
    if value >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def percent(share: float) -> str:
    """Say `53 %`; `100 %` only if all is done."""
    return f"{min(int(100 * share), 100 if share >= 1 else 99)} %"


def take_snapshot(state: RunState, layout: Layout | None = None, *, alive: bool = True) -> Snapshot:
    """Read the beats of the workers, and return what there is to see of a run.

    `layout` is the workdir as this machine has it; by default it is where the run says. A run that
    is not `alive` is shown as of its last event.
    """
    layout = layout or Layout(Path(state.workdir))
    beats = {}
    for key, worker in state.workers.items():
        at = worker.started
        path = layout.output(at.output).attempt(at.chunk, at.attempt).beat
        with contextlib.suppress(OSError):
            beat = read_beat(path)
            if beat is not None:
                beats[key] = beat, max(0.0, time.time() - path.stat().st_mtime)
    return snapshot_of(state, time.time() if alive else 0.0, beats)


def snapshot_of(state: RunState, now_s: float = 0.0, beats: Beats | None = None) -> Snapshot:
    """Return what there is to see of a run at `now_s` (seconds since the epoch).

    Of a run that has ended, and by default, it is that at the last event. Without `beats`, the
    workers are shown as they started.
    """
    beats = beats or {}
    live = state.ending is None
    now_s = max(state.last_event_s, now_s if live else 0.0)
    workers = list[str]()
    under_way = Counter[str]()  # texts, by output
    tokens = 0  # of these texts
    longest = (0.0, "")  # seconds of silence, and the chunk
    by_device = sorted(
        state.workers.items(), key=lambda each: (each[1].started.device, not each[1].computing)
    )
    for key, worker in by_device:
        at = worker.started
        beat, silent_s = beats.get(key, (Beat(0, at.pid, Phase.START), 0.0))
        label = state.devices.get(str(at.device), f"device {at.device}")
        chunk = f"{at.output} chunk {at.chunk}"
        words = f"{label}: {chunk}, {PHASES[beat.phase]}"
        if worker.computing:  # the others are prepared ahead
            done = min(beat.rows_done, beat.rows_total)
            under_way[at.output] += done
            tokens += beat.tokens_done
            longest = max(longest, (silent_s, chunk))
            words += f", {done:,} of {counted(beat.rows_total, 'text')}" if beat.rows_total else ""
        workers.append(words)
    outputs = {
        name: replace(each, texts_under_way=under_way[name]) for name, each in state.outputs.items()
    }
    texts_per_s, tokens_per_s = _rates(state, now_s, under_way.total(), tokens)
    # Outputs that this run works on: others say nothing of its rate.
    ours = [each for each in outputs.values() if each.texts_here or not each.complete]
    distinct = sum(each.distinct for each in ours)
    rows = sum(each.rows for each in ours)
    left = distinct - sum(each.texts_encoded for each in ours)
    # Before the first commit there is no rate to go by: the longest texts come first. A run that
    # stops will not finish its work.
    eta_s = None
    if live and state.chunks_here and state.doing != STOPPING and texts_per_s and left > 0:
        eta_s = left / texts_per_s
    no_node = state.on_cluster and not state.devices and state.doing in (STARTING, COMPUTING)
    weight, health = _health(state, now_s, *longest)
    return Snapshot(
        state,
        "waiting for a node of the Ray cluster" if no_node else state.doing,
        max(0.0, now_s - state.began_s),
        health,
        weight,
        outputs,
        tuple(workers) if live else (),
        texts_per_s and texts_per_s * (rows / distinct if distinct else 1.0),
        tokens_per_s or None,
        eta_s,
    )


def _rates(
    state: RunState, now_s: float, texts: int, tokens: int
) -> tuple[float | None, float | None]:
    """Return texts and tokens a second, None if they are not known yet.

    `texts` and `tokens` are how many are under way.
    """
    if not state.points:
        return None, None
    first = state.points[0]
    end_s = now_s if state.ending is None and state.workers else state.kept_s
    if state.ending is not None and state.first_go_s is not None:  # the rate of the whole run
        first = Point(state.first_go_s, 0, 0)
    spent_s = end_s - first.t
    new_texts = state.total("texts_here") + texts - first.texts
    if spent_s <= 0 or new_texts <= 0:
        return None, None
    return new_texts / spent_s, (state.total("tokens_here") + tokens - first.tokens) / spent_s


def _health(state: RunState, now_s: float, silent_s: float, chunk: str) -> tuple[Weight, str]:
    """Say the gravest trouble of the moment, and how grave it is.

    `chunk` is the one whose worker has been silent for longest, for `silent_s`.
    """
    live = state.ending is None
    if live and state.waits_for:
        left_s = state.waits_until_s - now_s
        doing = f"waiting, next try in {human_time(left_s)}" if left_s > 0 else "trying again"
        return Weight.CARE, f"{doing}: {state.waits_for}"
    if live and silent_s > _SILENCE_S:
        words = f"no progress in {chunk} for {human_time(silent_s)}"
        return Weight.CARE, f"{words}; if that lasts, a new worker tries it"
    if live and state.searched:
        chunk, texts = next(reversed(state.searched.items()))
        words = f"looking for the text that fails in {chunk}"
        return Weight.CARE, f"{words}: {counted(texts, 'text')} left"
    lost = list[str]()
    if state.total("without"):
        lost.append(f"{counted(state.total('without'), 'row')} without a vector")
    if state.set_aside:
        lost.append(f"{counted(state.set_aside, 'chunk')} set aside for the next run")
    if state.dropped:
        lost.append(f"{counted(state.dropped, 'device')} left out")
    if lost:
        return Weight.LOSS, "; ".join(lost)
    if state.failed:
        # Once the run has ended, it is not known here whether they were.
        tried = f" and {'are' if state.failed > 1 else 'is'} tried again" if live else ""
        return Weight.CARE, f"{counted(state.failed, 'attempt')} failed{tried}; nothing is lost"
    return Weight.NEWS, "all is well" if live else "without a fault"
