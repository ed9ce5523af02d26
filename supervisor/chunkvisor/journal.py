"""The journal: what happened, one JSON object a line, in order.

It never decides anything: a lost, torn or damaged journal costs the story, not a single row.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chunkvisor_worker.contract.files import open_regular, set_aside


class Journal:
    """Appends events to a file and shows them to whoever listens."""

    def __init__(self, path: Path, run_id: str) -> None:
        self._run_id = run_id
        set_aside(path)  # to open a pipe is to wait for a reader
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # A line that a killed run left half-written must not swallow the first of ours.
        if os.fstat(self._fd).st_size:
            os.write(self._fd, b"\n")

    def write(self, event: str, **details: Any) -> None:
        """Append one event; a full disk swallows it.

        One write(2) with O_APPEND, so that a reader never sees two events mixed. Not synced: the journal is not
        what a resume is based on.
        """
        line = json.dumps({"t": round(time.time(), 3), "run": self._run_id, "event": event, **details})
        with contextlib.suppress(OSError):
            os.write(self._fd, line.encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """The events that can be read, oldest first; none where there is no journal."""
    try:
        file = open_regular(path)  # a missing file is no error
    except OSError:
        return
    with file:
        for line in file:
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict) and isinstance(event.get("event"), str):
                yield event
