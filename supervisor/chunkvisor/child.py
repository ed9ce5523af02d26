"""A child process that somebody waits for: one that reads sources, asks the hub, counts tokens, or tries out torch."""

import ctypes
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from chunkvisor.errors import ExitCode
from chunkvisor_worker.contract.environment import PARENT_PID
from chunkvisor_worker.contract.files import open_log

_PR_SET_PDEATHSIG = 1
_LOOK_MS = 100
_PATIENCE_S = 10.0
"""For the end of a killed child; one that sleeps in a driver is left behind."""


def run_child(
    command: Sequence[str],
    log: Path,
    on_wait: Callable[[], None] = lambda: None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = math.inf,
) -> int:
    """Run the command to its end, in a session of its own, and return its code; what it prints is appended to `log`.

    Calls `on_wait` about ten times a second; what that raises ends the child and is raised again. Nothing that the
    child has started outlives it. Raises TimeoutError after `timeout_s`, OSError where it cannot be started.
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
    deadline_s, look = time.monotonic() + timeout_s, select.poll()
    try:
        with open(os.pidfd_open(child.pid), "rb") as pidfd:  # becomes readable at the end of the child (pidfd_open(2))
            look.register(pidfd, select.POLLIN)
            while not look.poll(_LOOK_MS):
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"not done after {timeout_s:.0f} s")
                on_wait()
    finally:
        # Until it is reaped, the kernel gives its number to no other group.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_PATIENCE_S)
    return child.returncode


def for_tokenizer() -> dict[str, str]:
    """The environment of a child of ours that has a tokenizer.

    No GPU may be touched; and a message of a library must not look like one of ours.
    """
    environment = {**os.environ, PARENT_PID: str(os.getpid()), "CUDA_VISIBLE_DEVICES": ""}
    return environment | {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel end this process with its parent; only the parent's exit before this call needs a look."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit(ExitCode.TERMINATED)
