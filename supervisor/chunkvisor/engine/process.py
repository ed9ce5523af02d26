"""Child processes whose standard input is a socket of ours, above all workers: their start, end, log and memory."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from chunkvisor_worker.contract.exits import RUN_ID
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import GateOrder, Limits
from chunkvisor_worker.contract.wire import to_json

# Beyond this a log is emptied while its process lives.
LOG_LIMIT_BYTES = 64 << 20
# Of a log's end, after its process has ended.
LOG_KEPT_BYTES = 1 << 20
# The longest wait for a killed process: in uninterruptible sleep it survives the kill.
DEATH_S = 5.0
_ORPHANS_S = 10.0
_CGROUP = Path("/sys/fs/cgroup")


def spawn(
    command: Sequence[str], stdin: socket.socket, log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process in a new session; what it prints is appended to the log. Closes `stdin` here. Raises OSError."""
    with stdin, open(log, "ab") as stream:
        return subprocess.Popen(
            command, stdin=stdin.fileno(), stdout=stream, stderr=stream, env=dict(environment), start_new_session=True
        )


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send it to the leader's whole group, if that has not ended."""
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


def end_orphans(*run_ids: str) -> list[int]:
    """Kill every process on this machine that one of these finished runs has started, and return their pids.

    Workers end themselves when their parent dies; what is left is what they have started, or one that hangs in the
    kernel.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            run_id = process.environ().get(RUN_ID)
            if run_id and run_id in run_ids and process.pid != os.getpid():
                process.kill()
                found.append(process)
    psutil.wait_procs(found, timeout=_ORPHANS_S)
    return [process.pid for process in found]


def readable(fd: int, wait_s: float = 0.0) -> bool:
    """Whether the descriptor is readable, or gets so in time; by poll(2), since select(2) ends at number 1023."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))


# --- logs


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
            os.truncate(path, 0)


# --- host memory


def room_for_one_more(pids: Iterable[int]) -> bool:
    """Whether this machine has memory for one more process like the largest of these."""
    largest = 0
    for pid in pids:
        with contextlib.suppress(psutil.Error, OSError):  # OSError: no descriptor is left to read it with
            largest = max(largest, psutil.Process(pid).memory_info().rss)
    return bool(psutil.virtual_memory().available > 1.5 * largest)


def oom_kills() -> int:
    """Count the processes of our cgroup that the kernel has killed for lack of memory; 0 if there is no counter.

    Only a rise of this count is evidence; a SIGKILL alone is not. cgroup v2: `oom_kill` of memory.events, which counts
    global kills too; v1: of memory.oom_control (kernel documentation, admin-guide/cgroup-v2 and cgroup-v1/memory).
    """
    paths = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            inside = group.lstrip("/")
            if not controllers:
                paths += [_CGROUP / inside / "memory.events", _CGROUP / "memory.events"]
            elif "memory" in controllers.split(","):
                root = _CGROUP / "memory"
                paths += [root / inside / "memory.oom_control", root / "memory.oom_control"]
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    return 0


# --- workers


class LocalWorker:
    """A worker of this machine, see `engine.Worker`.

    A socket is its standard input: it opens the gate, hears the worker call, and ends it by closing.
    """

    tells_beats = False

    def __init__(self) -> None:
        self.pid = 0
        self._ours, self.theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._quiet = True
        self._pidfd = -1
        self._kills_before = oom_kills()

    def runs(self, pid: int, pidfd: int) -> None:
        """Note that it was started."""
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
        self._send(limits)

    def leave(self) -> None:
        """See Worker."""
        self._send(None)

    def _send(self, limits: Limits | None) -> None:
        with contextlib.suppress(OSError):  # a worker that has just died; its end is seen anyway
            self._ours.sendall(to_json(GateOrder(limits)))

    def oom_kills(self) -> int:
        """See Worker."""
        return oom_kills() - self._kills_before

    def signal(self, number: signal.Signals) -> None:
        """See Worker."""
        signal_group(self.pid, number)

    def close(self) -> None:
        """Let go of it: it has ended, or was not started."""
        self._quiet = False
        self._ours.close()
        self.theirs.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)


def worker_command(files: AttemptFiles) -> list[str]:
    """Give the command line of a worker; anyone can type it.

    `-P` keeps the current folder off sys.path: a stray numpy.py there must not be imported.
    """
    return [sys.executable, "-P", "-m", "chunkvisor_worker", str(files.folder)]


class FreshWorker(LocalWorker):
    """A worker that is a new interpreter."""

    warm = False

    def __init__(self, files: AttemptFiles, environment: Mapping[str, str]) -> None:
        """Start it. Raises OSError if no process can be started."""
        super().__init__()
        try:
            self._process = spawn(worker_command(files), self.theirs, files.log, environment)
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
