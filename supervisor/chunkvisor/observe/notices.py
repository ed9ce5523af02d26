"""Tells people elsewhere when a run ends, stalls, or meets the first text that cannot be encoded.

One notice goes out after the other, so that they arrive in the order of what happened. Nobody waits for a notifier
while the run lives, and ten seconds at most at its end, three after SIGTERM. Addresses hold passwords.
"""

import collections
import json
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from chunkvisor.errors import ExitCode
from chunkvisor.events.attempt import ChunkCommitted, Quarantined
from chunkvisor.events.event import Event
from chunkvisor.events.output import Assembling, OutputOpened
from chunkvisor.events.run import Halted, RunEnded
from chunkvisor.events.state import RunState
from chunkvisor.observe.boundedlines import BoundedLines
from chunkvisor.observe.observer import Observer
from chunkvisor.observe.pace import Pace
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor.units import counted, human_time

END_S = 10.0
"""How long the end of a run may take longer for its notices."""
HURRIED_S = 3.0
"""The same after SIGTERM, which has something stronger behind it."""
_KILL_S = 1.0
_COMMAND = (sys.executable, "-P", "-m", "chunkvisor.observe.messenger")


class Notices(Observer):
    """Hears one run, and sends a child for each notice."""

    def __init__(self, urls: Sequence[str], layout: Layout, files: InvocationFiles | None) -> None:
        self._urls = list(urls)
        self._layout = layout
        self._record = BoundedLines(files.notices, 1000) if files is not None else None
        self._waiting: collections.deque[tuple[str, str]] = collections.deque()
        """What each is about, and its text, in the order of what happened."""
        self._under_way: tuple[str, subprocess.Popen[bytes]] | None = None
        self._pace = Pace()
        self._stalled = False
        self._end_s = END_S

    def event(self, event: Event, state: RunState) -> None:
        """Send a notice, if it is worth one."""
        now_s = time.monotonic()
        match event:
            case OutputOpened() | Assembling():
                self._pace.began(now_s)
            case ChunkCommitted():
                self._pace.committed(now_s)
                self._stalled = False
            case Quarantined() if state.quarantined == 1:
                row = f"{event.output} row {event.row} ({event.place})"
                self._send("a row is quarantined", f"{row} gets no vector: {event.outcome}: {event.reason}")
            case RunEnded() if state.worked:
                made = ((name, each.rows) for name, each in state.outputs.items() if each.complete and each.distinct)
                rows = [f"{name}: {counted(count, 'row')}" for name, count in made]
                joined = self._layout.slice is None or rows
                what = "complete" if joined else f"slice {self._layout.slice} is done"
                self._send(what, "\n".join([*rows, f"after {human_time(state.told_s - state.began_s)}"]))
            # Who pressed Ctrl-C knows.
            case Halted() if event.code != ExitCode.INTERRUPTED:
                self._end_s = HURRIED_S if event.code == ExitCode.TERMINATED else END_S
                self._send(f"ended with exit code {event.code}", "\n".join(event.last_words))

    def tick(self) -> None:
        """Look after the child under way, and whether the run stalls."""
        self._advance()
        stalled_s = self._pace.stalled_s(time.monotonic())
        if stalled_s is not None and not self._stalled:
            self._stalled = True
            usual = f"; usually it takes {human_time(self._pace.usual_s)}" if self._pace.usual_s else ""
            todo = f"Look at: chunkvisor status {self._layout.workdir}"
            self._send("no progress", f"no chunk was committed for {human_time(stalled_s)}{usual}\n{todo}")

    def close(self) -> None:
        """Wait a little for what is under way or waiting, and end or leave out the rest."""
        deadline_s = time.monotonic() + self._end_s
        while self._under_way is not None:
            _, child = self._under_way
            # One that hangs leaves their share of the time to those after it.
            share_s = (deadline_s - time.monotonic()) / (1 + len(self._waiting))
            try:
                child.wait(max(0.0, share_s))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(_KILL_S)
            self._advance()

    def _send(self, what: str, body: str) -> None:
        self._waiting.append((what, body))
        self._advance()

    def _advance(self) -> None:
        """Note what has ended, and start the next."""
        while True:
            if self._under_way is not None:
                what, child = self._under_way
                if child.poll() is None:
                    return
                self._under_way = None
                self._note(what, "delivered" if child.returncode == 0 else "not delivered to all")
            if not self._waiting:
                return
            what, body = self._waiting.popleft()
            if (started := self._start(what, body)) is not None:
                self._under_way = (what, started)
            else:
                self._note(what, "not sent")

    def _start(self, what: str, body: str) -> subprocess.Popen[bytes] | None:
        """The child that delivers it; None where none can be started."""
        title = f"chunkvisor: {what}: {self._layout.workdir.name} on {socket.gethostname()}"
        try:
            child = subprocess.Popen(
                _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        except OSError:
            return None
        assert child.stdin is not None
        # By standard input: a command line and an environment can be read by others. It fits into the pipe's buffer.
        order = {"urls": self._urls, "title": title, "body": body[:8000]}
        try:
            with child.stdin:
                child.stdin.write(json.dumps(order).encode())
        except OSError:
            child.kill()
        return child

    def _note(self, what: str, end: str) -> None:
        if self._record is not None:
            self._record.append(json.dumps({"t": round(time.time(), 3), "notice": what, "end": end}))
