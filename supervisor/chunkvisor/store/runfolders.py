"""Who has worked in a workdir: the run of the whole, and its slices."""

import time

from chunkvisor.store.layout import Layout
from chunkvisor.store.lock import Holder, is_held
from chunkvisor.store.slices import Slice

_FOREIGN_SILENCE_S = 900.0
"""A live run writes its journal every few minutes at the least; more is not known of one on another host."""


def slices_of(layout: Layout) -> list[Layout]:
    """The workdir as each of the slices sees it that were ever at work there, in order."""
    try:
        found = sorted(filter(None, (Slice.named(entry.name) for entry in layout.slices.iterdir())))
    except OSError:
        return []
    return [layout.of(each) for each in found]


def all_runs(layout: Layout) -> list[Layout]:
    """The workdir as each run sees it that was ever at work there: first that of the whole, then the slices."""
    return [layout.of(None), *slices_of(layout)]


def latest(layout: Layout) -> list[Layout]:
    """The run that wrote its journal last, together with the other slices of the same cut."""
    newest = max(all_runs(layout), key=_told_s)
    if newest.slice is None:
        return [newest]
    return [each for each in slices_of(layout) if each.slice and each.slice.count == newest.slice.count]


def at_work(run: Layout, holder: Holder | None) -> bool | None:
    """Whether the run that is noted in the lock is alive.

    None for a run of the whole on another machine; of a slice there, its lock tells.
    """
    alive = holder.alive() if holder is not None else False
    if alive is False:
        return is_held(run.lock)  # after a step of the clock, a process seems to be another one (proc(5), btime)
    return is_held(run.lock) if alive is None and run.slice is not None else alive


def lives(run: Layout, holder: Holder | None, told_s: float) -> bool:
    """Whether that run is alive; of one on another machine, whose last event is of `told_s`, what its silence says."""
    alive = at_work(run, holder)
    return time.time() - told_s < _FOREIGN_SILENCE_S if alive is None else alive


def _told_s(run: Layout) -> float:
    try:
        return run.events.stat().st_mtime
    except OSError:
        return float("-inf")
