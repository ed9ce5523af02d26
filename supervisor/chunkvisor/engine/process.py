"""Child processes whose standard input is a socket of ours, above all workers: their start, end and log."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import psutil

from chunkvisor.devices.hostmemory import KillCount
from chunkvisor_worker.contract.exits import RUN_ID
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Go, Leave, Limits
from chunkvisor_worker.contract.wire import to_json

LOG_LIMIT_BYTES = 64 << 20
"""Beyond this a log is emptied while its process lives."""
LOG_KEPT_BYTES = 1 << 20
"""Of a log's end, after its process has ended."""
DEATH_S = 5.0
"""The longest wait for a killed process: in uninterruptible sleep it survives the kill."""


def spawn(
    command: Sequence[str], stdin: socket.socket, log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own; what it prints is appended to the log. Closes `stdin` here.

    Raises OSError.
    """
    with stdin, open(log, "ab") as stream:
        return subprocess.Popen(
            command,
            stdin=stdin.fileno(),
            stdout=stream,
            stderr=stream,
            env=dict(environment),
            start_new_session=True,
        )


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send it to the leader's whole group; no error where that has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Kill the process and its group, unless it ends by itself within `grace_s`."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        if grace_s:
            process.wait(grace_s)
    if process.poll() is None:
        signal_group(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(DEATH_S)


def keep_log_end(path: Path) -> None:
    """Cut the log of an ended process to its last LOG_KEPT_BYTES."""
    with contextlib.suppress(OSError), open(path, "r+b") as file:
        size = os.fstat(file.fileno()).st_size
        if size > LOG_KEPT_BYTES:
            file.seek(size - LOG_KEPT_BYTES)
            kept = file.read(LOG_KEPT_BYTES)
            file.seek(0)
            file.write(kept)
            file.truncate()


def trim_log(path: Path) -> None:
    """Empty a log that has grown beyond LOG_LIMIT_BYTES: a chatty library must not fill the disk overnight."""
    with contextlib.suppress(OSError):
        if path.stat().st_size > LOG_LIMIT_BYTES:
            with open(path, "r+b") as file:
                file.truncate(0)


def readable(fd: int, wait_s: float = 0.0) -> bool:
    """Whether the descriptor is readable, or gets so in time; poll(2) and not select(2), which ends at number 1023."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))


class LocalWorker:
    """What the workers of this machine have in common, see `engine.Worker`.

    A socket is the worker's standard input: it opens the gate, hears the worker call, and ends it by closing.
    """

    tells_beats = False

    def __init__(self) -> None:
        self.pid = 0
        self._ours, self.theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._quiet = True
        self._pidfd = -1
        self._kills = KillCount()

    def runs(self, pid: int, pidfd: int) -> None:
        """It was started."""
        self.pid, self._pidfd = pid, pidfd
        self.theirs.close()

    def watched(self) -> list[int]:
        """See Worker; a pidfd becomes readable when the process ends (pidfd_open(2)).

        So does the socket, which is left out after a call: only its end could come.
        """
        return [self._pidfd, self._ours.fileno()] if self._quiet else [self._pidfd]

    def has_called(self) -> bool:
        """See Worker."""
        if not self._quiet:
            return False
        try:
            said = self._ours.recv(16)
        except BlockingIOError:
            return False
        except OSError:
            said = b""
        self._quiet = False
        return bool(said)

    def go(self, limits: Limits) -> None:
        """See Worker; it may call once more then."""
        self._quiet = True
        with contextlib.suppress(OSError):  # a worker that has just died; its end is seen anyway
            self._ours.sendall(to_json(Go(limits)))

    def leave(self) -> None:
        """See Worker."""
        with contextlib.suppress(OSError):  # it has just died; its end is seen anyway
            self._ours.sendall(to_json(Leave(leave=True)))

    def oom_kills(self) -> int:
        """See Worker."""
        return self._kills.rise()

    def signal(self, number: signal.Signals) -> None:
        """See Worker."""
        signal_group(self.pid, number)

    def close(self) -> None:
        """It has ended, or was not started."""
        self._quiet = False
        self._ours.close()
        self.theirs.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)


def worker_command(files: AttemptFiles) -> list[str]:
    """The command line of a worker; anyone can type it.

    `-P` keeps the current folder off sys.path: a stray numpy.py there must not be imported.
    """
    return [sys.executable, "-P", "-m", "chunkvisor_worker", str(files.folder)]


class FreshWorker(LocalWorker):
    """A Worker that is a new interpreter."""

    warm = False

    def __init__(self, command: Sequence[str], files: AttemptFiles, environment: Mapping[str, str]) -> None:
        """Start it. Raises OSError where no process can be started."""
        super().__init__()
        try:
            self._process = spawn(command, self.theirs, files.log, environment)
        except OSError:
            self.close()
            raise
        self.runs(self._process.pid, os.pidfd_open(self._process.pid))

    def poll(self) -> int | None:
        """See Worker.

        The group is killed before the leader is reaped: until then the kernel cannot give its number to another
        group (a zombie keeps its pid).
        """
        if self._process.returncode is not None:
            return self._process.returncode
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        self.signal(signal.SIGKILL)
        self.close()
        return self._process.wait()


_PATIENCE_S = 10.0


def end_orphans(*run_ids: str) -> list[int]:
    """Kill every process on this machine that one of these finished runs has started; returns their pids.

    Workers end themselves when their supervisor dies; what is left is what they have started, or one that hangs in
    the kernel. Waits for their end, 10 s at most.
    """
    wanted = set(run_ids) - {""}  # no run yet, only a `clean`
    if not wanted:
        return []
    found = [process for process in psutil.process_iter() if process.pid != os.getpid() and _bears(process, wanted)]
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + _PATIENCE_S
    psutil.wait_procs(found, timeout=max(0.0, deadline - time.monotonic()))
    return [process.pid for process in found]


def _bears(process: psutil.Process, run_ids: Set[str]) -> bool:
    try:
        return process.environ().get(RUN_ID) in run_ids
    except (psutil.Error, OSError):
        return False
