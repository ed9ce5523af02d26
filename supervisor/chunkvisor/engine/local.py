"""Starts workers on this machine.

Each is a new interpreter, or forked from a template process that has loaded the model once.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from chunkvisor.child import python_command, spawn
from chunkvisor.config.choices import Start
from chunkvisor.devices.gpu import Device
from chunkvisor.devices.handles import DeviceHandle, DeviceHandles
from chunkvisor.engine.engine import Worker
from chunkvisor.engine.process import (
    count_oom_kills,
    end,
    readable,
    worker_environment,
)
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import TemplateEvent, TemplateReady, TemplateStarted, WarmGivenUp
from chunkvisor.judge import STATUS_LOST, describe_exit
from chunkvisor_worker.contract.exits import LINEAR_FILE, WorkerExit
from chunkvisor_worker.contract.files import AttemptFiles, remove_folder
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import (
    LEAVE,
    MESSAGE_LIMIT_BYTES,
    Fault,
    Limits,
    Spec,
    TemplateNews,
    TemplateOrder,
    TemplateSpec,
)
from chunkvisor_worker.contract.taxonomy import diagnose
from chunkvisor_worker.contract.wire import from_json, read_message, to_json, write_message

# A template that has not answered by then is stuck; an answer takes milliseconds.
ANSWER_S = 5.0
# A template that ended by one of these does not mean that the config is wrong.
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

# What a template's environment has over that of a worker.
_TEMPLATE_VARIABLES = {
    # A pool of threads does not survive a fork, so there must be none.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # transformers 5 loads weights in threads.
    "HF_DEACTIVATE_ASYNC_LOAD": "1",
    # With this check and no visible device, torch.cuda.is_available() says no without starting CUDA
    # or NVML (torch/cuda/__init__.py, _device_count_nvml); without it, it calls cuInit, and forks
    # are poisoned.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


@frozen
class WorkerSettings:
    """What all workers of one machine have in common."""

    start: Start
    run_id: str  # CHUNKVISOR_RUN_ID in their environment
    base: Mapping[str, str]  # the machine's own environment
    env: Mapping[str, str]  # the config's
    template: TemplateSpec
    template_folder: Path
    startup_s: float  # the time limit for the template


class _LocalWorker:
    """A worker of this machine, see `engine.Worker`.

    Its standard input is a socket: on it the parent opens the gate, and the worker calls. When
    the parent's end closes, the worker ends.
    """

    def __init__(self) -> None:
        self.pid = 0
        self._ours, self.theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._may_call = True  # false from a call until the gate is opened: nothing can come then
        self._pidfd = -1
        self._kills_before = count_oom_kills()

    def attach(self, pid: int, pidfd: int) -> None:
        """Take the number and the descriptor of the process, which has its end of the socket."""
        self.pid = pid
        self._pidfd = pidfd
        self.theirs.close()

    def descriptors(self) -> list[int]:
        # A pidfd becomes readable when the process ends (pidfd_open(2)).
        return [self._pidfd, self._ours.fileno()] if self._may_call else [self._pidfd]

    def has_called(self) -> bool:
        if not self._may_call:
            return False
        try:
            said = self._ours.recv(16)
        except BlockingIOError:
            return False
        except OSError:
            said = b""
        self._may_call = False
        return bool(said)

    def open_gate(self, limits: Limits) -> None:
        self._may_call = True
        self._send_line(to_json(limits))

    def ask_to_stop(self) -> None:
        self._send_line(LEAVE)

    def _send_line(self, line: bytes) -> None:
        with suppress(OSError):  # a worker that has just died; its end is seen anyway
            self._ours.sendall(line)

    @property
    def oom_kills(self) -> int:
        return count_oom_kills() - self._kills_before

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def close(self) -> None:
        """Close the descriptors: it has ended, or was not started."""
        self._may_call = False
        self._ours.close()
        self.theirs.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)


class _FreshWorker(_LocalWorker):
    """A worker that is a new interpreter."""

    warm = False

    def __init__(self, files: AttemptFiles, environment: Mapping[str, str]) -> None:
        """Start it. Raises OSError if no process can be started."""
        super().__init__()
        try:
            command = python_command("chunkvisor_worker", files.folder)
            self._process = spawn(command, self.theirs.fileno(), files.log, environment)
        except OSError:
            self.close()
            raise
        self.attach(self._process.pid, os.pidfd_open(self._process.pid))

    def poll(self) -> int | None:
        if self._process.returncode is not None:
            return self._process.returncode
        # The group is killed before the leader is reaped: until then the kernel cannot give its
        # number to another group (a zombie keeps its pid).
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        self.signal(signal.SIGKILL)
        self.close()
        return self._process.wait()


class _WarmWorker(_LocalWorker):
    """A worker that the template has forked, and whose return code the template reports.

    Only the parent of a process can learn its return code (waitpid(2)).
    """

    warm = True

    def __init__(self, engine: "LocalEngine") -> None:
        super().__init__()
        self._engine = engine
        self._ended_s: float | None = None
        self._returncode: int | None = None

    def descriptors(self) -> list[int]:
        # After its end only the template's report is waited for.
        return super().descriptors() if self._ended_s is None else self._engine.descriptors()

    def poll(self) -> int | None:
        if self._returncode is not None or not readable(self._pidfd):
            return self._returncode
        engine = self._engine
        self._ended_s = self._ended_s or time.monotonic()
        engine.receive()
        status = engine.returncodes.pop(self.pid, None)
        if status is None and not engine.failure:
            if time.monotonic() - self._ended_s <= ANSWER_S:
                return None
            engine.give_up_template(f"for {ANSWER_S:.0f} s it has not reported how a worker ended")
        if status is None:
            # The template would have killed the processes that the worker has started.
            super().signal(signal.SIGKILL)
        elif status == WorkerExit.TAINTED_TEMPLATE:
            engine.give_up_template("a worker found that it had begun to use the GPU")
        self._returncode = STATUS_LOST if status is None else status
        self.close()
        return self._returncode

    def signal(self, number: signal.Signals) -> None:
        # The number of one that has ended may belong to another process by now.
        if self._returncode is None and not readable(self._pidfd):
            super().signal(number)


class LocalEngine:
    """The engine of this machine, see `engine.Engine`; each node of a cluster has one as well.

    It has one template process at most. Only `start` waits for the template's answer.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        settings: WorkerSettings,
        emit: Callable[[TemplateEvent], None],
    ) -> None:
        self._devices = devices
        self._settings = settings
        self._emit = emit
        self._files = AttemptFiles(settings.template_folder)
        self._template: subprocess.Popen[bytes] | None = None
        # to the template; None before it begins, and after it has failed
        self._socket: socket.socket | None = None
        self._loaded = False
        self.failure = ""  # why the template is dead, or was given up and killed
        self._killed = False  # whether the template ended by a signal from outside
        self._began_s = 0.0
        # The template has read no file of the model before this time by the file system's clock.
        self.began_ns = 0
        self._base: dict[str, str] = {}  # the template's environment
        self.returncodes: dict[int, int] = {}  # return codes of ended warm workers, by pid
        # the template's answer to an order: the worker's pid and pidfd; 0 if it could not fork
        self._forked: tuple[int, ...] = ()

    # --- the template

    @property
    def loading(self) -> bool:
        """Say whether the template is still loading the model.

        Workers wait for it: a fresh one would have to load for as long.
        """
        return self._socket is not None and not self._loaded

    @property
    def warm(self) -> bool:
        """Say whether a worker can be forked now."""
        return self._socket is not None and self._loaded

    def start_template(self, pending: int, at_once: int = 0) -> None:
        """Start a template, if the config wants one, or if it saves time.

        That is so if more chunks are `pending` than are worked on `at_once`: the first workers are
        ready as soon without it.
        """
        settings = self._settings
        files = self._files
        of_use = settings.start is Start.WARM or (
            settings.start is Start.AUTO and pending > at_once
        )
        if self._began_s or not of_use:
            return
        self._began_s = time.monotonic()
        self._base = {**self._environment(self._devices[0], threads=1), **_TEMPLATE_VARIABLES}
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        command = python_command("chunkvisor_worker.template", files.folder)
        try:
            remove_folder(files.folder)
            files.folder.mkdir()
            write_message(files.spec, settings.template)
            self.began_ns = files.spec.stat().st_mtime_ns
            self._template = spawn(command, theirs.fileno(), files.log, self._base)
        except OSError as error:
            self.give_up_template(f"no template process can be started: {error}")
        else:
            self._emit(TemplateStarted(self._template.pid))
        theirs.close()

    def receive(self, wait_s: float = 0.0) -> None:
        """Take in the template's messages; wait for the first of them, `wait_s` at most."""
        while self._socket and readable(self._socket.fileno(), wait_s):
            wait_s = 0.0
            try:
                data, pidfds, _, _ = socket.recv_fds(self._socket, MESSAGE_LIMIT_BYTES, 1)
            except OSError:
                data = b""
            news = from_json(TemplateNews, data)
            if not news:
                assert self._template
                with suppress(subprocess.TimeoutExpired):
                    self._template.wait(ANSWER_S)
                code = self._template.returncode
                if code is None:
                    self.give_up_template("it has closed its socket")
                else:
                    self._killed = -code in _FROM_OUTSIDE
                    self.give_up_template(f"it ended with {describe_exit(code)}")
            elif news.phase_s is not None:
                self._loaded = True
                assert self._template
                self._emit(TemplateReady(self._template.pid, phase_s=news.phase_s))
            elif news.unfit:
                self.give_up_template(news.unfit)
            elif news.ended:
                self.returncodes[news.ended] = news.returncode
            else:
                self._forked = (news.forked or 0, *pidfds)
        if self.loading and time.monotonic() - self._began_s > self._settings.startup_s:
            self.give_up_template(
                f"it has not loaded within {self._settings.startup_s:.0f} s (startup_timeout)"
            )

    def _fork(self, files: AttemptFiles, environment: Mapping[str, str]) -> _WarmWorker | None:
        """Fork a worker from the template; None if it could not. Raises OSError."""
        changed = {
            name: value for name, value in environment.items() if self._base.get(name) != value
        }
        removed = tuple(name for name in self._base if name not in environment)
        order = to_json(TemplateOrder(str(files.folder), changed, removed))
        worker = _WarmWorker(self)
        self._forked = ()
        deadline_s = time.monotonic() + ANSWER_S
        try:
            assert self._socket
            with open(files.log, "ab") as log:
                socket.send_fds(self._socket, [order], [worker.theirs.fileno(), log.fileno()])
            while not self._forked and not self.failure:
                self.receive(max(0.0, deadline_s - time.monotonic()))
                if time.monotonic() > deadline_s:
                    self.give_up_template(f"it has not answered for {ANSWER_S:.0f} s")
            if len(self._forked) == 2:
                worker.attach(*self._forked)
        except (BlockingIOError, ConnectionError) as error:
            if isinstance(error, ConnectionError):
                self.receive(ANSWER_S)  # it has just ended, and how is the better reason
            self.give_up_template(f"it takes no orders ({error})")
        finally:
            if not worker.pid:
                worker.close()
        return worker if worker.pid else None

    def give_up_template(self, why: str) -> None:
        """Kill the template and continue without it; its workers live on.

        With `workers.start: warm`, `poll` raises Halt.
        """
        if self._socket:
            self.failure = why
            self.close()
            if self._settings.start is not Start.WARM:
                self._emit(WarmGivenUp(reason=why))

    # --- see Engine

    def open(self, handles: DeviceHandles, pending: Callable[[], int], places: int) -> None:
        """See Engine."""
        self.start_template(pending(), len(self._devices) * places)
        handles.add(self._devices)

    def poll(self) -> None:
        """See Engine."""
        self.receive()
        if self.failure and self._settings.start is Start.WARM:
            code = ExitCode.TRY_AGAIN if self._killed else ExitCode.CONFIG
            remedy = "Write"
            fault = read_message(Fault, self._files.fault)
            if fault:
                rule = diagnose(fault).rule
                code = ExitCode(rule.exit_code or code)
                remedy = f"{rule.remedy} Or write"
            raise Halt(
                code,
                "no worker can be started warm",
                f"{remedy} `workers.start: auto`, or fresh; then run the same command again.",
                why=f"of the template process: {self.failure}",
                log=self._files.log,
            )

    def descriptors(self) -> list[int]:
        """See Engine."""
        return [self._socket.fileno()] if self._socket else []

    def is_preparing(self, _handle: DeviceHandle) -> bool:
        """See Engine."""
        return self.loading

    def start(self, handle: DeviceHandle, files: AttemptFiles, spec: Spec) -> Worker:
        """See Engine."""
        environment = self._environment(handle.device, spec.threads)
        if spec.blocking_launches:
            environment["CUDA_LAUNCH_BLOCKING"] = "1"
        if self.warm and not spec.fresh:
            worker = self._fork(files, environment)
            if worker:
                return worker
            self.poll()  # it may have failed
        return _FreshWorker(files, environment)

    def _environment(self, device: Device, threads: int) -> dict[str, str]:
        settings = self._settings
        linear = settings.template_folder.with_name("linear")
        return worker_environment(
            settings.base,
            device,
            settings.run_id,
            {LINEAR_FILE: str(linear), **settings.env},
            threads=threads,
        )

    def close(self) -> None:
        """See Engine."""
        if self._socket:
            self._socket.close()
            self._socket = None
            if self._template:
                end(self._template)
