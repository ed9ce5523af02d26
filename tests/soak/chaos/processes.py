"""Finds the processes that a soak has started, by a mark in their environment, and kills and starves them at random.

It never touches a process without the mark.
"""

import contextlib
import os
import random
import resource
import signal
import time
from pathlib import Path

import psutil

MARK = "CHUNKVISOR_CHAOS"
RUN_ID = "CHUNKVISOR_RUN_ID"

WORKER_SIGNALS = [
    *(signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGSEGV),
    *(signal.SIGABRT, signal.SIGBUS, signal.SIGQUIT, signal.SIGUSR1, signal.SIGSTOP),
]


def marked(mark: str) -> list[psutil.Process]:
    """Every living process that bears the mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def none_left(mark: str, within_s: float) -> list[psutil.Process]:
    """What still lives after so long; empty as soon as nothing does."""
    deadline = time.monotonic() + within_s
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


class Killer:
    """Plays with a living supervisor and its workers."""

    def __init__(self, mark: str, chance: random.Random) -> None:
        self._mark = mark
        self._chance = chance

    def hurt_worker(self, supervisor: int) -> str:
        """Send a random signal to one of its workers; returns which, or nothing where it has none."""
        workers = self._workers(supervisor)
        if not workers:
            return ""
        number = self._chance.choice(WORKER_SIGNALS)
        with contextlib.suppress(psutil.Error):
            self._chance.choice(workers).send_signal(number)
            return number.name
        return ""

    def starve(self, supervisor: int) -> str:
        """Let it open no more files for a moment: what it starts meanwhile is short of them for its whole life."""
        if not self._workers(supervisor):  # an interpreter that cannot even read its modules is no matter of ours
            return ""
        try:
            in_use = sum(1 for _ in Path(f"/proc/{supervisor}/fd").iterdir())
            soft, hard = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)
            limit = in_use + self._chance.randrange(4)
            resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (limit, hard))
            time.sleep(self._chance.uniform(0.1, 0.6))
            resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (soft, hard))
        except OSError:  # it has ended
            return ""
        return "RLIMIT_NOFILE"

    def suspend(self, supervisor: int) -> str:
        """Stop it for a moment, as a laptop's lid or a debugger does."""
        try:
            os.kill(supervisor, signal.SIGSTOP)
            time.sleep(self._chance.uniform(0.2, 1.5))
            os.kill(supervisor, signal.SIGCONT)
        except ProcessLookupError:
            return ""
        return "SIGSTOP, SIGCONT"

    def _workers(self, supervisor: int) -> list[psutil.Process]:
        workers = []
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(supervisor).children():
                with contextlib.suppress(psutil.Error):
                    environment = process.environ()
                    if environment.get(MARK) == self._mark and RUN_ID in environment:
                        workers.append(process)
        return workers
