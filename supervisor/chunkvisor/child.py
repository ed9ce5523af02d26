"""Run a child process to its end, with a time limit.

Children read sources, ask the hub, count tokens, or try out torch.
"""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from chunkvisor.errors import ExitCode, Halt

OnWait = Callable[[], None]
"""A function that a slow step calls several times a second. It redraws the display, and raises if
the run is asked to stop, which ends the step."""

_PROC = Path("/proc/self/stat")
_POLL_S = 0.02  # between two looks whether the child has ended
_STACK_S = 1.0  # in which faulthandler writes the stack of a child that takes too long
_KILL_S = 10.0  # for the end of a killed child; one that hangs in a driver is left behind


def require_proc() -> None:
    """Raise Halt (69) without /proc, in which a run finds its processes and their memory."""
    if not _PROC.exists():
        raise Halt(
            ExitCode.MACHINE,
            "/proc is not mounted, so a run could not look after its processes",
            "Mount it (mount -t proc proc /proc), or start the container with it.",
        )


def python_command(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module in a new interpreter; it can be typed as well.

    `-P` keeps the current folder off sys.path: a stray numpy.py there must not be imported.
    """
    return [sys.executable, "-P", "-m", module, *map(str, arguments)]


def spawn(
    command: Sequence[str],
    stdin: int,
    log: Path,
    environment: Mapping[str, str] | None,
) -> subprocess.Popen[bytes]:
    """Start a process in a new session; what it prints is appended to `log`. Raises OSError."""
    with open(log, "ab") as stream:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stream,
            stderr=stream,
            env=environment,
            start_new_session=True,
        )


def run_child(
    command: Sequence[str],
    log: Path,
    on_wait: OnWait = lambda: None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = math.inf,
    stdin: int = subprocess.DEVNULL,
    *,
    stack: bool = False,
) -> int:
    """Run the command in a new session, append what it prints to `log`, and return its exit code.

    `on_wait` is called 50 times a second; if it raises, the child is killed and the exception goes
    on. Processes that the child has started are killed with it. Raises TimeoutError after
    `timeout_s`, OSError. `stack`: before such a child is killed, its faulthandler writes its stack
    into the log.
    """
    require_proc()
    child = spawn(command, stdin, log, environment)
    deadline_s = time.monotonic() + timeout_s
    try:
        while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > deadline_s:
                if stack:
                    child.send_signal(signal.SIGABRT)
                    time.sleep(_STACK_S)
                raise TimeoutError(f"not done after {timeout_s:.0f} s")
            on_wait()
            time.sleep(_POLL_S)
    finally:
        # Before `wait`: until then, the number of its group cannot belong to other processes.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_KILL_S)
    return child.returncode
