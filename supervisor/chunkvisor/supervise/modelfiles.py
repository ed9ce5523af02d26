"""The files of a run's model: resolved, downloaded or converted before the first worker, and what was learnt of it."""

import os
from collections.abc import Callable

from chunkvisor.config.choices import Backend
from chunkvisor.decide.history import Budget
from chunkvisor.devices.gpu import Device
from chunkvisor.engine.conversion import ensure_converted
from chunkvisor.engine.environment import thread_count, worker_environment
from chunkvisor.engine.localmodel import folder_like
from chunkvisor.engine.modelsource import ModelSource, resolve_hub, resolve_local, source_at_hand
from chunkvisor.errors import Halt, config_error
from chunkvisor.events.run import CheckingModel, ConvertingModel, Note, Resolving
from chunkvisor.store.lessons import LessonFile
from chunkvisor.supervise.request import Request, Run
from chunkvisor.supervise.staging import request_of
from chunkvisor.supervise.waitteller import WaitTeller
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import ModelSpec


class ModelFiles:
    """Of the one model that all outputs have."""

    def __init__(
        self,
        request: Request,
        run: Run,
        device: Device,
        budget: Budget,
        pause: Callable[[float], None],
        on_wait: Callable[[], None],
    ) -> None:
        """`device` is the first; `pause` takes seconds; what it and `on_wait` raise ends what is under way."""
        self._request = request
        self._config = request.loaded.config
        self._run = run
        self._device = device
        self._budget = budget
        self._pause = pause
        self._on_wait = on_wait

    def resolve(self, *, anew: bool) -> ModelSource:
        """Where they are; with `anew` the hub is asked in any case. Raises Halt; OSError."""
        model, layout = self._config.model, self._run.layout
        if model.is_plugin:
            return ModelSource(None, model.revision)
        try:
            if model.is_folder:
                self._run.emit(CheckingModel(model.name))
                return resolve_local(model, layout.model, self._on_wait)
            at_hand = source_at_hand(model, layout.model)  # refuses the path of a folder that is not there
        except OSError as error:
            raise config_error(f"the model folder {model.name} cannot be read: {error}") from None
        if at_hand is None:
            from chunkvisor.ingest.firstrow import try_first_row

            # The hub may be waited for, and a download takes minutes: what is wrong with the sources is said before.
            for name in self._config.outputs:
                try_first_row(request_of(self._config, name, self._request.max_rows), self._on_wait)
        near = folder_like(model.name, self._request.loaded.folder) if at_hand is None else None
        if near is not None:
            self._run.emit(Note(f"there is no model folder {model.name} here; did you mean {near}?"))
        self._run.emit(Resolving(model.name))

        teller = WaitTeller(self._run.emit, self._budget.wait_timeout_s)

        def wait(seconds: float, waited_s: float, why: str) -> None:
            teller.tell(seconds, waited_s, why, Outcome.HUB)
            self._pause(seconds)

        try:
            return resolve_hub(model, layout.model, layout.fetch, self._budget, wait, self._on_wait, anew=anew)
        except Halt as halt:
            if near is not None:
                halt.remedy = f"If you meant the folder {near}, write it as model.name. {halt.remedy}"
            raise

    def convert(self, source: ModelSource, model: ModelSpec) -> None:
        """Have the model converted, where its backend wants that. Raises Halt; OSError."""
        config = self._config
        threads = thread_count(config.env.get("OMP_NUM_THREADS"), self._device.kind, len(os.sched_getaffinity(0)))
        ensure_converted(
            model,
            worker_environment(os.environ, self._device, self._run.run_id, os.getpid(), config.env, threads=threads),
            self._on_wait,
            lambda: self._run.emit(ConvertingModel(model.name, model.backend)),
            source.local.check if source.local is not None else lambda: None,
        )

    def lessons(self, source: ModelSource) -> LessonFile:
        """What was learnt of its memory."""
        model = self._config.model
        other = f"|{model.backend}" if model.backend is not Backend.TORCH else ""
        of_model = f"{source.revision or model.name}|{model.dtype}|{model.encoder}{other}"
        return LessonFile(self._run.layout.lessons, of_model)
