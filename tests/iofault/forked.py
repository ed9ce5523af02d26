"""Commands as forks of this process, and their children as forks of those (forking.py): a run takes
no second.
"""

import os
import select
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import forking
from drivers import zygote

_ROLES = {
    "chunkvisor.sources.stage": "ingest",
    "chunkvisor_worker": "worker",
    "chunkvisor_worker.template": "template",
}
"""Module -> what its process is called."""


def run_command(
    work: Callable[[], None], output: Path, begun: Callable[[str], None], limit_s: float
) -> tuple[int, str]:
    """Do the work of a command in a fork of this process; (its exit code, what it has printed).

    `begun` hears in each of its children of its role.
    """
    pid = os.fork()
    if not pid:
        log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        _be_command(work, begun)
    pidfd, poll = os.pidfd_open(pid), select.poll()
    poll.register(pidfd, select.POLLIN)
    in_time = poll.poll(limit_s * 1000)
    os.close(pidfd)
    if not in_time:
        os.kill(pid, signal.SIGABRT)  # faulthandler prints where it stands
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, ("" if in_time else "no end in sight\n") + output.read_text(errors="replace")


def _be_command(work: Callable[[], None], begun: Callable[[str], None]) -> NoReturn:
    """Do the work, and end this process with the exit code that an interpreter would have."""
    play = zygote.play

    def play_role(order: dict[str, Any]) -> None:
        begun(_ROLES[order["module"]])
        warnings.simplefilter("ignore")
        play(order)

    code: object = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        mock.patch.object(zygote, "play", play_role).start()
        forking.fork_children_of_this_process()
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
