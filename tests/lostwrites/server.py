"""Runs commands in rebuilt folders, forked from this process, which has imported all: a resume takes milliseconds.

One JSON object a line on standard input: `folder`, the current one of the command; `command`, its arguments; `stats`,
what a stat of some inodes says. One line on standard output: `code` and `stderr`, and what `told` says. Workers and the
child that reads sources are forked as well (iofault/forked.py); a sync does nothing.
"""

import contextlib
import gc
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import chunkvisor.store.records
import chunkvisor.supervise.session
from chunkvisor.cli import main as chunkvisor_main

sys.path.insert(0, str(Path(__file__).parents[1]))

from iofault.forked import fork_children, make_zygote
from quickruns import be_quick

LIMIT_S = 60.0
"""Of a command; on a busy machine a resume takes a second."""


def forked(work: Callable[[], object]) -> int:
    """The pid of a child that does it; its exit code is 1 after an exception."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            work()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.flush()
                sys.stdout.flush()
            os._exit(code)
    return pid


def play(asked: dict[str, Any]) -> NoReturn:
    """Run one command, in a child."""
    folder, command = Path(asked["folder"]), asked["command"]
    os.chdir(folder)
    log = os.open("stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    stats = {int(inode): tuple(state) for inode, state in asked.get("stats", {}).items()}
    state_of = chunkvisor.store.records.state_of

    def as_recorded(path: Path) -> tuple[int, int, int, int]:
        found = state_of(path)
        recorded = stats.get(found[-1])
        # A power cut leaves number and times of a file that it takes the content of.
        return recorded if recorded is not None and recorded[0] == found[0] else found

    mock.patch.object(chunkvisor.store.records, "state_of", as_recorded).start()
    make_zygote(lambda _role: None)
    if command[0] == "python":
        sys.argv = command[1:]
        exec(compile(Path(command[1]).read_text(), command[1], "exec"), {"__name__": "__main__"})
    else:
        sys.argv = command
        chunkvisor_main()
    sys.exit(0)


def serve(asked: dict[str, Any]) -> dict[str, Any]:
    """The answer to one line."""
    pid = forked(lambda: play(asked))
    fd = os.pidfd_open(pid)
    look = select.poll()
    look.register(fd, select.POLLIN)
    began_s = time.monotonic()
    if not look.poll(LIMIT_S * 1000):
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(fd)
    stderr = Path(asked["folder"], "stderr")
    words = stderr.read_text(errors="replace") if stderr.exists() else ""
    stderr.unlink(missing_ok=True)
    return {"code": code, "stderr": words, "seconds": time.monotonic() - began_s}


def main() -> None:
    """Until the end of standard input."""
    be_quick()
    fork_children(lambda _role: None)
    for owner, name, stand_in in (
        (os, "fsync", lambda _fd: None),
        # What does not touch the state of a run, and takes most of its time.
        (chunkvisor.supervise.session, "observers_of_run", lambda *_: []),
    ):
        mock.patch.object(owner, name, stand_in).start()
    gc.collect()
    gc.freeze()  # or every child would copy what its own collection touches
    for line in sys.stdin:
        print(json.dumps(serve(json.loads(line))), flush=True)
    os._exit(0)  # without the teardown in which the bindings of DuckDB complain about their own leaks


if __name__ == "__main__":
    main()
