"""Who may work in a workdir side by side: one run of the whole, or slices of one cut, each of them once."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from chunkvisor.errors import ExitCode, Halt
from chunkvisor.store.layout import Layout
from chunkvisor.store.lock import (
    hold,
    locked,
    named,
    opened,
    read_holder,
    take,
    taken_by,
    taken_by_run,
    write_note,
)
from chunkvisor.store.runfolders import at_work, slices_of
from chunkvisor_worker.contract.files import make_folder, read_bounded
from chunkvisor_worker.contract.wire import from_json, to_json

_AGREE_S = 10.0
"""To agree on the number of slices takes each of them a moment; with a thousand at once, a few seconds."""
_VERSION, _NOTE_BYTES = 1, 256
_FIRST_LOOK_S, _LAST_LOOK_S = 0.1, 2.0
"""Between two looks whether it is our turn: a thousand slices that wait must not keep a file server busy."""


@contextlib.contextmanager
def hold_workdir(layout: Layout, run_id: str) -> Iterator[list[str]]:
    """Hold the workdir, or the slice of it, while the context lasts; gives the ids of the runs that it takes over from.

    Those are over, and were of this very folder: a copy of a live one takes nothing over. Without a run of its own,
    `run_id` is empty. Raises Halt (75) where somebody else is at work there; OSError.
    """
    if layout.slice is None:
        with hold(layout.lock, run_id, lambda: _taken(layout)) as previous:
            before = [previous, *(read_holder(each.lock) for each in slices_of(layout))]
            yield [holder.run_id for holder in before if holder is not None and holder.over]
        return
    for folder in (layout.slices, layout.run):
        make_folder(folder)
    with (
        locked(layout.of(None).lock, fcntl.LOCK_SH, lambda: _taken(layout)),
        _agreed(layout, layout.slice.count),
        hold(layout.lock, run_id, lambda: _slice_taken(layout)) as previous,
    ):
        yield [previous.run_id] if previous is not None and previous.over else []


@contextlib.contextmanager
def turn(layout: Layout, pause: Callable[[float], None], tell: Callable[[str], None]) -> Iterator[None]:
    """Have what belongs to all slices for ourselves; a run of the whole has it anyway.

    While another has it, `tell(who)` is called once and `pause(seconds)` again and again; what they raise ends the
    wait. A slice that dies gives its turn to the next.
    """
    if layout.slice is None:
        yield
        return
    with opened(layout.turn) as fd:
        look_s, told = _FIRST_LOOK_S, False
        while not take(fd, fcntl.LOCK_EX):
            # Whoever has just taken it has not written its name yet: it is told at the next look.
            if not told and (who := read_bounded(layout.turn)):
                told = True
                tell(who.decode(errors="replace"))
            pause(look_s)
            look_s = min(_LAST_LOOK_S, 1.5 * look_s)
        write_note(fd, named(f"slice {layout.slice}", read_holder(layout.lock)).rstrip(","))
        try:
            yield
        finally:
            write_note(fd, "")  # who comes next is not to be called by our name


@contextlib.contextmanager
def _agreed(layout: Layout, count: int) -> Iterator[None]:
    """Be one of `count` slices. Raises Halt (75) where those that live are of another number."""
    with opened(layout.slice_count) as fd:
        deadline = time.monotonic() + _AGREE_S
        while True:
            if take(fd, fcntl.LOCK_EX) and _count_in(os.pread(fd, _NOTE_BYTES, 0)) != count:
                write_note(fd, to_json(_Count(count)).decode())  # none lives: it is ours to say
            # Going over to the shared lock lets go of the other one first (flock(2)): somebody may come between.
            if take(fd, fcntl.LOCK_SH):
                break
            if time.monotonic() > deadline:
                raise _other_count(layout)
            time.sleep(_FIRST_LOOK_S / 2)
        if _count_in(os.pread(fd, _NOTE_BYTES, 0)) != count:
            raise _other_count(layout)
        yield


@dataclass(frozen=True, slots=True)
class _Count:
    """What is noted of slices that live; between them nobody reads it."""

    slices: int
    version: int = _VERSION


def _count_in(note: bytes) -> int | None:
    """How many slices there are; None where nothing is noted, or not by us."""
    if note.isdigit():  # from before there were versions
        return int(note)
    found = from_json(_Count, note)
    return found.slices if found is not None and found.version <= _VERSION else None


def _other_count(layout: Layout) -> Halt:
    others = _count_in(read_bounded(layout.slice_count) or b"") or "other"
    return Halt(
        ExitCode.TRY_AGAIN,
        f"{layout.slice} is none of the {others} slices that are at work in {layout.workdir}",
        why="slices of two cuts overlap: two workers would be at the same chunk",
        remedy=f"wait for them, stop them, or look at them with: chunkvisor status {layout.workdir}",
    )


def _taken(layout: Layout) -> Halt:
    """Who holds the workdir, so that neither the whole nor a slice of it can be had."""
    holders = ((each, read_holder(each.lock)) for each in slices_of(layout))
    living = [(each, holder) for each, holder in holders if at_work(each, holder)]
    if not living:
        return taken_by_run(layout.of(None).lock)
    first, holder = living[0]
    others = f" like {len(living) - 1} other{'s' * (len(living) > 2)}," if len(living) > 1 else ""
    name = named(f"slice {first.slice}", holder) + others
    return taken_by(
        name, layout.workdir, "this command needs the whole workdir, and has to wait until no slice is at work"
    )


def _slice_taken(layout: Layout) -> Halt:
    name = named(f"slice {layout.slice}", read_holder(layout.lock))
    return taken_by(name, layout.workdir, "one run at a time may work on a slice")
