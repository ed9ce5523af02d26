"""Warm workers: forked from a template process that has imported and loaded everything once.

Whether a worker is to be warm, and what follows a template's failure, `starter` decides.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import psutil

from chunkvisor.engine.environment import template_environment
from chunkvisor.engine.process import LocalWorker, end, readable, spawn
from chunkvisor.judge import STATUS_LOST, describe_exit
from chunkvisor_worker.contract.exits import RUN_ID
from chunkvisor_worker.contract.files import AttemptFiles, remove_folder
from chunkvisor_worker.contract.messages import MESSAGE_LIMIT_BYTES, Fault, Fork, Order, Report, TemplateSpec
from chunkvisor_worker.contract.wire import from_json, read_message, to_json, write_message

ANSWER_S = 5.0
"""A template that has not answered by then is stuck; it takes milliseconds."""
_GRACE_S = 2.0


class TemplateState(Enum):
    """How far a template is."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    """It is dead, or was given up and killed."""


class NotForkedError(Exception):
    """There is no new worker, and why."""


class Template:
    """A template process; nothing here waits for it, but `fork` for an answer."""

    def __init__(self, folder: Path, spec: TemplateSpec, environment: Mapping[str, str], startup_s: float) -> None:
        """Start it; `environment` is the workers'. Raises OSError where no process can be started.

        `folder` is its own, for spec, log and fault; what an earlier one left there is removed.
        """
        remove_folder(folder)
        folder.mkdir()
        self.files = files = AttemptFiles(folder)
        self.state = TemplateState.LOADING
        self.failure = ""
        """Why it failed, in words."""
        self.hopeless = False
        """Whether another one would fail for the same reason."""
        self.loaded_s = 0.0
        self._environment = template_environment(environment)
        self._startup_s = startup_s
        self._statuses: dict[int, int] = {}
        self._forked: tuple[int, int] | None = None
        self._not_forked = ""
        self._started_s = time.monotonic()
        write_message(files.spec, spec, durable=False)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        command = [sys.executable, "-P", "-m", "chunkvisor_worker.template", str(files.folder)]
        try:
            self._process = spawn(command, theirs, files.log, self._environment)
        except OSError:
            self._socket.close()
            raise
        self.pid = self._process.pid

    def watched(self) -> list[int]:
        """A descriptor that becomes readable when the template has something to say, or has died."""
        return [] if self.state is TemplateState.FAILED else [self._socket.fileno()]

    def attend(self, wait_s: float = 0.0) -> None:
        """Take in what it has said; the first word is waited for, `wait_s` at most."""
        while self.state is not TemplateState.FAILED and readable(self._socket.fileno(), wait_s):
            wait_s = 0.0
            try:
                data, fds, _, _ = socket.recv_fds(self._socket, MESSAGE_LIMIT_BYTES, 1)
            except OSError:
                data, fds = b"", []
            self._hear(from_json(Report, data) if data else None, fds)
        if self.state is TemplateState.LOADING and time.monotonic() - self._started_s > self._startup_s:
            self.fail(f"it has not loaded within {self._startup_s:.0f} s (startup_timeout)")

    def fork(self, files: AttemptFiles, environment: Mapping[str, str]) -> "WarmWorker":
        """Start a worker with this environment for the attempt.

        Raises NotForkedError where there is none; the template has failed by then if it was its fault. OSError.
        """
        own = self._environment
        changed = {name: value for name, value in environment.items() if own.get(name) != value}
        order = Order(Fork(str(files.folder), changed, tuple(name for name in own if name not in environment)))
        worker, self._forked, self._not_forked = WarmWorker(self, environment[RUN_ID]), None, ""
        try:
            with open(files.log, "ab") as log:
                socket.send_fds(self._socket, [to_json(order)], [worker.theirs.fileno(), log.fileno()])
            deadline_s = time.monotonic() + ANSWER_S
            while self._forked is None and not self._not_forked and self.state is TemplateState.READY:
                self.attend(max(0.0, deadline_s - time.monotonic()))
                if time.monotonic() > deadline_s:
                    self.fail(f"it has not answered for {ANSWER_S:.0f} s")
            if self._forked is None:
                raise NotForkedError(self._not_forked or self.failure)
        except (BlockingIOError, ConnectionError) as error:
            worker.close()
            self.fail(f"it takes no orders ({error})")
            raise NotForkedError(self.failure) from None
        except BaseException:
            worker.close()
            raise
        worker.runs(*self._forked)
        return worker

    def status_of(self, pid: int) -> int | None:
        """The return code of an ended worker, None while it is not known."""
        return self._statuses.get(pid)

    def reap(self, pid: int) -> None:
        """Have the number of an ended worker given away."""
        self._statuses.pop(pid, None)
        if self.state is not TemplateState.FAILED:
            with contextlib.suppress(OSError):  # a zombie more in a template that is about to be replaced
                self._socket.send(to_json(Order(reap=pid)))

    def fail(self, why: str, grace_s: float = 0.0) -> None:
        """Give it up: kill it, if it does not end in time; its workers live on without it."""
        if self.state is not TemplateState.FAILED:
            self.state, self.failure = TemplateState.FAILED, why
            self._socket.close()
            end(self._process, grace_s)

    def close(self) -> None:
        """The run is over: let it end itself, or kill it."""
        # While it loads it does not listen.
        self.fail("the run is over", _GRACE_S if self.state is TemplateState.READY else 0.0)

    def fault(self) -> Fault | None:
        """What it raised when it was to load."""
        return read_message(Fault, self.files.fault)

    def _hear(self, report: Report | None, fds: list[int]) -> None:
        if report is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ANSWER_S)
            code = self._process.returncode
            self.fail(f"it ended with {describe_exit(code)}" if code is not None else "it has closed its socket")
        elif report.loaded_s is not None:
            self.state, self.loaded_s = TemplateState.READY, report.loaded_s
        elif report.unfit is not None:
            self.hopeless = True
            self.fail(report.unfit)
        elif report.forked is not None and len(fds) == 1:
            self._forked = (report.forked, fds.pop())
        elif report.not_forked is not None:
            self._not_forked = report.not_forked
        elif report.ended is not None:
            self._statuses[report.ended.pid] = report.ended.returncode
        for fd in fds:
            os.close(fd)


class WarmWorker(LocalWorker):
    """A Worker that was forked from a template, whose child it is."""

    warm = True

    def __init__(self, template: Template, run_id: str) -> None:
        super().__init__()
        self.template = template
        self._run_id = run_id
        self._ended_s: float | None = None
        self._returncode: int | None = None

    def watched(self) -> list[int]:
        """See Worker; after its end there is but the template's report to wait for."""
        return super().watched() if self._ended_s is None else self.template.watched()

    def poll(self) -> int | None:
        """See Worker; the template keeps the zombie until its group is dead."""
        if self._returncode is not None:
            return self._returncode
        if self._ended_s is None:
            if not readable(self._pidfd):
                return None
            self._ended_s = time.monotonic()
        self.template.attend()
        status = self.template.status_of(self.pid)
        if status is None and self.template.state is not TemplateState.FAILED:
            if time.monotonic() - self._ended_s <= ANSWER_S:
                return None
            self.template.fail(f"it has not told for {ANSWER_S:.0f} s how a worker ended")
        if status is None:
            self._kill_orphaned_group()
        else:
            self.signal(signal.SIGKILL)
            self.template.reap(self.pid)
        self._returncode = STATUS_LOST if status is None else status
        self.close()
        return self._returncode

    def signal(self, number: signal.Signals) -> None:
        """See Worker."""
        # Whoever reaps it once the template is gone gives its number away.
        if self.template.state is not TemplateState.FAILED or not readable(self._pidfd):
            super().signal(number)

    def _kill_orphaned_group(self) -> None:
        """Kill what is left of the group; its number may be somebody else's by now, so only what bears our run id."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if os.getpgid(process.pid) == self.pid and process.environ().get(RUN_ID) == self._run_id:
                    process.kill()
