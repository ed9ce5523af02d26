"""The supervisor's end of the bridge: starts that process, and passes messages to and from it without waiting."""

import os
import socket
import sys
from pathlib import Path

from chunkvisor.engine.environment import SERVICE_MANAGERS
from chunkvisor.engine.process import end, readable, spawn
from chunkvisor.engine.ray.wire import Begin, Order, Report
from chunkvisor_worker.contract.environment import RUN_ID
from chunkvisor_worker.contract.wire import from_json, to_json

_SEND_S = 5.0
"""A bridge that takes no message within this time is stuck."""
_GRACE_S = 12.0
_LINE_BYTES = 64 << 20


class Link:
    """One bridge process."""

    def __init__(self, log: Path, begin: Begin) -> None:
        """Start it, and tell it what it is for. Raises OSError."""
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(_SEND_S)
        self._buffer = b""
        self.alive = True
        """Whether anything can be said or heard."""
        environment = {name: value for name, value in os.environ.items() if name not in SERVICE_MANAGERS}
        # No figures about this cluster go to Ray's makers; the run id, so that a later run can end it.
        environment |= {"RAY_USAGE_STATS_ENABLED": "0", RUN_ID: begin.terms.run_id}
        try:
            self._process = spawn(
                [sys.executable, "-P", "-m", "chunkvisor.engine.ray.bridge"], theirs, log, environment
            )
        except OSError:
            self._socket.close()
            raise
        self.send(begin)

    def watched(self) -> list[int]:
        """A descriptor that becomes readable when there is something to hear, its end included."""
        return [self._socket.fileno()] if self.alive else []

    def send(self, message: Begin | Order) -> None:
        """Say it; a bridge that has ended or is stuck is dead from then on."""
        try:
            if self.alive:
                self._socket.sendall(to_json(message))
        except OSError:
            self._end(0.0)

    def hear(self) -> list[Report]:
        """What has been said meanwhile."""
        found: list[Report] = []
        while self.alive and readable(self._socket.fileno()):
            try:
                data = self._socket.recv(1 << 20)
            except OSError:
                data = b""
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            found += [report for line in lines if (report := from_json(Report, line)) is not None]
            if not data or len(self._buffer) > _LINE_BYTES:
                self._end(0.0)
        return found

    def close(self) -> None:
        """Let it end the agents, and itself."""
        self.send(Order(close=True))
        self._end(_GRACE_S)

    def _end(self, grace_s: float) -> None:
        if self.alive:
            self.alive = False
            end(self._process, grace_s)
            self._socket.close()
