"""Fresh workers: a new interpreter for every attempt, so that whatever a CUDA fault broke dies with the process."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence

from chunkvisor.engine.process import LocalWorker, spawn
from chunkvisor_worker.contract.files import AttemptFiles


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
