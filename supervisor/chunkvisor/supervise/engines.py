"""The engine of a run: made when its workers are wanted, or before the sources are read, so that it loads meanwhile."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from chunkvisor.config.choices import EngineKind, Start
from chunkvisor.config.specs import model_spec
from chunkvisor.devices.gpu import Device
from chunkvisor.engine.engine import Engine
from chunkvisor.engine.modelsource import ModelSource
from chunkvisor.engine.starter import LocalEngine, WorkerSettings
from chunkvisor.supervise.request import Request, Run
from chunkvisor_worker.contract.messages import ModelSpec
from chunkvisor_worker.contract.template import TemplateSpec

if TYPE_CHECKING:
    from chunkvisor.heart.output import OutputRun


class Engines:
    """One engine at a time."""

    def __init__(self, request: Request, run: Run, devices: Sequence[Device]) -> None:
        self._request = request
        self._config = request.loaded.config
        self._run = run
        self._devices = devices
        self._ahead: LocalEngine | None = None

    def load_ahead(self, source: ModelSource) -> None:
        """Before a source is read: have a template load meanwhile, where there is to be one or it takes seconds."""
        model = self._config.model
        slow = not model.is_plugin
        wanted = slow or (model.is_plugin and self._config.workers.start is Start.WARM)
        if wanted and self._ahead is None and self._config.engine.kind is EngineKind.LOCAL:
            self._ahead = self._local(model_spec(model, source.path, source.revision))
            self._ahead.expect_any()

    def take(self, source: ModelSource, outputs: "Sequence[OutputRun]") -> Engine:
        """The engine for these outputs, which the caller closes; the one that was begun ahead, if there is one."""
        ahead, self._ahead = self._ahead, None
        match self._config.engine.kind:
            case EngineKind.LOCAL:
                # All outputs have the same model.
                spec = outputs[0].job.model if outputs else model_spec(self._config.model, source.path, source.revision)
                return ahead or self._local(spec)
            case EngineKind.RAY:
                from chunkvisor.engine.ray.engine import ray_engine

                job = outputs[0].job if outputs else None
                return ray_engine(self._config, self._run.layout, job, self._run.run_id, self._run.emit)

    def close(self) -> None:
        """End what nobody has taken."""
        if self._ahead is not None:
            self._ahead.close()

    def _local(self, model: ModelSpec) -> LocalEngine:
        config, layout, device = self._config, self._run.layout, self._devices[0]
        settings = WorkerSettings(
            config.workers.start,
            self._run.run_id,
            os.environ,
            config.env,
            device,
            TemplateSpec(model, device.kind, (str(self._request.loaded.folder),)),
            layout.template,
            config.recovery.startup_timeout,
        )
        return LocalEngine(self._devices, settings, self._run.emit)
