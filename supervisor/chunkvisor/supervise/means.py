"""What a run works with: devices, the files of its model, and engines.

It is all that is imported before a model begins to load. Whatever else a run needs, numpy above all, is imported by
`work` while that goes on: a third of a second, after which the source is read.
"""

import time
from typing import Self

from chunkvisor.config.choices import EngineKind
from chunkvisor.devices.gpu import find_devices, is_guessed
from chunkvisor.engine.modelsource import ModelSource
from chunkvisor.events.device import GpuLost, GpusGuessed, LookingForGpus
from chunkvisor.events.run import RunStarted
from chunkvisor.heart.signals import stopped
from chunkvisor.judge import Budget
from chunkvisor.supervise.engines import Engines
from chunkvisor.supervise.modelfiles import ModelFiles
from chunkvisor.supervise.request import Request, Run

_PAUSE_S = 0.25


class Means:
    """A context, at whose end an engine that nobody has taken is closed."""

    def __init__(self, request: Request, run: Run) -> None:
        """Find the devices. Raises Halt where there are none."""
        self._request = request
        self._run = run
        config = request.loaded.config
        self.on_ray = config.engine.kind is EngineKind.RAY
        if not self.on_ray and "cpu" not in config.device:
            run.emit(LookingForGpus())
        if self.on_ray:
            from chunkvisor.engine.ray.engine import cluster_devices  # 60 ms before any run's first worker

            self.devices = cluster_devices(config)
        else:
            self.devices = find_devices(config.device, on_lost=lambda why: run.emit(GpuLost(why)), on_wait=self.on_wait)
        if guessed := sum(map(is_guessed, self.devices)):
            run.emit(GpusGuessed(guessed))
        self.budget = Budget(config.recovery.attempts, config.recovery.min_batch_size, config.recovery.wait_timeout)
        self.engines = Engines(request, run, self.devices)
        self.model = ModelFiles(request, run, self.budget, self.pause, self.on_wait)
        self._resolved: ModelSource | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.engines.close()

    def begin(self) -> None:
        """Tell that the run begins; where an output is new, so that its source will be read, begin to load the model.

        Raises Halt; OSError.
        """
        config, layout = self._request.loaded.config, self._run.layout
        self._run.emit(
            RunStarted(
                workdir=str(layout.workdir),
                device=", ".join(map(str, self.devices)),
                run=self._run.run_id,
                gpus=tuple(device.uuid for device in self.devices),
                engine=str(config.engine.kind),
                model=config.model.name,
                outputs=tuple(config.outputs),
            )
        )
        if not all(layout.output(name).state.exists() for name in config.outputs):
            load = self.engines.load_ahead
            self._resolved = self.model.resolve(load, anew=self._request.from_scratch)
            load(self._resolved)

    def source(self) -> ModelSource:
        """Where the model's files are now. Raises Halt; OSError."""
        resolved, self._resolved = self._resolved, None
        return resolved or self.model.resolve(anew=self._request.from_scratch)

    def pause(self, seconds: float) -> None:
        """Wait so long. Raises as `on_wait`."""
        deadline_s = time.monotonic() + seconds
        while (left_s := deadline_s - time.monotonic()) > 0:
            self._run.signals.sleep(min(left_s, _PAUSE_S), [])
            self.on_wait()

    def on_wait(self) -> None:
        """To be called while something is waited for. Raises Halt where the run is asked to stop."""
        self._run.tick()
        if self._run.signals.draining:
            raise stopped(self._run.signals)
