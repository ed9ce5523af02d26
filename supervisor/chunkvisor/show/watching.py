"""`chunkvisor status --watch`: looks on until the run ends, in a terminal, in a pipe, or for a program."""

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from chunkvisor.printing import say
from chunkvisor.show.follow import Follower
from chunkvisor.show.lines import can_draw, heartbeat_s, progress_line
from chunkvisor.show.status import State, read_status
from chunkvisor.show.terminal import REFRESH_S, Screen
from chunkvisor.store.layout import Layout
from chunkvisor.store.mark import is_workdir
from chunkvisor.units import human_moment

_JSON_LOOK_S = 1.0
_JSON_SHARE = 0.1
"""Of the time, at most, goes into reading: a long journal is read again less often."""


@contextlib.contextmanager
def ctrl_c_in_pauses() -> Iterator[None]:
    """Lets Ctrl-C come in the pauses between two looks alone, as KeyboardInterrupt.

    Anywhere else it may come to nothing: Python drops an exception that is raised in the callback of a weak reference
    or of the garbage collector.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _pause(seconds: float) -> None:
    if signal.sigtimedwait({signal.SIGINT}, seconds) is not None:
        raise KeyboardInterrupt


def wait_for_run(workdir: Path) -> None:
    """Return once there is a run to follow in the folder; says once what it waits for."""
    told = False
    while not is_workdir(Layout(workdir)) and not workdir.is_file():
        if not told:
            told = True
            say(f"waiting for a run to begin in {workdir} (Ctrl-C ends this)", err=True)
        _pause(REFRESH_S)


def watch_view(follower: Follower) -> None:
    """The live view, or lines where nothing can be drawn; returns at the end of the run, at once where none lives."""
    if not follower.alive:
        return
    if not can_draw(sys.stdout):
        _watch_lines(follower)
        return
    screen = Screen(sys.stdout)
    try:
        while True:
            snapshot = follower.look()
            if not follower.alive:
                break
            screen.draw(snapshot, follower.news)
            _pause(REFRESH_S)
    finally:
        screen.leave(follower.news if not follower.alive else ())


def _watch_lines(follower: Follower) -> None:
    said_s = -float("inf")
    while True:
        snapshot = follower.look()
        for line in follower.news:
            if not say(f"{human_moment(line.t)} {line.words}"):
                return  # as in `status --watch | head`
        if not follower.alive:
            return
        if time.monotonic() - said_s >= heartbeat_s(snapshot.elapsed_s):
            said_s = time.monotonic()
            if not say(f"{human_moment(time.time())} {progress_line(snapshot)}"):
                return
        _pause(REFRESH_S)


def watch_json(workdir: Path) -> None:
    """One line of JSON, as `status --json` has it, at once and for each change; returns at the end of the run."""
    shown = None
    while True:
        began_s = time.monotonic()
        status = read_status(workdir)
        if (content := status.to_json()) != shown:
            shown = content
            if not say(json.dumps(content)):
                return
        if status.state is not State.RUNNING:
            return
        _pause(max(_JSON_LOOK_S, (time.monotonic() - began_s) / _JSON_SHARE))
