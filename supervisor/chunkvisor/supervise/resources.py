"""What one run is asked for, and what it works with: devices, the model's files and an engine.

It is imported before the model begins to load, so that it imports neither numpy nor what works on
outputs.
"""

import os
import time
from dataclasses import field
from pathlib import Path
from typing import Any

from chunkvisor.config.choices import EngineKind, Start
from chunkvisor.config.load import LoadedConfig, RowChoice
from chunkvisor.core.run import Run, WaitReporter, stopped
from chunkvisor.devices.gpu import Device, find_devices
from chunkvisor.engine.engine import Engine
from chunkvisor.engine.local import LocalEngine, WorkerSettings
from chunkvisor.engine.modelfolder import Repository, check_model_files, repository_of
from chunkvisor.engine.modelsource import (
    ModelSource,
    known_source,
    resolve_hub,
    resolve_local,
    resolve_outside,
)
from chunkvisor.engine.ray.engine import RayEngine
from chunkvisor.errors import config_error
from chunkvisor.events.event import Doing, Resolving, RunStarted, Warned
from chunkvisor.units import counted
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import TemplateSpec

_PAUSE_S = 0.25


@frozen
class Request:
    """What the command line adds to the config."""

    loaded: LoadedConfig
    rows: RowChoice = field(default_factory=RowChoice)
    from_scratch: bool = False
    update: bool = False  # take a source that has changed as it is now
    stop_after_s: float | None = None  # the most time that it may take; None = as long as it takes
    keeps: bool = True
    """False: nothing of an unfinished run is kept, so that the first signal ends it at once."""
    typed: str = ""  # the command as it can be typed again; empty for a call from Python
    place: Path | None = None  # of the only final file, if it is not to be in the workdir
    more: dict[str, Any] = field(default_factory=dict)  # further entries of manifests


