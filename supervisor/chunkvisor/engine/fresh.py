"""Fresh workers: a new interpreter for every attempt.

It never keeps a worker for a second chunk: whatever a CUDA fault broke dies with the process.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from chunkvisor.devices.hostmemory import KillCount
from chunkvisor.engine.worker import Lifeline
from chunkvisor_worker.contract.files import AttemptFiles, open_log
from chunkvisor_worker.contract.messages import Limits, Spec


def worker_command(files: AttemptFiles, _spec: Spec) -> list[str]:
    """The command line of a worker; anyone can type it.

    `-P` keeps the current folder off sys.path: a stray numpy.py there must not be imported.
    """
    return [sys.executable, "-P", "-m", "chunkvisor_worker", str(files.folder)]


class FreshWorker:
    """A Worker that is a new interpreter."""

    warm = False
    tells_beats = False

    def __init__(self, command: Sequence[str], files: AttemptFiles, environment: Mapping[str, str]) -> None:
        """Start it. Raises OSError where no process can be started."""
        self._lifeline, self._kills = Lifeline(), KillCount()
        try:
            with open_log(files.log) as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=self._lifeline.theirs.fileno(),
                    stdout=log,
                    stderr=log,
                    env=dict(environment),
                    start_new_session=True,
                )
        except OSError:
            self._lifeline.close()
            raise
        finally:
            self._lifeline.handed_over()
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)

    def watched(self) -> list[int]:
        """See Worker; a pidfd becomes readable when the process ends (pidfd_open(2))."""
        return [self._pidfd, *self._lifeline.watched()]

    def has_called(self) -> bool:
        """See Worker."""
        return self._lifeline.has_called()

    def go(self, limits: Limits) -> None:
        """See Worker."""
        self._lifeline.go(limits)

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
        returncode = self._process.wait()
        self._lifeline.close()
        os.close(self._pidfd)
        return returncode

    def oom_kills(self) -> int:
        """See Worker."""
        return self._kills.rise()

    def signal(self, number: signal.Signals) -> None:
        """See Worker."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


LOG_LIMIT_BYTES = 64 << 20
"""Beyond this a log is emptied while its worker lives."""

LOG_KEPT_BYTES = 1 << 20
"""So much of a log is kept after its worker has ended: its end."""


def keep_log_end(path: Path) -> None:
    """Cut the log of an ended worker to its last LOG_KEPT_BYTES."""
    with contextlib.suppress(OSError), open(path, "r+b") as file:
        size = os.fstat(file.fileno()).st_size
        if size > LOG_KEPT_BYTES:
            file.seek(size - LOG_KEPT_BYTES)
            end = file.read(LOG_KEPT_BYTES)
            file.seek(0)
            file.write(end)
            file.truncate()


def trim_log(path: Path) -> None:
    """Empty a log that has grown beyond LOG_LIMIT_BYTES: a chatty library must not fill the disk overnight."""
    with contextlib.suppress(OSError):
        if path.stat().st_size > LOG_LIMIT_BYTES:
            os.truncate(path, 0)
