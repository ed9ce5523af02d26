"""A progress bar for scripts and notebooks, by tqdm: what the run is at, rows done, the rate, the time left."""

import logging
import sys
import time
import warnings
from typing import TYPE_CHECKING, Never

from chunkvisor.events.event import Event
from chunkvisor.events.run import CheckingModel, ConvertingModel, Draining, Resolving, Waiting
from chunkvisor.events.stages import COMPUTING
from chunkvisor.events.state import RunState
from chunkvisor.observe.logger import LOGGER
from chunkvisor.observe.observer import Observer
from chunkvisor.observe.progress import stage
from chunkvisor.observe.readings import layout_of, take_readings
from chunkvisor.observe.runview import snapshot_of
from chunkvisor.units import counted, printable

if TYPE_CHECKING:
    from tqdm.auto import tqdm

_EVERY_S = 0.5
"""Between two drawings."""

_UNKNOWN = "{desc} [{elapsed}]{postfix}"
"""The bar's form before it is known how many rows there are."""


def is_watched() -> bool:
    """Whether somebody looks on: at a terminal, or in a notebook."""
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())


class ProgressBar(Observer):
    """Draws on standard error, or in the notebook's cell; what workers have done of their chunks counts."""

    def __init__(self) -> None:
        self._bar: tqdm[Never] | None = None
        self._state = RunState()
        self._drawn_s = 0.0
        self._computes = False
        self._interrupted = False

    def event(self, event: Event, state: RunState) -> None:
        """Take it in; most of them are seen with the next tick."""
        self._state = state
        if isinstance(event, Draining):
            self._interrupted = event.signal == "SIGINT"
        if self._bar is not None and event.line and LOGGER.isEnabledFor(logging.INFO):
            self._bar.clear()  # the line that is logged next would stand behind it
        elif isinstance(event, Resolving | CheckingModel | ConvertingModel | Waiting | Draining):
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

    def _draw(self, *, over: bool = False) -> None:
        if (layout := layout_of(self._state)) is None:
            return
        snapshot = snapshot_of(self._state, time.time(), take_readings(layout, self._state, sensors=False))
        words = "" if over or snapshot.doing == COMPUTING else stage(snapshot)
        if self._interrupted and not over:
            words = "stopping; interrupt once more to stop at once"  # first, since 80 columns end before the note
        bar = self._bar = self._bar if self._bar is not None else _new_bar(words)
        if snapshot.rows and bar.total != snapshot.rows:
            bar.bar_format = None
            bar.reset(total=snapshot.rows)
            bar.initial = snapshot.rows_done  # so that the rate is that of this run
        if self._state.first_go_s is not None and not self._computes:
            self._computes = True
            bar.unpause()  # and without the time that the model took to load
        bar.n = snapshot.rows_done
        bar.set_description_str(words, refresh=False)
        bar.set_postfix_str("" if over else self._note(), refresh=False)
        bar.refresh()
        self._drawn_s = time.monotonic()

    def _note(self) -> str:
        state = self._state
        if state.waits_for:
            return printable(f"waiting: {state.waits_for:.200}")
        if state.quarantined:
            return f"{state.quarantined} in quarantine"
        return f"{counted(state.failed, 'failed attempt')}, tried again" if state.failed else ""


def _new_bar(words: str) -> "tqdm[Never]":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a notebook without ipywidgets: a bar of text does as well
        from tqdm.auto import tqdm
    return tqdm(desc=words, unit=" rows", dynamic_ncols=True, file=None, mininterval=0, bar_format=_UNKNOWN)
