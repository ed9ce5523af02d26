"""A file of lines that stays small however long a run lasts: every second line goes when there are too many."""

import contextlib
import os
from pathlib import Path

from chunkvisor_worker.contract.files import open_kept, open_regular, write_atomic


class BoundedLines:
    """Appends lines; the file is private to the user."""

    def __init__(self, path: Path, limit: int) -> None:
        """At most `limit` lines stay in the file."""
        self._path = path
        self._limit = limit
        self._lines = 0

    def append(self, line: str) -> bool:
        """Append a line; True where the file was thinned, so that lines are to come half as often from now on."""
        with contextlib.suppress(OSError):
            fd = open_kept(self._path)
            try:
                os.write(fd, line.encode() + b"\n")
            finally:
                os.close(fd)
        self._lines += 1
        if self._lines < self._limit:
            return False
        with contextlib.suppress(OSError):
            with open_regular(self._path) as file:
                kept = file.read().splitlines(keepends=True)[::2]
            write_atomic(self._path, b"".join(kept), durable=False)
        self._lines //= 2
        return True