class RunResources:
    """Devices, model and engine of one run; whoever makes it closes it."""

    def __init__(self, request: Request, run: Run) -> None:
        """Find the devices, and report that the run begins. Raises Halt if there are none."""
        self.request = request
        self.run = run
        self._config = config = request.loaded.config
        self.on_ray = config.engine.kind is EngineKind.RAY
        self._ahead: LocalEngine | None = None
        """An engine that was started early, so that the model loads while sources are read."""
        if self.on_ray:
            # Stands for the devices of the cluster, which are not known yet.
            self.devices: tuple[Device, ...] = (Device(config.device_kind, name="the Ray cluster"),)
        else:
            if "cpu" not in config.device:
                run.emit(Doing("asking nvidia-smi for the GPUs"))
            self.devices = find_devices(config.device)
        # A GPU that nvidia-smi does not list has a number instead of a UUID.
        guessed = sum(device.uuid.isdecimal() for device in self.devices)
        if guessed:
            run.emit(
                Warned(
                    "nvidia-smi does not list the GPUs: the run continues with "
                    f"{counted(guessed, 'GPU')}, whose memory and health it cannot look at. "
                    "`chunkvisor doctor` says more"
                )
            )
        run.emit(
            RunStarted(
                workdir=str(run.layout.workdir),
                device=", ".join(map(str, self.devices)),
                gpus=tuple(device.uuid for device in self.devices),
                engine=str(config.engine.kind),
                model=config.model.name,
                outputs=tuple(config.outputs),
            )
        )

    def close(self) -> None:
        """Close the engine that was started early, unless it was taken."""
        if self._ahead:
            self._ahead.close()

    def on_wait(self) -> None:
        """Keep the display going while something is waited for.

        Raises Halt if the run is asked to stop.
        """
        self.run.tick()
        if self.run.signals.draining:
            raise stopped(self.run.signals)

    # --- the model

    def source(self) -> ModelSource:
        """Find or download the model's files; begin to load them if an output is new.

        Raises Halt, also if the files are not those of the model that the config describes;
        OSError.
        """
        model = self._config.model
        layout = self.run.layout
        # A resumed run may need no worker at all: it does not load the model before it knows.
        is_new = not all(layout.output(name).state.exists() for name in self._config.outputs)
        if model.is_plugin:
            found = ModelSource(None, model.revision)
        else:
            here = known_source(model, layout.model)
            if not here:
                from chunkvisor.sources.child import request_of, try_first_row

                # A download takes minutes: an error in a source is found before it.
                for name in self._config.outputs:
                    wanted = request_of(self._config, name, self.request.rows)
                    try_first_row(wanted, self.on_wait)
            if here and model.is_folder:
                found = here
            else:
                found = self._fetch(repository_of(model), f"the model {model.name}")
            check_model_files(self._config, found.path)
            resolve_outside(found, model, self._fetch, layout.hub, self._read_folder)
            if is_new:  # before the digest of its files, which takes seconds for each gigabyte
                self.load_ahead(found)
            if model.is_folder:
                read = self._read_folder(Path(model.name))
                found.revision = read.revision
                found.stamps = read.stamps
            if self._ahead and not found.untouched_since(self._ahead.began_ns):
                # The folder was changed meanwhile: other files may have been loaded.
                self._ahead.close()
                self._ahead = None
        if is_new:
            self.load_ahead(found)
        return found

    def _read_folder(self, folder: Path) -> ModelSource:
        """Take the digest of a model's folder. Raises Halt (78)."""
        self.run.emit(Doing("reading the files of the model"))
        try:
            return resolve_local(folder, self.run.layout.model, self.on_wait)
        except OSError as error:
            raise config_error(
                f"the model folder {folder} cannot be read: {error}",
                "Give yourself the right to read it.",
            ) from None

    def _fetch(self, wanted: Repository, what: str) -> ModelSource:
        """Download files of the hub, unless they are here. Raises Halt, OSError."""
        self.run.emit(Resolving(wanted.name))
        layout = self.run.layout
        timeout_s = self._config.recovery.wait_timeout
        waits = WaitReporter(self.run.emit, timeout_s)

        def wait(seconds: float, waited_s: float, why: str) -> None:
            waits.report(seconds, waited_s, why, Outcome.HUB)
            deadline_s = time.monotonic() + seconds
            while time.monotonic() < deadline_s:
                self.run.signals.sleep(min(deadline_s - time.monotonic(), _PAUSE_S), [])
                self.on_wait()

        # With --from-scratch the newest commit of the hub is taken, else that of the first run.
        anew = self.request.from_scratch
        return resolve_hub(
            wanted, what, layout.model, layout.fetch, timeout_s, wait, self.on_wait, anew=anew
        )

    # --- the engine

    def load_ahead(self, source: ModelSource) -> None:
        """Have a template load the model while a source is read, if workers come from templates."""
        model = self._config.model
        wanted = not model.is_plugin or self._config.workers.start is Start.WARM
        if wanted and not self._ahead and not self.on_ray:
            self._ahead = self._local(source)
            self._ahead.start_template(1)

    def take_engine(self, source: ModelSource) -> Engine:
        """Return the engine, started early or not; the caller closes it."""
        run = self.run
        if self.on_ray:
            template = self._template(source)
            return RayEngine(self._config, run.layout, template, run.run_id, run.emit)
        ahead = self._ahead
        self._ahead = None
        return ahead or self._local(source)

    def _local(self, source: ModelSource) -> LocalEngine:
        config = self._config
        settings = WorkerSettings(
            config.workers.start,
            self.run.run_id,
            os.environ,
            config.env | config.secret_env,
            self._template(source),
            self.run.layout.template,
            config.recovery.startup_timeout,
        )
        return LocalEngine(self.devices, settings, self.run.emit)

    def _template(self, source: ModelSource) -> TemplateSpec:
        model = source.spec(self._config.model)
        return TemplateSpec(model, self.devices[0].kind, (str(self.request.loaded.folder),))
