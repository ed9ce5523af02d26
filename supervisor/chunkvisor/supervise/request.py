"""What a run is asked for, and what it has for itself."""

from collections.abc import Callable
from dataclasses import dataclass

from chunkvisor.config.load import LoadedConfig
from chunkvisor.events.event import Emit
from chunkvisor.heart.signals import Signals
from chunkvisor.store.layout import Layout


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line adds to the config."""

    loaded: LoadedConfig
    max_rows: int | None = None
    from_scratch: bool = False
    update: bool = False
    """Take a source that has changed as it is now."""
    stop_after_s: float | None = None
    """So long it may take, at most; None = as long as it takes."""
    keeps: bool = True
    """False = what is done is thrown away unless all is done: the first signal ends the run at once."""
    typed: str = ""
    """The command, to be typed again; empty for a call from Python."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run has for itself."""

    layout: Layout
    run_id: str
    signals: Signals
    emit: Emit
    tick: Callable[[], None]
    """To be called several times a second, however long something takes."""
    texts_per_s_before: float | None = None
    """Of the last run in this workdir, or of a trial."""
