"""What the loop needs of a worker process, however it was started.

It never starts one: the engines do.
"""

import contextlib
import select
import signal
import socket
from typing import Protocol

from chunkvisor_worker.contract.messages import Go, Limits, to_json


class Worker(Protocol):
    """A handle on a running worker process."""

    pid: int
    """Of the process, and of the group that it leads; of another machine, 0 until it is heard of."""
    warm: bool
    """Forked from a template; a new interpreter otherwise."""
    tells_beats: bool
    """Whether it calls for every new beat: nobody need look for one meanwhile."""

    def watched(self) -> list[int]:
        """Descriptors that become readable when there is news of it: its end, or a call."""

    def has_called(self) -> bool:
        """Whether it has called since the last time: at the gate, done with its device, or with a new beat."""

    def go(self, limits: Limits) -> None:
        """Open the gate. A worker that has just died is no error: its end is seen anyway."""

    def poll(self) -> int | None:
        """The return code once it has ended, as subprocess gives it; its group is then ended as well.

        STATUS_LOST of `outcome` where nobody can know it any more, NODE_LOST where its machine is lost.
        """

    def oom_kills(self) -> int:
        """Processes that its machine killed for lack of memory since it started."""

    def signal(self, number: signal.Signals) -> None:
        """Send the signal to the worker and everything that it has started."""


def readable(fd: int, wait_s: float = 0.0) -> bool:
    """Whether the descriptor is readable, or gets so in time; poll(2) and not select(2), which ends at number 1023."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))


class Lifeline:
    """The supervisor's end of a worker's standard input: opens its gate, hears it call, and ends it by closing."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._quiet = True

    def watched(self) -> list[int]:
        """Its descriptor, while a call may come; after that its end alone would make it readable."""
        return [self._ours.fileno()] if self._quiet else []

    def has_called(self) -> bool:
        """Whether the worker has just called."""
        if not self._quiet or not readable(self._ours.fileno()):
            return False
        self._quiet = False
        with contextlib.suppress(OSError):
            return bool(self._ours.recv(16))
        return False

    def go(self, limits: Limits) -> None:
        """Open the gate; it may call once more then."""
        self._quiet = True
        with contextlib.suppress(OSError):  # a worker that has just died; its end is seen anyway
            self._ours.sendall(to_json(Go(limits)))

    def handed_over(self) -> None:
        """The worker has its end."""
        self.theirs.close()

    def close(self) -> None:
        """Let the worker go."""
        self._quiet = False
        self._ours.close()
