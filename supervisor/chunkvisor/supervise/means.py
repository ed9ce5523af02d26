"""What a run works with: its devices, the files of its model, an engine, and how it waits for what is not ready.

It is what is imported before a model begins to load. Whatever else a run needs, numpy above all, is imported meanwhile.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from chunkvisor.config.choices import EngineKind, Start
from chunkvisor.config.load import LoadedConfig
from chunkvisor.config.model import model_spec
from chunkvisor.devices.gpu import Device, find_devices
from chunkvisor.engine.engine import Engine
from chunkvisor.engine.local import LocalEngine, WorkerSettings
from chunkvisor.engine.modelfolder import refuse_wrong_model
from chunkvisor.engine.modelsource import ModelSource, resolve_hub, resolve_local, source_at_hand
from chunkvisor.engine.ray.engine import RayEngine
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.events.event import Doing, Resolving, RunStarted, Warned
from chunkvisor.heart.run import Run, WaitTeller, stopped
from chunkvisor.judge import pause_s
from chunkvisor.store.disk import refusal
from chunkvisor.store.layout import workdir_gone
from chunkvisor.units import counted
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import TemplateSpec

_PAUSE_S = 0.25
_Done = TypeVar("_Done")


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line adds to the config."""

    loaded: LoadedConfig
    max_rows: int | None = None
    from_scratch: bool = False
    update: bool = False  # take a source that has changed as it is now
    stop_after_s: float | None = None  # how long it may take, at most; None = as long as it takes
    keeps: bool = True  # False = what is done is thrown away unless all is done: the first signal ends the run at once
    typed: str = ""  # the command, to be typed again; empty for a call from Python


class Means:
    """To be closed by whoever makes it."""

    def __init__(self, request: Request, run: Run) -> None:
        """Find the devices, and report that the run begins. Raises Halt if there are none."""
        self._request, self._run = request, run
        self._config = config = request.loaded.config
        self.on_ray = config.engine.kind is EngineKind.RAY
        self._timeout_s = config.recovery.wait_timeout
        self._ahead: LocalEngine | None = None
        """An engine that was begun before it was wanted, so that the model loads meanwhile."""
        if self.on_ray:
            # It stands for those of the cluster until its nodes have told theirs.
            self.devices: tuple[Device, ...] = (
                Device("cpu" if "cpu" in config.device else "cuda", name="the Ray cluster"),
            )
        else:
            if "cpu" not in config.device:
                run.emit(Doing("asking nvidia-smi for the GPUs"))
            self.devices = find_devices(config.device)
        if guessed := sum(device.uuid.isdecimal() for device in self.devices):
            words = f"nvidia-smi does not list the GPUs: the run goes on with {counted(guessed, 'GPU')}, whose memory"
            run.emit(Warned(f"{words} and health it cannot look at. `chunkvisor doctor` says more"))
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
        """Close an engine that was not taken."""
        if self._ahead is not None:
            self._ahead.close()

    # --- waiting

    def on_wait(self) -> None:
        """To be called while something is waited for. Raises Halt if the run is asked to stop."""
        self._run.tick()
        if self._run.signals.draining:
            raise stopped(self._run.signals)

    def pause(self, seconds: float) -> None:
        """Wait that long. Raises as `on_wait`."""
        deadline_s = time.monotonic() + seconds
        while (left_s := deadline_s - time.monotonic()) > 0:
            self._run.signals.sleep(min(left_s, _PAUSE_S), [])
            self.on_wait()

    def until_done(self, do: Callable[[], _Done], place: Path) -> _Done:
        """Return what `do` returns, once it meets no full disk.

        Raises Halt (74) after `recovery.wait_timeout`, and what else `do` raises.
        """
        timeout_s, began_s = self._timeout_s, None
        teller = WaitTeller(self._run.emit, timeout_s)
        while True:
            try:
                return do()
            except (Halt, OSError) as error:
                halt = error if isinstance(error, Halt) else refusal(error, place)
                if halt is None or halt.code is not ExitCode.DISK:
                    raise
            if gone := workdir_gone(self._run.layout):
                raise gone
            began_s = time.monotonic() if began_s is None else began_s
            waited_s = time.monotonic() - began_s
            if waited_s >= timeout_s:
                raise halt
            delay_s = pause_s(waited_s, timeout_s)
            teller.tell(delay_s, waited_s, f"{halt.what}: {halt.why}", Outcome.DISK_FULL)
            self.pause(delay_s)

    # --- the model

    def source(self) -> ModelSource:
        """Find or download the model's files; if an output is new, begin to load them as soon as they are known.

        Raises Halt, also if the files show that it is not the model that the config describes; OSError.
        """
        model, layout = self._config.model, self._run.layout
        if model.is_plugin:
            found = ModelSource(None, model.revision)
        elif model.is_folder:
            try:
                refuse_wrong_model(self._config, model.name)
                self._run.emit(Doing("reading the files of the model"))
                found = resolve_local(model, layout.model, self.on_wait)
            except OSError as error:
                raise config_error(f"the model folder {model.name} cannot be read: {error}") from None
        else:
            found = self._from_hub()
        # A resume may need no worker at all: then loading a model would only cost memory.
        if not all(layout.output(name).state.exists() for name in self._config.outputs):
            self.load_ahead(found)
        return found

    def _from_hub(self) -> ModelSource:
        model, layout = self._config.model, self._run.layout
        # It refuses the path of a folder that is not there.
        if source_at_hand(model, layout.model) is None:
            from chunkvisor.sources.child import request_of, try_first_row

            # The hub may be waited for, and a download takes minutes: what is wrong with the sources is said before.
            for name in self._config.outputs:
                try_first_row(request_of(self._config, name, self._request.max_rows), self.on_wait)
        self._run.emit(Resolving(model.name))
        teller = WaitTeller(self._run.emit, self._timeout_s)

        def wait(seconds: float, waited_s: float, why: str) -> None:
            teller.tell(seconds, waited_s, why, Outcome.HUB)
            self.pause(seconds)

        # From scratch the hub is asked for its newest commit; otherwise the one that the first run has pinned counts.
        anew = self._request.from_scratch
        found = resolve_hub(model, layout.model, layout.fetch, self._timeout_s, wait, self.on_wait, anew=anew)
        refuse_wrong_model(self._config, found.path)
        return found

    # --- the engine

    def load_ahead(self, source: ModelSource) -> None:
        """Have a template load while a source is read, if there is to be one or it takes seconds."""
        model = self._config.model
        wanted = not model.is_plugin or self._config.workers.start is Start.WARM
        if wanted and self._ahead is None and not self.on_ray:
            self._ahead = self._local(source)
            self._ahead.expect(1)

    def take_engine(self, source: ModelSource) -> Engine:
        """Give the engine, which the caller closes: the one that was begun ahead, if there is one."""
        if self.on_ray:
            return RayEngine(self._config, self._run.layout, self._template(source), self._run.run_id, self._run.emit)
        ahead, self._ahead = self._ahead, None
        return ahead or self._local(source)

    def _local(self, source: ModelSource) -> LocalEngine:
        config = self._config
        settings = WorkerSettings(
            config.workers.start,
            self._run.run_id,
            os.environ,
            config.env,
            self._template(source),
            self._run.layout.template,
            config.recovery.startup_timeout,
        )
        return LocalEngine(self.devices, settings, self._run.emit)

    def _template(self, source: ModelSource) -> TemplateSpec:
        model = model_spec(self._config.model, source.path, source.revision)
        return TemplateSpec(model, self.devices[0].kind, (str(self._request.loaded.folder),))
