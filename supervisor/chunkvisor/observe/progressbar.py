"""A progress bar for scripts and notebooks, by tqdm: texts done, the rate, the time left, what is waited for."""

import sys
import time
import warnings
from typing import TYPE_CHECKING, Never

from chunkvisor.events.event import Event
from chunkvisor.events.state import RunState
from chunkvisor.observe.observer import Observer
from chunkvisor.units import printable

if TYPE_CHECKING:
    from tqdm.auto import tqdm

_EVERY_S = 1.0
"""Between two drawings while nothing happens."""


def is_watched() -> bool:
    """Whether somebody looks on: at a terminal, or in a notebook."""
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())


class ProgressBar(Observer):
    """Draws on standard error, or in the notebook's cell; texts are counted when their chunk is committed."""

    def __init__(self) -> None:
        self._bar: tqdm[Never] | None = None
        self._drawn_s = 0.0

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - the state has it already
        """Show what the run has come to."""
        outputs = [output for output in state.outputs.values() if output.distinct]
        total, done = sum(each.distinct for each in outputs), sum(each.texts_done for each in outputs)
        if self._bar is None:
            if not total:
                return
            # What is done already comes first, so that the rate is that of this run.
            self._bar = _new_bar(total, done)
        self._bar.total, self._bar.n = total, done
        self._bar.set_postfix_str(_note(state), refresh=False)
        self._draw()

    def tick(self) -> None:
        """Let the clock go on."""
        if self._bar is not None and time.monotonic() - self._drawn_s >= _EVERY_S:
            self._draw()

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.set_postfix_str("", refresh=True)
            self._bar.close()

    def _draw(self) -> None:
        assert self._bar is not None
        self._bar.refresh()
        self._drawn_s = time.monotonic()


def _new_bar(total: int, done: int) -> "tqdm[Never]":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a notebook without ipywidgets: a bar of text does as well
        from tqdm.auto import tqdm
    return tqdm(total=total, initial=done, unit=" texts", dynamic_ncols=True, file=None, mininterval=0)


def _note(state: RunState) -> str:
    if state.waits_for:
        return printable(f"waiting: {state.waits_for:.60}")
    if state.quarantined:
        return f"{state.quarantined} in quarantine"
    return f"{state.failed} failed attempts, tried again" if state.failed else ""
