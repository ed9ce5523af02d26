"""Commands and their children as forks, in the place of new interpreters: hundreds of runs then take seconds.

Only the start differs. A child has the standard streams, the session, the environment and the signals that it was
to have, and runs the same module as `python -m` would. Children are
forks of a zygote, which is a fork of the run before it has begun, and come out as children of the run (CLONE_PARENT,
clone(2)). Were they forks of the run itself, it would copy each page that it writes to once more after each of them:
three quarters of all page faults of a run.
"""

import importlib.util
import inspect
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.abc import InspectLoader
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn

from drivers.zygote import fork_sibling, umask

ROLES = {
    "chunkvisor.sources.stage": "ingest",
    "chunkvisor_worker": "worker",
    "chunkvisor_worker.template": "template",
}
"""Module -> what its process is called."""

_MAIN = {"chunkvisor_worker": "chunkvisor_worker.__main__"}
_EXECUTE = subprocess.Popen._execute_child  # type: ignore[attr-defined]  # private, and the one place where it forks
_NAMES = tuple(inspect.signature(_EXECUTE).parameters)


class Zygote:
    """Forks this process as it was when this was made: before anything else."""

    def __init__(self, begun: Callable[[str], None]) -> None:
        """`begun` hears in each child of its role."""
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()  # children are started by threads, too
        with theirs:
            if not os.fork():
                self._ours.close()
                _serve(theirs, begun)

    def fork(self, words: list[str], streams: list[int], environment: dict[str, str], *, session: bool) -> int:
        """The pid of a new child of this process; streams of -1 stay as they are."""
        order = {"words": words, "environment": environment, "session": session, "umask": umask()}
        order["streams"] = [fd >= 0 for fd in streams]
        with self._lock:
            socket.send_fds(self._ours, [json.dumps(order).encode()], [fd for fd in streams if fd >= 0])
            return int.from_bytes(self._ours.recv(8), "little")


_zygotes: dict[int, Zygote] = {}
"""By the process that has made it."""


def make_zygote(begun: Callable[[str], None]) -> None:
    """For the children of this process; where none is made, that is done for the first child."""
    _zygotes[os.getpid()] = Zygote(begun)


def fork_children(begun: Callable[[str], None]) -> None:
    """From now on, children of this process that are modules of ours are forked; `begun` hears in them of the role."""
    for module in ROLES:
        _code_of(module)

    def execute(self: Any, *values: Any) -> None:
        given = dict(zip(_NAMES[1:], values, strict=True))
        words = [os.fsdecode(word) for word in given["args"]]
        if words[1:3] != ["-P", "-m"] or words[3] not in ROLES:
            _EXECUTE(self, *values)
            return
        streams = [given[end] for end in ("p2cread", "c2pwrite", "errwrite")]
        environment = dict(os.environ if given["env"] is None else given["env"])
        if os.getpid() not in _zygotes:
            make_zygote(begun)
        zygote = _zygotes[os.getpid()]
        self.pid = zygote.fork(words[3:], streams, environment, session=given["start_new_session"])
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[end] for end in ends))

    subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]  # see above


def new_streams() -> None:
    """Have `sys.stdin` and its fellows belong to the descriptors, whatever stood there before."""
    sys.stdin, sys.stdout, sys.stderr = (
        open(fd, how, closefd=False)  # noqa: SIM115 - they live as long as the process
        for fd, how in ((0, "r"), (1, "w"), (2, "w"))
    )


@cache
def _code_of(module: str) -> CodeType:
    spec = importlib.util.find_spec(_MAIN.get(module, module))
    assert spec is not None
    assert isinstance(spec.loader, InspectLoader)
    code = spec.loader.get_code(spec.name)
    assert code is not None
    return code


def _serve(orders: socket.socket, begun: Callable[[str], None]) -> NoReturn:
    """Fork for each order, until nobody can send another."""
    while True:
        text, fds, _, _ = socket.recv_fds(orders, 1 << 20, 3)
        if not text:
            os._exit(0)
        if fork_sibling() == 0:
            orders.send(os.getpid().to_bytes(8, "little"))
            _be_child(json.loads(text), fds, begun)
        for fd in fds:
            os.close(fd)


def _be_child(order: dict[str, Any], fds: list[int], begun: Callable[[str], None]) -> NoReturn:
    def work() -> None:
        if order["session"]:
            os.setsid()
        for stream, is_given in enumerate(order["streams"]):
            if is_given:
                os.dup2(fds.pop(0), stream)
        os.closerange(3, 1024)
        new_streams()
        os.umask(order["umask"])
        os.environ.clear()
        os.environ.update(order["environment"])
        begun(ROLES[order["words"][0]])
        sys.argv = order["words"]
        warnings.simplefilter("ignore")
        exec(_code_of(order["words"][0]), {"__name__": "__main__", "__builtins__": __builtins__})

    _end_with(work)


def _end_with(work: Callable[[], None]) -> NoReturn:
    """Do the work of this forked process, and end it with the exit code that an interpreter would have."""
    code: object = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        work()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def run_command(
    work: Callable[[], None], output: Path, begun: Callable[[str], None], limit_s: float
) -> tuple[int, str]:
    """Do the work of a command in a fork of this process; (its exit code, what it has printed)."""

    def command() -> None:
        log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        make_zygote(begun)
        work()

    pid = os.fork()
    if not pid:
        _end_with(command)
    pidfd, poll = os.pidfd_open(pid), select.poll()
    poll.register(pidfd, select.POLLIN)
    in_time = poll.poll(limit_s * 1000)
    os.close(pidfd)
    if not in_time:
        os.kill(pid, signal.SIGABRT)  # faulthandler prints where it stands
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, ("" if in_time else "no end in sight\n") + output.read_text(errors="replace")
