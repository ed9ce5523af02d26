"""Runs a child process and waits for it: one that reads sources, asks the hub, counts tokens, or tries out torch."""

import ctypes
import json
import math
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from chunkvisor.errors import ExitCode, Halt, halt_of
from chunkvisor_worker.contract.files import read_bounded, write_atomic
from chunkvisor_worker.contract.wire import Message, from_json, write_message

_LOOK_S, _STACK_S = 0.02, 1.0
"""Between looks; for the stack of a child that takes too long."""
_PATIENCE_S = 10.0
"""For the end of a killed child; one that sleeps in a driver is left behind."""


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
    """Run the command to its end, in a new session, and return its code; what it prints is appended to `log`.

    What `on_wait` raises ends the child and is raised again. Nothing that the child has started outlives it. Raises
    TimeoutError after `timeout_s` (with `stack`, faulthandler has put the child's stack into the log), OSError.
    """
    with open(log, "ab") as stream:
        child = subprocess.Popen(
            command, stdin=stdin, stdout=stream, stderr=stream, env=environment, start_new_session=True
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


def ask_child(
    module: str, request: object, folder: Path, log: Path, on_wait: Callable[[], None]
) -> tuple[int, Halt | None]:
    """Have a program of ours do what is asked, in an existing folder; its main is `answer_parent`.

    Returns its exit code, and why it did not do it, where it could tell. Raises what `run_child` raises.
    """
    write_message(folder / "request.json", request, durable=False)
    # -P keeps the current folder off sys.path: a csv.py of the person's would shadow the library's.
    status = run_child([sys.executable, "-P", "-m", module, str(folder), str(os.getpid())], log, on_wait)
    try:
        return status, halt_of(json.loads(read_bounded(folder / "answer.json") or b""))
    except (ValueError, KeyError, TypeError):
        return status, None


def answer_parent(
    arguments: Sequence[str],
    kind: type[Message],
    work: Callable[[Message, Path], None],
    in_words: Callable[[Exception, Message | None, Path], Halt | None],
) -> int:
    """Do the child's side, with `FOLDER [PARENT_PID]`; return the exit code, which is that of `chunkvisor`.

    `work` does what is asked in the folder. `in_words` makes a Halt of an error, None of a bug; the log has the
    traceback of either.
    """
    os.umask(0o077)
    folder, request = Path(arguments[0]), None
    if len(arguments) > 1:
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != int(arguments[1]):  # it has ended before that call
            sys.exit(ExitCode.TERMINATED)
    try:
        request = from_json(kind, (folder / "request.json").read_bytes())
        assert request is not None
        work(request, folder)
    except Exception as error:  # noqa: BLE001 - whatever it is, the log gets its traceback and the parent a code
        halt = in_words(error, request, folder)
        # On a full disk there is no room for either: the exit code has to do.
        with suppress(OSError):
            traceback.print_exc()
        with suppress(OSError):
            if halt is not None:
                write_atomic(folder / "answer.json", json.dumps(halt.details()).encode())
        return halt.code if halt is not None else ExitCode.BUG
    return ExitCode.COMPLETE
