"""Starts the worker of each attempt, warm or fresh, and looks after the template."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chunkvisor.config.choices import Start
from chunkvisor.devices.gpu import Device
from chunkvisor.devices.hostmemory import room_for_one_more
from chunkvisor.devices.stations import Station, Stations
from chunkvisor.engine.engine import Demand, Worker
from chunkvisor.engine.environment import worker_environment
from chunkvisor.engine.process import FreshWorker, worker_command
from chunkvisor.engine.warm import NotForkedError, Template, TemplateState, WarmWorker
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.events.event import TemplateEvent, TemplateFailed, TemplateReady, TemplateStarted, WarmGivenUp
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Spec, TemplateSpec
from chunkvisor_worker.contract.taxonomy import diagnose

_WRONG_MODEL = "wrong-model"  # rule of the taxonomy
TEMPLATES = 2
"""A template that dies or gets stuck is replaced once; twice is no accident."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What all workers of one machine have in common."""

    start: Start
    run_id: str
    """That they bear in their environment."""
    base: Mapping[str, str]
    """The machine's own environment."""
    env: Mapping[str, str]
    """The config's."""
    device: Device
    """Any of those that they work on."""
    template: TemplateSpec
    template_folder: Path
    startup_s: float


class Starter:
    """Starts workers as `workers.start` says; a run has one, and so has each node of a cluster."""

    def __init__(self, settings: WorkerSettings, emit: Callable[[TemplateEvent], None]) -> None:
        self._settings = settings
        self._start = settings.start
        self._emit = emit
        self._template: Template | None = None
        self._begun = 0
        self._was_ready = False

    @property
    def loading(self) -> bool:
        """Whether the template gets ready, and nothing is to be started before.

        With `auto`, too: a fresh worker has its first vector no sooner than one that is forked as soon as the template
        has loaded, and the two of them would load the weights twice, beside each other.
        """
        return self._template is not None and self._template.state is TemplateState.LOADING

    @property
    def warm(self) -> bool:
        """Whether a worker can be forked now."""
        return self._template is not None and self._template.state is TemplateState.READY

    def expect(self, pending: int, at_once: int) -> None:
        """Begin to load a template, if it is of use with `pending` chunks to do, `at_once` of them started now.

        One that has been begun already stays.
        """
        if not self._begun and (self._start is Start.WARM or (self._start is Start.AUTO and pending > at_once)):
            self._begin()

    def expect_any(self) -> None:
        """Begin to load one before it is known how much there is to do.

        Nothing else could be started meanwhile, so that the first vectors come sooner however few chunks there are.
        """
        if self._start is not Start.FRESH:
            self._begin()

    def attend(self) -> None:
        """Hear what the template has to say. Raises Halt where the config wants no other start."""
        if self._template is not None:
            loading = self.loading
            self._template.attend()
            if loading and self._template.state is TemplateState.READY:
                self._was_ready = True
                self._emit(TemplateReady(self._template.pid, loaded_s=self._template.loaded_s))
            self._heed_failure()  # which a worker may have noticed before

    def watched(self) -> list[int]:
        """Descriptors that become readable when the template has news."""
        return self._template.watched() if self._template is not None else []

    def start_on(
        self, device: Device, files: AttemptFiles, spec: Spec, *, fresh: bool, blocking_launches: bool
    ) -> Worker:
        """Start a worker; `fresh` forbids a warm one. Raises OSError, and Halt like `attend`."""
        environment = self._environment(device, spec.threads, blocking_launches=blocking_launches)
        if not fresh and self._template is not None and self.warm:
            try:
                return self._template.fork(files, environment)
            except NotForkedError as error:
                if self._template.state is TemplateState.READY:
                    raise BlockingIOError(f"the template could not fork: {error}") from None
                self._heed_failure()
        return FreshWorker(worker_command(files), files, environment)

    def mistrust(self, worker: Worker) -> None:
        """The worker has refused to run from its template. Raises Halt like `attend`."""
        if isinstance(worker, WarmWorker) and worker.template is self._template:
            self._template.fail("a worker found that it had begun to use the GPU")
            self._heed_failure()

    def close(self) -> None:
        """End the template; all workers have ended."""
        if self._template is not None:
            self._template.close()

    def _environment(self, device: Device, threads: int, *, blocking_launches: bool = False) -> dict[str, str]:
        base, run_id, env = self._settings.base, self._settings.run_id, self._settings.env
        return worker_environment(
            base, device, run_id, os.getpid(), env, threads=threads, blocking_launches=blocking_launches
        )

    def _begin(self) -> None:
        self._begun += 1
        settings = self._settings
        environment = self._environment(settings.device, threads=1)
        try:
            self._template = Template(settings.template_folder, settings.template, environment, settings.startup_s)
        except OSError as error:
            self._give_up(f"no template process can be started: {error}", None)
            return
        self._emit(TemplateStarted(self._template.pid))

    def _heed_failure(self) -> None:
        failed = self._template
        if failed is None or failed.state is not TemplateState.FAILED:
            return
        self._emit(TemplateFailed(failed.pid, reason=failed.failure))
        # With `auto`, patience is for a template that has shown that it can load: fresh workers could have begun.
        patient = self._was_ready or self._start is Start.WARM
        if failed.hopeless or not patient or self._begun >= TEMPLATES:
            self._give_up(failed.failure, failed)
        else:
            self._begin()

    def _give_up(self, why: str, failed: Template | None) -> None:
        self._template = None
        if self._start is Start.WARM:
            raise _no_warm_start(why, failed)
        if failed is not None and (fault := failed.fault()) is not None and diagnose(fault).rule.name == _WRONG_MODEL:
            why = "the model is refused, and the next worker tells why"
        self._emit(WarmGivenUp(reason=why))


def _no_warm_start(why: str, failed: Template | None) -> Halt:
    code, remedy = ExitCode.CONFIG, ""
    otherwise = "`workers.start: auto`, or fresh; then run the same command again."
    if failed is None or not failed.hopeless:
        code = ExitCode.MACHINE  # it died or hung: nothing in the config says so
    elif (fault := failed.fault()) is not None:
        rule = diagnose(fault).rule
        memory = rule.outcome is Outcome.HOST_OOM
        code, remedy = ExitCode(rule.exit_code or (ExitCode.MACHINE if memory else ExitCode.CONFIG)), rule.remedy
    return Halt(
        code,
        "no worker can be started warm",
        why=f"of the template process: {why}",
        remedy=f"{remedy} Or write {otherwise}" if remedy else f"Write {otherwise}",
        log=failed.files.log if failed else None,
    )


_LOOK_S = 1.0


class LocalEngine(Starter):
    """See Engine."""

    def __init__(
        self, devices: Sequence[Device], settings: WorkerSettings, emit: Callable[[TemplateEvent], None]
    ) -> None:
        super().__init__(settings, emit)
        self._devices = devices
        self._room, self._room_s = False, float("-inf")

    def open(self, stations: Stations) -> None:
        """See Engine."""
        stations.add(self._devices)

    def prepare(self, demand: Demand) -> None:
        """See Engine."""
        self.expect(demand.pending(), len(self._devices) * demand.places)

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

    def abandon(self, _station: Station, halt: Halt) -> None:
        """See Engine."""
        raise halt
