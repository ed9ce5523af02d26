"""Children of a run as forks of it, in the place of new interpreters: hundreds of runs then take seconds.

Only the start differs. The child has the standard streams, the session, the environment and the signals that it was
to have, and runs the same module as `python -m` would.
"""

import importlib.util
import inspect
import os
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from importlib.abc import InspectLoader
from types import CodeType
from typing import Any

ROLES = {
    "chunkvisor.ingest.stage": "ingest",
    "chunkvisor_worker": "worker",
    "chunkvisor_worker.template": "template",
}
"""Module -> what its process is called."""

_MAIN = {"chunkvisor_worker": "chunkvisor_worker.__main__"}
_EXECUTE = subprocess.Popen._execute_child  # type: ignore[attr-defined]  # private, and the one place where it forks
_NAMES = tuple(inspect.signature(_EXECUTE).parameters)


def fork_children(begun: Callable[[str], None]) -> None:
    """From now on, children of this process that are modules of ours are forked; `begun` hears in them of the role."""
    code = {module: _code_of(_MAIN.get(module, module)) for module in ROLES}

    def execute(self: Any, *values: Any) -> None:
        given = dict(zip(_NAMES[1:], values, strict=True))
        words = [os.fsdecode(word) for word in given["args"]]
        if words[1:3] != ["-P", "-m"] or words[3] not in ROLES:
            _EXECUTE(self, *values)
            return
        pid = os.fork()
        if pid:
            self.pid, self._child_created = pid, True
            ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(given[end] for end in ends))
            return
        _be_child(words[3:], given, code[words[3]], begun)

    subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]  # see above


def new_streams() -> None:
    """Have `sys.stdin` and its fellows belong to the descriptors, whatever stood there before."""
    sys.stdin, sys.stdout, sys.stderr = (
        open(fd, how, closefd=False)  # noqa: SIM115 - they live as long as the process
        for fd, how in ((0, "r"), (1, "w"), (2, "w"))
    )


def _code_of(module: str) -> CodeType:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert isinstance(spec.loader, InspectLoader)
    code = spec.loader.get_code(module)
    assert code is not None
    return code


def _be_child(words: list[str], given: dict[str, Any], code: CodeType, begun: Callable[[str], None]) -> None:
    module = words[0]
    try:
        if given["start_new_session"]:
            os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for fd, end in enumerate(("p2cread", "c2pwrite", "errwrite")):
            if given[end] >= 0:
                os.dup2(given[end], fd)
        os.closerange(3, 1024)
        new_streams()
        if given["env"] is not None:
            os.environ.clear()
            os.environ.update(given["env"])
        begun(ROLES[module])
        sys.argv = words
        warnings.simplefilter("ignore")
        exec(code, {"__name__": "__main__", "__builtins__": __builtins__})
        os._exit(0)
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
