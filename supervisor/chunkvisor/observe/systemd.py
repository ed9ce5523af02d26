"""Tells a service manager how the run is: ready, alive, how far, stopping (sd_notify(3)).

It never works from a thread of its own: when the loop is stuck, the signs of life stop, as they should.
"""

import os
import socket
import time
from collections.abc import MutableMapping
from typing import Any

from chunkvisor.observe.observer import NullObserver, Observer
from chunkvisor.units import human_time

_STATUS_S = 5.0
"""Progress is told at most so often."""

_LOOP_HAS_BEGUN = frozenset({"attempt_started", "assembling", "run_ended"})
"""Before it, a model may be fetched for an hour, which no sign of life interrupts.

A run that finds all its work done has no loop, but has to be ready all the same: systemd takes a service of
Type=notify that ends without having been ready for a failed one.
"""

_STATUS = {
    "staging": "{output}: reading its source",
    "resolving": "asking the hub for {model}",
    "output_opened": "{output}: {chunks_done:,} of {chunks:,} chunks done before",
    "chunk_committed": "{output}: {chunks_done:,} of {chunks:,} chunks{rate}{left}",
    "waiting_for_turn": "waiting for {who}",
    "waiting": "waiting: {reason}",
    "gpu_busy": "{device}: waiting, {why}",
    "waiting_to_join": "{output}: waiting for disk space: {reason}",
    "assembling": "{output}: joining {chunks:,} chunks",
    "output_complete": "{output}: complete",
    "draining": "{signal}: finishing the chunks under way",
    "halted": "{what}",
}


def service_manager(environ: MutableMapping[str, str] | None = None) -> Observer:
    """The observer for the manager that has started this process; one that takes no notice where there is none.

    Takes its variables out of the environment: no child of ours is to speak, or to be watched, in our place.
    """
    environ = os.environ if environ is None else environ
    address, watchdog_us, watched_pid = (
        environ.pop(name, "") for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
    )
    if not address.startswith(("/", "@")):  # none, or one over vsock, which is for virtual machines
        return NullObserver()
    watched = watchdog_us.isdecimal() and watched_pid in ("", str(os.getpid()))  # see sd_watchdog_enabled(3)
    return Systemd(address, int(watchdog_us) / 1e6 if watched else None)


class Systemd(NullObserver):
    """The observer that speaks sd_notify; `watchdog_s` is how long the manager puts up with silence, None for ever."""

    def __init__(self, address: str, watchdog_s: float | None) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._alive_every_s = watchdog_s / 3 if watchdog_s else None
        self._alive_s = self._progress_s = float("-inf")
        self._begun = self._ready = False

    def event(self, event: str, details: dict[str, Any]) -> None:
        """Tell readiness, the end of it, and what is going on."""
        if event in _LOOP_HAS_BEGUN:
            self._begun = True
            self._tell_readiness()
        if event in _STATUS and not (event == "chunk_committed" and self._told_lately(details)):
            status = _STATUS[event].format_map(details | _pace(details))
            self._send(f"STATUS={' '.join(status.split())}")
        if event == "draining":
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

    def _told_lately(self, details: dict[str, Any]) -> bool:
        now_s, last = time.monotonic(), details["chunks_done"] == details["chunks"]
        if not last and now_s - self._progress_s < _STATUS_S:
            return True
        self._progress_s = now_s
        return False

    def _send(self, message: str) -> bool:
        """Send one datagram, without ever waiting for the manager; returns whether it has it."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as link:
                link.sendto(message.encode(errors="replace"), self._address)
        except OSError:  # its queue is full, or it is gone
            return False
        return True


def _pace(details: dict[str, Any]) -> dict[str, str]:
    rate, left_s = details.get("texts_per_s"), details.get("eta_s")
    return {
        "rate": f", {rate:,.0f} texts/s" if rate else "",
        "left": f", about {human_time(left_s)} left" if left_s else "",
    }
