"""Tells a service manager how the run is: ready, alive, how far, stopping (sd_notify(3)).

It uses the thread of the loop: when the loop is stuck, the signs of life stop, as they should.
"""

import os
import socket
import time
from collections.abc import MutableMapping

from chunkvisor.events.event import Assembling, AttemptStarted, ChunkCommitted, Draining, Event, Halted, RunEnded
from chunkvisor.events.state import RunState
from chunkvisor.show.lines import progress_line
from chunkvisor.show.observer import Observer
from chunkvisor.show.snapshot import Readings, snapshot_of

_STATUS_S = 5.0
"""Between two words of progress, at least."""

_READY = (AttemptStarted, Assembling, RunEnded)
"""Before them, a model may be fetched for an hour, which no sign of life interrupts.

A run that finds all its work done has no loop, but has to be ready all the same: systemd takes a service of
Type=notify that ends without having been ready for a failed one.
"""


def service_manager(environ: MutableMapping[str, str] | None = None) -> Observer:
    """Return the observer for the manager that has started this process; one that takes no notice if there is none.

    Takes its variables out of the environment: no child of ours is to speak, or to be watched, in our place.
    """
    environ = os.environ if environ is None else environ
    names = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
    address, watchdog_us, watched_pid = (environ.pop(name, "") for name in names)
    if not address.startswith(("/", "@")):  # none, or one over vsock, which is for virtual machines
        return Observer()
    watched = watchdog_us.isdecimal() and watched_pid in ("", str(os.getpid()))  # see sd_watchdog_enabled(3)
    return Systemd(address, int(watchdog_us) / 1e6 if watched else None)


class Systemd(Observer):
    """Speaks sd_notify; `watchdog_s` is how long the manager puts up with silence, None for ever."""

    def __init__(self, address: str, watchdog_s: float | None) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._alive_every_s = watchdog_s / 3 if watchdog_s else None
        self._alive_s = self._progress_s = float("-inf")
        self._begun = self._ready = False

    def event(self, event: Event, state: RunState) -> None:
        """Tell readiness, the end of it, and what is going on."""
        if isinstance(event, _READY):
            self._begun = True
            self._tell_readiness()
        now_s = time.monotonic()
        last = isinstance(event, ChunkCommitted) and event.chunks_done == event.chunks
        if isinstance(event, ChunkCommitted) and (last or now_s - self._progress_s >= _STATUS_S):
            self._progress_s = now_s
            self._send_status(progress_line(snapshot_of(state, time.time(), Readings())))
        elif isinstance(event, Halted):
            self._send_status(event.what)
        elif event.line:
            self._send_status(event.line)
        if isinstance(event, Draining):
            self._send("STOPPING=1")

    def tick(self) -> None:
        """Tell that the loop is alive."""
        self._tell_readiness()
        now_s = time.monotonic()
        due = self._alive_every_s is not None and now_s - self._alive_s >= self._alive_every_s
        if due and self._send("WATCHDOG=1"):
            self._alive_s = now_s

    def _tell_readiness(self) -> None:
        if self._begun and not self._ready:
            self._ready = self._send("READY=1")

    def _send_status(self, words: str) -> None:
        self._send(f"STATUS={' '.join(words.split())}")

    def _send(self, message: str) -> bool:
        """Send one datagram, without ever waiting for the manager; return whether it has it."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as link:
                link.sendto(message.encode(errors="replace"), self._address)
        except OSError:  # its queue is full, or it is gone
            return False
        return True
