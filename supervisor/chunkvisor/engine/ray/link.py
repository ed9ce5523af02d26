"""The supervisor's end of the bridge: starts that process, and passes messages to and from it.

It never waits for an answer, and never imports Ray.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

from chunkvisor.engine.environment import SERVICE_MANAGERS
from chunkvisor.engine.ray.wire import Order, Report
from chunkvisor_worker.contract.environment import RUN_ID
from chunkvisor_worker.contract.files import open_log
from chunkvisor_worker.contract.messages import from_json, to_json

_SEND_S = 5.0
"""A bridge that takes no message for so long is stuck."""
_GRACE_S = 12.0
_LINE_BYTES = 64 << 20


class Link:
    """One bridge process."""

    def __init__(self, log: Path, run_id: str) -> None:
        """Start it. Raises OSError."""
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(_SEND_S)
        self._buffer = b""
        self._open = True
        environment = {name: value for name, value in os.environ.items() if name not in SERVICE_MANAGERS}
        # No figures about this cluster go to Ray's makers; the run id, so that a later run can end it.
        environment |= {"RAY_USAGE_STATS_ENABLED": "0", RUN_ID: run_id}
        try:
            with theirs, open_log(log) as stream:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "chunkvisor.engine.ray.bridge"],
                    stdin=theirs.fileno(),
                    stdout=stream,
                    stderr=stream,
                    env=environment,
                    start_new_session=True,
                )
        except OSError:
            self._socket.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether anything can be said or heard."""
        return self._open

    def watched(self) -> list[int]:
        """A descriptor that becomes readable when there is something to hear, its end included."""
        return [self._socket.fileno()] if self._open else []

    def send(self, order: Order) -> None:
        """Say it; a bridge that is gone or stuck is dead from then on."""
        try:
            if self._open:
                self._socket.sendall(to_json(order))
        except OSError:
            self._end(0.0)

    def hear(self) -> list[Report]:
        """What has been said meanwhile."""
        found: list[Report] = []
        poll = select.poll()
        if self._open:
            poll.register(self._socket.fileno(), select.POLLIN)
        while self._open and poll.poll(0):
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
        if not self._open:
            return
        self._open = False
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # in uninterruptible sleep it survives the kill
                self._process.wait(_SEND_S)
        self._socket.close()
