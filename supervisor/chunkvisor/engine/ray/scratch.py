"""The private folder of an agent on its node, and what dead agents have left there.

By a lock the kernel says whose agent lives.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from chunkvisor.engine.orphans import end_orphans

_PREFIX = f"chunkvisor-{os.getuid()}-"
_LOCK = "lock"


class Scratch:
    """A new folder in the node's folder for temporary files (TMPDIR)."""

    def __init__(self, mark: str) -> None:
        """`mark` is the run id that the agent's workers bear. Raises OSError."""
        _remove_leftovers()
        # Under another name until the lock is held: another agent of this machine may be cleaning up.
        new = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
        self._lock = os.open(new / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.write(self._lock, mark.encode())
        self.folder = new.rename(new.with_name(new.name[1:]))

    def of_worker(self, number: int) -> Path:
        """The folder of a worker's attempt."""
        return self.folder / f"{number}"

    def remove(self) -> None:
        """All workers have ended."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def _remove_leftovers() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if os.fstat(fd).st_uid != os.getuid():
                    continue
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                end_orphans(os.read(fd, 256).decode())
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(fd)
