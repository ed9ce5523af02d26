"""A child process that the run waits for: one that reads sources, asks the hub, or counts tokens.

It never outlives the wait for it, and never holds up whoever has to be told that the run is alive.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from chunkvisor_worker.contract.files import open_log

_WAIT_S = 0.1


def run_child(
    command: Sequence[str], log: Path, on_wait: Callable[[], None], environment: Mapping[str, str] | None = None
) -> int:
    """Run the command to its end, in a session of its own, and return its code; what it prints is appended to `log`.

    Calls `on_wait` about ten times a second; what that raises ends the child and is raised again. Raises OSError where
    it cannot be started.
    """
    with open_log(log) as stream:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )
    try:
        while True:
            try:
                return child.wait(_WAIT_S)
            except subprocess.TimeoutExpired:
                on_wait()
    finally:
        # Not reaped yet means that the group still is its own: the number cannot belong to anybody else.
        if child.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
