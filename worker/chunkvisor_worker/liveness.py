"""Ties the worker's life to its supervisor: a lifeline and a gate on standard input, and a signal as a second line."""

import contextlib
import ctypes
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

from chunkvisor_worker.contract.exits import PARENT_PID, WorkerExit
from chunkvisor_worker.contract.messages import Go, Leave
from chunkvisor_worker.contract.wire import from_json

_PR_SET_PDEATHSIG = 1
_OOM_SCORE = 500

CALL = b"!"
"""Said on the lifeline: when the worker stands at the gate, and when it needs its device no longer."""


class Gate:
    """Standard input, read by a thread of its own: a line opens the gate, the end of file ends the worker.

    Another line asks it to leave after the batch under way.

    It is a socket, so that the worker can call on it.
    """

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[Go] = queue.SimpleQueue()
        self.leaving = False
        """Whether no batch more is to be begun."""
        threading.Thread(target=self._read, name="lifeline", daemon=True).start()

    def wait_for_go(self) -> Go:
        """Say that this worker is ready, and block until the supervisor lets it use the device."""
        self.call()
        return self._lines.get()

    def call(self) -> None:
        """Have the supervisor read the beat now."""
        with contextlib.suppress(OSError, ValueError):  # a pipe, or closed: the supervisor looks now and then anyway
            os.write(sys.stdin.fileno(), CALL)

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the other end closed before it read our byte: ECONNRESET, the end as well
            for line in sys.stdin.buffer:
                go = from_json(Go, line)
                if go is not None:
                    self._lines.put(go)
                elif from_json(Leave, line) is not None:
                    self.leaving = True
        # The parent is gone: end this process, and with it whatever it has started.
        if _has_children() and os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(WorkerExit.ORPHANED)


def leave(code: WorkerExit, why: str = "") -> NoReturn:
    """End the process without a return to the interpreter, whose own end would run other people's code."""
    for stream, words in ((sys.stdout, ""), (sys.stderr, f"{why}\n" if why else "")):
        with contextlib.suppress(OSError, ValueError):  # a closed or full log must not change the exit code
            stream.write(words)
            stream.flush()
    os._exit(code)


def only_argument(usage: str) -> Path:
    """What the command line has behind the program; ends the process where that is not one word."""
    if len(sys.argv) != 2:
        leave(WorkerExit.USAGE, f"usage: {usage}")
    return Path(sys.argv[1])


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends (PR_SET_PDEATHSIG, prctl(2)).

    Set here and not by a preexec_fn in the parent, which is unsafe beside threads. A parent that died before the call
    sends nothing any more, hence the check behind it. A process that was started by hand has nobody to die with.
    """
    if parent_pid := os.environ.get(PARENT_PID):
        _set_death_signal(signal.SIGKILL)
        if os.getppid() != int(parent_pid):
            os._exit(WorkerExit.ORPHANED)


def outlive_parent() -> None:
    """Take `die_with_parent` back."""
    _set_death_signal(0)


def be_first_victim() -> None:
    """Have the kernel choose this process, not the supervisor, when memory runs out (proc(5), oom_score_adj)."""
    try:
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    except OSError:
        return  # no procfs, or a stricter sandbox: the order of victims is then the kernel's own


def _set_death_signal(number: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def _has_children() -> bool:
    try:
        return any(path.read_bytes().strip() for path in Path("/proc/self/task").glob("*/children"))
    except OSError:
        return True
