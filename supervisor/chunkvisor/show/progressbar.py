"""A progress bar for scripts and notebooks, by tqdm: what the run is at, rows done, the rate, the time left."""

import logging
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Never

from chunkvisor.events.event import Event
from chunkvisor.events.model import CheckingModel, Resolving
from chunkvisor.events.run import Draining, Waiting
from chunkvisor.events.stages import COMPUTING
from chunkvisor.events.state import RunState
from chunkvisor.show.lines import LOGGER, figure, rows_in_words, time_left
from chunkvisor.show.observer import Observer
from chunkvisor.show.snapshot import Snapshot, look_at
from chunkvisor.units import counted, human_time, printable
from chunkvisor_worker.contract.exits import Outcome

if TYPE_CHECKING:
    from tqdm.auto import tqdm

_EVERY_S = 0.5
"""Between two drawings."""

_BEFORE = "{desc} [{elapsed}]{postfix}"
"""The bar's form until rows are computed."""
_COUNTING = "{desc}{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} rows [{elapsed}{postfix}]"
"""Its form from then on, and at the end."""
_TELLING_S = 1.0
"""Of computing, before a rate is told of it."""


def is_watched() -> bool:
    """Whether somebody looks on: at a terminal, or in a notebook."""
    kernel = sys.modules.get("ipykernel.kernelapp")  # imported by others, too, such as nbclient
    if kernel is not None and kernel.IPKernelApp.initialized():
        return True
    return sys.stderr is not None and sys.stderr.isatty()


class ProgressBar(Observer):
    """Draws on standard error, or in the notebook's cell; what workers have done of their chunks counts."""

    def __init__(self, source: str = "") -> None:
        """`source` is what people call the source of the output; by default they are told the output's name."""
        self._source = source
        self._bar: tqdm[Never] | None = None
        self._save: Callable[[bool], None] = lambda _stays: None
        self._state = RunState()
        self._drawn_s = 0.0
        self._interrupted = False
        self._wait: Waiting | None = None
        self._near = ""

    def event(self, event: Event, state: RunState) -> None:
        """Take it in; most of them are seen with the next tick."""
        self._state = state
        if isinstance(event, Draining):
            self._interrupted = event.signal == "SIGINT"
        if isinstance(event, Waiting):
            self._wait = event
        if isinstance(event, Resolving):
            self._near = event.near
        if self._bar is not None and event.line and LOGGER.isEnabledFor(logging.INFO):
            self._bar.clear()  # the line that is logged next would stand behind it
        elif isinstance(event, Resolving | CheckingModel | Waiting | Draining):
            self._draw()  # the next tick may be long in coming

    def tick(self) -> None:
        """Draw, if it is time."""
        if time.monotonic() - self._drawn_s >= _EVERY_S:
            self._draw()

    def close(self) -> None:
        """Leave the bar as it is; without one row to count there is none."""
        if self._bar is not None:
            self._draw(over=True)
            self._bar.leave = self._bar.total is not None
            self._bar.close()
            self._save(self._bar.leave)

    def _draw(self, *, over: bool = False) -> None:
        if (snapshot := look_at(self._state, sensors=False)) is None:
            return
        now_s = time.time()
        words = self._words(snapshot, over=over)
        if self._bar is None:
            self._bar, self._save = _new_bar(words)
        bar = self._bar
        if snapshot.rows and bar.total != snapshot.rows:
            bar.reset(total=snapshot.rows)
        # One clock, that of the run. Were it later than the bar's last print, close() would leave out the line's end.
        bar.start_t = min(now_s - snapshot.elapsed_s, bar.last_print_t)
        counts = over or snapshot.doing == COMPUTING or self._state.first_go_s is not None
        bar.bar_format = _COUNTING if counts and bar.total else _BEFORE
        bar.n = snapshot.rows_done
        bar.set_description_str(f"{words}: " if words and bar.bar_format is _COUNTING else words, refresh=False)
        bar.set_postfix_str(", ".join(self._notes(snapshot, over=over)), refresh=False)
        bar.refresh()
        self._drawn_s = time.monotonic()

    def _words(self, snapshot: Snapshot, *, over: bool) -> str:
        """What the run is at; nothing while it computes, and at its good end. The end of 80 columns may be cut off."""
        if over:
            return "stopped" if snapshot.rows and snapshot.share < 1 else ""
        if self._interrupted:
            return "finishing the chunk under way; interrupt once more to stop at once"
        if snapshot.waits_for and self._wait is not None:
            left_s = self._wait.limit_s - self._wait.waited_s
            most = f", at most {human_time(left_s)}" if left_s > 0 else ""
            hub = " for the model hub" if self._wait.outcome == Outcome.HUB else ""
            return f"waiting{hub}{most} (interrupt to stop)"
        if snapshot.doing == COMPUTING:
            return ""
        if snapshot.rows_done and self._state.first_go_s is None:
            return f"{rows_in_words(snapshot)} done already; {snapshot.doing}"
        return snapshot.doing.replace("the source of embeddings", self._source) if self._source else snapshot.doing

    def _notes(self, snapshot: Snapshot, *, over: bool) -> list[str]:
        state, notes = self._state, list[str]()
        if snapshot.waits_for and not over:
            if self._wait is not None and self._wait.outcome == Outcome.HUB:
                if self._near:
                    return [printable(f"did you mean the folder {self._near}?")]
                return ["no network? a folder of the model needs no hub"]
            return [printable(f"{snapshot.waits_for.partition('. ')[0]:.80}")]
        now_s = state.told_s if over else time.time()
        if snapshot.rows_per_s and state.first_go_s is not None and now_s - state.first_go_s >= _TELLING_S:
            notes.append(f"{figure(snapshot.rows_per_s)} rows/s")
            if snapshot.eta_s is not None and not over:
                notes.append(time_left(snapshot))
        if state.without:
            notes.append(f"{counted(state.without, 'row')} without a vector")
        elif state.failed:
            notes.append(f"{counted(state.failed, 'failed attempt')}, tried again")
        return notes


def _new_bar(words: str) -> tuple["tqdm[Never]", Callable[[bool], None]]:
    """A bar, and what is to be called at its end, with whether it stays.

    A saved notebook holds the text that the bar had when it was shown first, unless the cell is told another.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a notebook without ipywidgets: a bar of text does as well
        from tqdm.auto import tqdm
        from tqdm.notebook import tqdm as widget
    new = partial(tqdm, desc=words, dynamic_ncols=True, file=None, mininterval=0, bar_format=_BEFORE)
    if not issubclass(tqdm, widget):
        return new(), lambda _stays: None
    from IPython.display import display

    bar: Any = new(display=False)
    shown = display(bar.container, display_id=True)
    return bar, lambda stays: shown.update(bar.container if stays else {"text/plain": ""}, raw=not stays)
