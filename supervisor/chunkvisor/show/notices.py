"""Tells people elsewhere when a run ends, stalls, or meets the first text that cannot be encoded.

A child process delivers each notice by apprise, one after the other, so that they arrive in the order of what happened.
The run waits for them only at its end: ten seconds at most, three after SIGTERM. Addresses hold passwords.
"""

import collections
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from chunkvisor.errors import ExitCode
from chunkvisor.events.event import Assembling, ChunkCommitted, Event, Halted, OutputOpened, Quarantined, RunEnded
from chunkvisor.events.state import RunState
from chunkvisor.show.observer import Observer
from chunkvisor.show.sensors import BoundedLines
from chunkvisor.store.layout import InvocationFiles, Layout
from chunkvisor.units import counted, human_time

END_S, HURRIED_S = 10.0, 3.0
"""How long the end of a run may take longer for its notices; after SIGTERM, which has something stronger behind it."""
TIMEOUT_S = 60
"""For one notice."""
STALL_LEAST_S, STALL_TIMES = 1800.0, 10
"""A run stalls if no chunk was committed for so long, and for so many times the usual."""
_CHECK_S = 20.0
_COMMAND = (sys.executable, "-P", "-m", "chunkvisor.show.notices")


class Notices(Observer):
    """Hears one run, and sends a child for each notice."""

    def __init__(self, urls: Sequence[str], layout: Layout, files: InvocationFiles | None) -> None:
        self._urls = list(urls)
        self._layout = layout
        self._record = BoundedLines(files.notices, 1000) if files is not None else None
        self._waiting: collections.deque[tuple[str, str]] = collections.deque()
        """What each is about, and its text, in the order of what happened."""
        self._under_way: tuple[str, subprocess.Popen[bytes]] | None = None
        self._usual_s: float | None = None
        """From one chunk to the next; None until two are there."""
        self._last_s: float | None = None
        """Of the last chunk, or the beginning."""
        self._chunks = 0
        self._stalled = False
        self._end_s = END_S

    def event(self, event: Event, state: RunState) -> None:
        """Send a notice, if it is worth one."""
        now_s = time.monotonic()
        match event:
            case OutputOpened() | Assembling():
                self._last_s, self._chunks = now_s, 0  # the time before it does not count
            case ChunkCommitted():
                if self._chunks and self._last_s is not None:
                    passed_s = now_s - self._last_s
                    self._usual_s = passed_s if self._usual_s is None else 0.8 * self._usual_s + 0.2 * passed_s
                self._last_s, self._chunks, self._stalled = now_s, self._chunks + 1, False
            case Quarantined() if state.total("quarantined") == 1:
                row = f"{event.output} row {event.row} ({event.place})"
                self._send("a row is quarantined", f"{row} gets no vector: {event.outcome}: {event.reason}")
            case RunEnded() if state.worked:
                made = ((name, each.rows) for name, each in state.outputs.items() if each.complete and each.distinct)
                rows = [f"{name}: {counted(count, 'row')}" for name, count in made]
                self._send("complete", "\n".join([*rows, f"after {human_time(state.told_s - state.began_s)}"]))
            case Halted() if event.code != ExitCode.INTERRUPTED:  # who pressed Ctrl-C knows
                self._end_s = HURRIED_S if event.code == ExitCode.TERMINATED else END_S
                self._send(f"ended with exit code {event.code}", "\n".join(event.last_words))

    def tick(self) -> None:
        """Look after the child under way, and whether the run stalls."""
        self._advance()
        waited_s = time.monotonic() - self._last_s if self._last_s is not None else 0.0
        if waited_s > max(STALL_LEAST_S, STALL_TIMES * (self._usual_s or 0.0)) and not self._stalled:
            self._stalled = True
            usual = f"; usually it takes {human_time(self._usual_s)}" if self._usual_s else ""
            todo = f"Look at: chunkvisor status {self._layout.workdir}"
            self._send("no progress", f"no chunk was committed for {human_time(waited_s)}{usual}\n{todo}")

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
                child.wait(1.0)
            self._advance()

    def _send(self, what: str, body: str) -> None:
        self._waiting.append((what, body))
        self._advance()

    def _advance(self) -> None:
        """Note what has ended, and start the next."""
        while self._under_way is not None or self._waiting:
            if self._under_way is not None:
                what, child = self._under_way
                if child.poll() is None:
                    return
                self._under_way = None
                self._note(what, "delivered" if child.returncode == 0 else "not delivered to all")
            else:
                what, body = self._waiting.popleft()
                title = f"chunkvisor: {what}: {self._layout.workdir.name} on {socket.gethostname()}"
                order = {"urls": self._urls, "title": title, "body": body[:8000]}
                try:
                    child = subprocess.Popen(
                        _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                    )
                    assert child.stdin is not None
                    # Others can read a command line and an environment, not a pipe. The order fits into its buffer.
                    with child.stdin:
                        child.stdin.write(json.dumps(order).encode())
                    self._under_way = what, child
                except BrokenPipeError:  # it has ended at once
                    self._under_way = what, child
                except OSError:
                    self._note(what, "not sent")

    def _note(self, what: str, end: str) -> None:
        if self._record is not None:
            self._record.append(json.dumps({"t": round(time.time(), 3), "notice": what, "end": end}))


def not_understood(urls: Sequence[str]) -> list[int]:
    """Return the places of addresses that apprise does not understand; none if that cannot be found out."""
    order = json.dumps({"urls": list(urls), "title": "", "body": ""}).encode()
    try:  # in a child: apprise is large
        ended = subprocess.run(_COMMAND, input=order, capture_output=True, timeout=_CHECK_S, check=True)
        return [int(number) for number in json.loads(ended.stdout)]
    except (OSError, ValueError, TypeError, subprocess.SubprocessError):
        return []


def main() -> int:
    """Deliver the notice that comes as JSON on standard input; 0 = to all addresses.

    Without a title, print the places of the addresses that make no sense.
    """
    signal.alarm(TIMEOUT_S)  # without a handler it ends the process, wherever it hangs
    order = json.loads(sys.stdin.buffer.read(1 << 20))
    from apprise import Apprise

    if not order["title"]:
        wrong = [number for number, url in enumerate(order["urls"]) if Apprise.instantiate(url) is None]
        json.dump(wrong, sys.stdout)
        return 0
    sender = Apprise()
    added = [sender.add(url) for url in order["urls"]]  # a wrong one must not keep the others from being told
    delivered = sender.notify(title=order["title"], body=order["body"], body_format="text")
    return 0 if all(added) and delivered else 1


if __name__ == "__main__":
    sys.exit(main())
