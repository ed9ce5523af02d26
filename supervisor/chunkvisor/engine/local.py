"""Workers on this machine: each a new interpreter, or forked from a template process that has loaded the model once."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from chunkvisor.config.choices import Start
from chunkvisor.devices.gpu import Device
from chunkvisor.devices.stations import Station, Stations
from chunkvisor.engine.engine import Demand, Worker
from chunkvisor.engine.environment import OF_TEMPLATE, worker_environment
from chunkvisor.engine.process import FreshWorker, LocalWorker, end, readable, room_for_one_more, spawn
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import TemplateEvent, TemplateFailed, TemplateReady, TemplateStarted, WarmGivenUp
from chunkvisor.judge import STATUS_LOST, describe_exit
from chunkvisor_worker.contract.exits import RUN_ID, Outcome
from chunkvisor_worker.contract.files import AttemptFiles, remove_folder
from chunkvisor_worker.contract.messages import (
    MESSAGE_LIMIT_BYTES,
    Fault,
    Spec,
    TemplateNews,
    TemplateOrder,
    TemplateSpec,
)
from chunkvisor_worker.contract.taxonomy import Diagnosis, diagnose
from chunkvisor_worker.contract.wire import from_json, read_message, to_json, write_message

# A template that has not answered by then is stuck; it takes milliseconds.
ANSWER_S = 5.0
# A template that dies or gets stuck is replaced once; twice is no accident.
TEMPLATES = 2
_GRACE_S = 2.0
_LOOK_S = 1.0


class NotForkedError(Exception):
    """There is no new worker, and why."""


class TemplateProcess:
    """A template process; nothing here waits for it, except that `fork` waits for an answer."""

    def __init__(self, folder: Path, spec: TemplateSpec, environment: Mapping[str, str], startup_s: float) -> None:
        """Start it in an empty folder for its spec, log and fault. Raises OSError if no process can be started.

        `environment` is the workers'.
        """
        remove_folder(folder)
        folder.mkdir()
        self.files = files = AttemptFiles(folder)
        self.ready = False
        self.failure = ""  # why it is dead, or was given up and killed; empty = it is neither
        self.hopeless = False  # whether another one would fail for the same reason
        self.loaded_s = 0.0
        self._environment = {**environment, **OF_TEMPLATE}
        self._startup_s, self._started_s = startup_s, time.monotonic()
        self.statuses: dict[int, int] = {}  # return codes of ended workers, by pid
        self._forked: tuple[int, int] | None = None
        self._not_forked = ""
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

    @property
    def loading(self) -> bool:
        """Whether it gets ready."""
        return not self.ready and not self.failure

    def watched(self) -> list[int]:
        """Give a descriptor that becomes readable when the template has something to say, or has died."""
        return [] if self.failure else [self._socket.fileno()]

    def attend(self, wait_s: float = 0.0) -> None:
        """Take in what it has said; the first word is waited for, `wait_s` at most."""
        while not self.failure and readable(self._socket.fileno(), wait_s):
            wait_s = 0.0
            try:
                data, fds, _, _ = socket.recv_fds(self._socket, MESSAGE_LIMIT_BYTES, 1)
            except OSError:
                data, fds = b"", []
            self._hear(from_json(TemplateNews, data) if data else None, fds)
        if self.loading and time.monotonic() - self._started_s > self._startup_s:
            self.fail(f"it has not loaded within {self._startup_s:.0f} s (startup_timeout)")

    def _hear(self, report: TemplateNews | None, fds: list[int]) -> None:
        if report is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ANSWER_S)
            code = self._process.returncode
            self.fail(f"it ended with {describe_exit(code)}" if code is not None else "it has closed its socket")
        elif report.loaded_s is not None:
            self.ready, self.loaded_s = True, report.loaded_s
        elif report.unfit is not None:
            self.hopeless = True
            self.fail(report.unfit)
        elif report.forked is not None and len(fds) == 1:
            self._forked = (report.forked, fds.pop())
        elif report.not_forked is not None:
            self._not_forked = report.not_forked
        elif report.ended is not None:
            self.statuses[report.ended] = report.returncode
        for fd in fds:
            os.close(fd)

    def fork(self, files: AttemptFiles, environment: Mapping[str, str]) -> "WarmWorker":
        """Start a worker with this environment for the attempt.

        Raises NotForkedError if there is none; the template has failed by then if it was its fault. OSError.
        """
        changed = {name: value for name, value in environment.items() if self._environment.get(name) != value}
        removed = tuple(name for name in self._environment if name not in environment)
        worker, self._forked, self._not_forked = WarmWorker(self, environment[RUN_ID]), None, ""
        try:
            with open(files.log, "ab") as log:
                order = to_json(TemplateOrder(str(files.folder), changed, removed))
                socket.send_fds(self._socket, [order], [worker.theirs.fileno(), log.fileno()])
            deadline_s = time.monotonic() + ANSWER_S
            while self._forked is None and not self._not_forked and not self.failure:
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

    def reap(self, pid: int) -> None:
        """Let the number of an ended worker be given away."""
        self.statuses.pop(pid, None)
        if not self.failure:
            with contextlib.suppress(OSError):  # a zombie more in a template that is about to be replaced
                self._socket.send(to_json(TemplateOrder(reap=pid)))

    def fail(self, why: str, grace_s: float = 0.0) -> None:
        """Give it up: kill it, if it does not end in time; its workers live on without it."""
        if not self.failure:
            self.failure = why
            self._socket.close()
            end(self._process, grace_s)

    def diagnosis(self) -> Diagnosis | None:
        """Diagnose what it raised when it was to load."""
        fault = read_message(Fault, self.files.fault)
        return diagnose(fault) if fault is not None else None


class WarmWorker(LocalWorker):
    """A worker that was forked from a template, whose child it is."""

    warm = True

    def __init__(self, template: TemplateProcess, run_id: str) -> None:
        super().__init__()
        self.template, self._run_id = template, run_id
        self._ended_s: float | None = None
        self._returncode: int | None = None

    def watched(self) -> list[int]:
        """See Worker; after its end only the template's report is waited for."""
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
        status = self.template.statuses.get(self.pid)
        if status is None and not self.template.failure:
            if time.monotonic() - self._ended_s <= ANSWER_S:
                return None
            self.template.fail(f"for {ANSWER_S:.0f} s it has not reported how a worker ended")
        if status is not None:
            self.signal(signal.SIGKILL)
            self.template.reap(self.pid)
        else:
            # The group's number may be another's by now, so only what bears our run id is killed.
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error, OSError):
                    if os.getpgid(process.pid) == self.pid and process.environ().get(RUN_ID) == self._run_id:
                        process.kill()
        self._returncode = STATUS_LOST if status is None else status
        self.close()
        return self._returncode

    def signal(self, number: signal.Signals) -> None:
        """See Worker."""
        # Once the template is gone, the number of an ended worker may be given away.
        if not self.template.failure or not readable(self._pidfd):
            super().signal(number)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What all workers of one machine have in common."""

    start: Start
    run_id: str  # that they bear in their environment
    base: Mapping[str, str]  # the machine's own environment
    env: Mapping[str, str]  # the config's
    template: TemplateSpec
    template_folder: Path
    startup_s: float


class LocalEngine:
    """The engine of this machine, see `engine.Engine`; each node of a cluster has one as well."""

    def __init__(
        self, devices: Sequence[Device], settings: WorkerSettings, emit: Callable[[TemplateEvent], None]
    ) -> None:
        self._devices, self._settings, self._emit = devices, settings, emit
        self._template: TemplateProcess | None = None
        self._begun = 0
        self._was_ready = False
        self._room, self._room_s = False, float("-inf")

    # --- the template

    @property
    def loading(self) -> bool:
        """Whether the template gets ready, and nothing is to be started before.

        With `auto`, too: a fresh worker has its first vector no sooner than one that is forked as soon as the template
        has loaded, and the two of them would load the weights twice, at the same time.
        """
        return self._template is not None and self._template.loading

    @property
    def warm(self) -> bool:
        """Whether a worker can be forked now."""
        return self._template is not None and self._template.ready and not self._template.failure

    def expect(self, pending: int, at_once: int) -> None:
        """Begin to load a template, if it is of use with `pending` chunks to do, `at_once` of them started now."""
        start = self._settings.start
        if not self._begun and (start is Start.WARM or (start is Start.AUTO and pending > at_once)):
            self._begin()

    def expect_any(self) -> None:
        """Begin to load one before it is known how much there is to do.

        Nothing else could be started meanwhile, so that the first vectors come sooner however few chunks there are.
        """
        if self._settings.start is not Start.FRESH:
            self._begin()

    def _begin(self) -> None:
        self._begun += 1
        settings, environment = self._settings, self._environment(self._devices[0], threads=1)
        try:
            self._template = TemplateProcess(
                settings.template_folder, settings.template, environment, settings.startup_s
            )
        except OSError as error:
            self._give_up(f"no template process can be started: {error}", None)
        else:
            self._emit(TemplateStarted(self._template.pid))

    def _heed_failure(self) -> None:
        failed = self._template
        if failed is None or not failed.failure:
            return
        self._emit(TemplateFailed(failed.pid, reason=failed.failure))
        # With `auto`, patience is for a template that has shown that it can load: fresh workers could have begun.
        patient = self._was_ready or self._settings.start is Start.WARM
        if failed.hopeless or not patient or self._begun >= TEMPLATES:
            self._give_up(failed.failure, failed)
        else:
            self._begin()

    def _give_up(self, why: str, failed: TemplateProcess | None) -> None:
        self._template = None
        found = failed.diagnosis() if failed is not None else None
        if self._settings.start is not Start.WARM:
            refused = found is not None and found.rule.name == "wrong-model"
            self._emit(WarmGivenUp(reason="the model is refused, and the next worker says why" if refused else why))
            return
        # If it died or hung, nothing says that the config is wrong.
        code, remedy = ExitCode.CONFIG if failed is not None and failed.hopeless else ExitCode.MACHINE, ""
        if found is not None and failed is not None and failed.hopeless:
            remedy = f"{found.rule.remedy} Or write"
            short = found.rule.outcome is Outcome.HOST_OOM
            code = ExitCode(found.rule.exit_code or (ExitCode.MACHINE if short else ExitCode.CONFIG))
        raise Halt(
            code,
            "no worker can be started warm",
            why=f"of the template process: {why}",
            remedy=f"{remedy or 'Write'} `workers.start: auto`, or fresh; then run the same command again.",
            log=failed.files.log if failed is not None else None,
        )

    # --- see Engine

    def open(self, stations: Stations) -> None:
        """See Engine."""
        stations.add(self._devices)

    def prepare(self, demand: Demand) -> None:
        """See Engine."""
        self.expect(demand.pending(), len(self._devices) * demand.places)

    def attend(self) -> None:
        """See Engine."""
        if self._template is not None:
            loading = self.loading
            self._template.attend()
            if loading and self.warm:
                self._was_ready = True
                self._emit(TemplateReady(self._template.pid, loaded_s=self._template.loaded_s))
            self._heed_failure()  # which a worker may have noticed before

    def watched(self) -> list[int]:
        """See Engine."""
        return self._template.watched() if self._template is not None else []

    def holding(self, _station: Station) -> bool:
        """See Engine."""
        return self.loading

    def has_room(self, _station: Station, workers: Sequence[Worker]) -> bool:
        """See Engine; looked at once a second, since to look at every worker takes milliseconds."""
        now_s = time.monotonic()
        if now_s - self._room_s > _LOOK_S:
            self._room, self._room_s = room_for_one_more(worker.pid for worker in workers), now_s
        return self._room

    def start(
        self, station: Station, files: AttemptFiles, spec: Spec, *, fresh: bool, blocking_launches: bool
    ) -> Worker:
        """See Engine."""
        return self.start_on(station.device, files, spec, fresh=fresh, blocking_launches=blocking_launches)

    def start_on(
        self, device: Device, files: AttemptFiles, spec: Spec, *, fresh: bool, blocking_launches: bool
    ) -> Worker:
        """Start a worker on one of the devices; `fresh` forbids a warm one. Raises OSError, and Halt like `attend`."""
        environment = self._environment(device, spec.threads, blocking_launches=blocking_launches)
        if not fresh and self._template is not None and self.warm:
            try:
                return self._template.fork(files, environment)
            except NotForkedError as error:
                if self.warm:
                    raise BlockingIOError(f"the template could not fork: {error}") from None
                self._heed_failure()
        return FreshWorker(files, environment)

    def _environment(self, device: Device, threads: int, *, blocking_launches: bool = False) -> dict[str, str]:
        base, run_id, env = self._settings.base, self._settings.run_id, self._settings.env
        return worker_environment(
            base, device, run_id, os.getpid(), env, threads=threads, blocking_launches=blocking_launches
        )

    def mistrust(self, worker: Worker) -> None:
        """See Engine."""
        if isinstance(worker, WarmWorker) and worker.template is self._template:
            self._template.fail("a worker found that it had begun to use the GPU")
            self._heed_failure()

    def abandon(self, _station: Station, halt: Halt) -> None:
        """See Engine."""
        raise halt

    def close(self) -> None:
        """See Engine."""
        if self._template is not None:
            # While it loads it does not listen.
            self._template.fail("the run is over", _GRACE_S if self._template.ready else 0.0)
