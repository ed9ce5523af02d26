"""Runs a child process and waits for it.

One that reads sources, asks the hub, counts tokens, or tries out torch.
"""

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_LOOK_S, _STACK_S = 0.02, 1.0  # between looks; for the stack of a child that takes too long
_PATIENCE_S = 10.0  # for the end of a killed child; one that sleeps in a driver is left behind


def run_child(
    command: Sequence[str],
    log: Path,
    on_wait: Callable[[], None] = lambda: None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = math.inf,
    stdin: int = subprocess.DEVNULL,
    *,
    stack: bool = False,
) -> int:
    """Run the command to its end, in a new session, and return its code.

    What it prints is appended to `log`.

    What `on_wait` raises ends the child and is raised again. Nothing that the child has started
    outlives it. Raises TimeoutError after `timeout_s` (with `stack`, faulthandler has put the
    child's stack into the log), OSError.
    """
    with open(log, "ab") as stream:
        child = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stream,
            stderr=stream,
            env=environment,
            start_new_session=True,
        )
    deadline_s = time.monotonic() + timeout_s
    try:
        while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > deadline_s:
                if stack:
                    child.send_signal(signal.SIGABRT)
                    time.sleep(_STACK_S)
                raise TimeoutError(f"not done after {timeout_s:.0f} s")
            on_wait()
            time.sleep(_LOOK_S)
    finally:
        # Until it is reaped, the kernel gives its number to no other group.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_PATIENCE_S)
    return child.returncode
